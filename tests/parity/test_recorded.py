"""Our logits against those of Hugging Face's models, recorded by `record.py`; without PyTorch."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.cases import BY_NAME, CASES, FIXTURES, RECORDED, Case
from parity.compare import assert_close, ours

from pce_jax.models import load_gguf
from pce_jax.models.llama import forward

RECORDED_LOGITS = FIXTURES / "hf_logits.npz"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_recorded_ones(case: Case, tmp_path: Path):
    with np.load(RECORDED_LOGITS) as recorded:
        assert_close(ours(case, tmp_path)[0, RECORDED], recorded[case.name], 1e-4)


@pytest.mark.parametrize("name", ["qwen3/biases_tied", "smollm3/listed_yarn_biases"])
def test_logits_are_the_same_from_several_files(name: str, tmp_path: Path):
    with np.load(RECORDED_LOGITS) as recorded:
        assert_close(ours(BY_NAME[name], tmp_path, files=3)[0, RECORDED], recorded[name], 1e-4)


def test_no_recorded_logits_without_a_case():
    with np.load(RECORDED_LOGITS) as recorded:
        assert set(recorded) == set(BY_NAME)


def test_cases_differ_in_their_logits():
    with np.load(RECORDED_LOGITS) as recorded:
        flat = np.stack([recorded[name].ravel() for name in recorded])
    assert len(np.unique(flat, axis=0)) == len(flat)


def test_smollm2_logits_equal_recorded_ones(smollm2_path: Path):
    with np.load(FIXTURES / "smollm2_logits.npz") as file:
        recorded = dict(file)
    model = load_gguf(smollm2_path, jnp.float32)
    logits = np.asarray(jax.jit(forward)(model, recorded["tokens"][None])[0])
    picked = logits[recorded["positions"], :: recorded["vocab_step"]]
    assert_close(picked, recorded["logits"], 2e-3)
