"""Our logits, and the recorded ones, against Hugging Face's models run by PyTorch now."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.cases import BY_NAME, CASES, FIXTURES, RECORDED, Case, write_folder
from parity.compare import assert_close, ours
from parity.text import TEXT

from pce_jax.models import load_folder, load_gguf, save_folder
from pce_jax.models.llama import forward

pytestmark = pytest.mark.parity


@pytest.fixture(scope="session")
def oracle() -> Any:
    from parity import oracle

    return oracle


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_those_of_torch_now_and_when_recorded(case: Case, oracle: Any, tmp_path: Path):
    theirs = oracle.logits(
        oracle.load_folder(write_folder(case, tmp_path)), case.tokens, case.positions
    )
    assert_close(ours(case, tmp_path), theirs, 1e-4)
    with np.load(FIXTURES / "hf_logits.npz") as recorded:
        assert_close(theirs[0, RECORDED], recorded[case.name], 2e-5)


@pytest.mark.parametrize(
    "name", ["llama/yarn_mscale", "mistral/no_window", "qwen2/tied", "qwen3/biases_tied",
             "smollm3/listed_yarn_biases"],
)  # fmt: skip
def test_transformers_reads_what_we_save_as_the_same_model(name: str, oracle: Any, tmp_path: Path):
    case = BY_NAME[name]
    theirs = oracle.load_folder(write_folder(case, tmp_path / "theirs"))
    save_folder(load_folder(tmp_path / "theirs", jnp.float32), tmp_path / "ours")
    saved = oracle.load_folder(tmp_path / "ours")
    args = case.tokens, case.positions
    np.testing.assert_array_equal(oracle.logits(saved, *args), oracle.logits(theirs, *args))


@pytest.mark.slow
def test_smollm2_logits_equal_those_of_torch(oracle: Any, smollm2_path: Path):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    tokens = np.array([tokenizer(TEXT, add_special_tokens=False)["input_ids"]], np.int32)
    assert tokens.shape[1] >= 300
    theirs = oracle.logits(oracle.load_gguf(smollm2_path), tokens)
    assert_close(
        np.asarray(jax.jit(forward)(load_gguf(smollm2_path, jnp.float32), tokens)), theirs, 2e-3
    )
