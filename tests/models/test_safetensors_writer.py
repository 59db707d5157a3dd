"""Writing Hugging Face folders: bit for bit, readable by others, all or nothing."""

import dataclasses
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file
from tiny_models import BFLOAT16, assert_bits_equal, random_parameters, tiny_config

from pce_jax.models import (
    ConfigError,
    Llama,
    LlamaConfig,
    WeightsError,
    load_folder,
    safetensors_writer,
    save_folder,
)

CONFIG = tiny_config()
DTYPES = [np.dtype(np.float32), np.dtype(np.float16), BFLOAT16]


def model_of(config: LlamaConfig = CONFIG, dtype: np.dtype = DTYPES[0]) -> Llama:
    arrays = random_parameters(config, dtype)
    return Llama(config, {name: jnp.asarray(array) for name, array in arrays.items()})


@pytest.mark.smoke
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shard_bytes", [2**30, 20_000, 1])
@pytest.mark.parametrize("tied", [True, False])
def test_what_is_written_reads_back_bit_for_bit(tmp_path, dtype, shard_bytes, tied):
    config = tiny_config(tie_embeddings=tied)
    save_folder(model_of(config, dtype), tmp_path, shard_bytes=shard_bytes)
    model = load_folder(tmp_path, dtype=dtype)
    assert_bits_equal(model, random_parameters(config, dtype))
    assert model.config == config


def test_shards_stay_within_their_size_and_the_index_covers_them(tmp_path):
    save_folder(model_of(), tmp_path, shard_bytes=20_000)
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    files = sorted(file.name for file in tmp_path.glob("*.safetensors"))
    assert files == [f"model-{n + 1:05}-of-{len(files):05}.safetensors" for n in range(len(files))]
    assert len(files) > 2
    assert sorted(set(index["weight_map"].values())) == files
    sizes = []
    for file in files:
        tensors = load_file(tmp_path / file)
        assert all(index["weight_map"][name] == file for name in tensors)
        sizes.append(sum(tensor.nbytes for tensor in tensors.values()))
    assert max(sizes) <= 20_000
    assert index["metadata"]["total_size"] == sum(sizes) == 4 * CONFIG.num_parameters


def test_the_folder_holds_configs_and_the_tokenizer(tmp_path):
    class Tokenizer:
        def save_pretrained(self, folder: str, /) -> None:
            (Path(folder) / "tokenizer.json").write_text("{}")

    config = tiny_config(eos_token_ids=(2, 3))
    save_folder(model_of(config, BFLOAT16), tmp_path / "new" / "model", Tokenizer())
    folder = tmp_path / "new" / "model"
    assert {file.name for file in folder.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
    }
    hf = json.loads((folder / "config.json").read_text())
    assert hf["dtype"] == hf["torch_dtype"] == "bfloat16"
    generation = json.loads((folder / "generation_config.json").read_text())
    assert generation == {"bos_token_id": 1, "eos_token_id": [2, 3]}
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_no_generation_config_without_end_tokens(tmp_path):
    save_folder(model_of(tiny_config(eos_token_ids=())), tmp_path)
    assert not (tmp_path / "generation_config.json").exists()
    assert load_folder(tmp_path).config.eos_token_ids == ()


def test_a_folder_with_something_in_it_is_refused_and_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("kept")
    with pytest.raises(WeightsError, match="exists and is not an empty folder"):
        save_folder(model_of(), tmp_path)
    with pytest.raises(WeightsError, match=r"mine\.txt exists and is not"):
        save_folder(model_of(), tmp_path / "mine.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("target", ["model", "a/b/model"])
def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch, error, target):
    save_file, calls = safetensors_writer.save_file, []

    def interrupted(tensors, file, **options):
        calls.append(file)
        if len(calls) == 2:
            raise error
        save_file(tensors, file, **options)

    monkeypatch.setattr(safetensors_writer, "save_file", interrupted)
    with pytest.raises(error):
        save_folder(model_of(), tmp_path / target, shard_bytes=20_000)
    assert len(calls) == 2
    assert not list(tmp_path.iterdir())


def test_a_model_that_transformers_cannot_express_is_refused_before_writing(tmp_path):
    config = tiny_config(family="qwen2", qkv_bias=False)
    with pytest.raises(ConfigError, match="qkv_bias"):
        save_folder(model_of(config), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_weights_of_several_dtypes_are_refused(tmp_path):
    arrays = random_parameters(CONFIG)
    arrays["norm"] = arrays["norm"].astype(BFLOAT16)
    model = Llama(CONFIG, {name: jnp.asarray(array) for name, array in arrays.items()})
    with pytest.raises(WeightsError, match=r"several dtypes \(bfloat16, float32\)"):
        save_folder(model, tmp_path / "model")


FAMILIES = [
    tiny_config(tie_embeddings=True),
    tiny_config(family="mistral"),
    tiny_config(family="qwen2", qkv_bias=True),
    tiny_config(family="qwen3", qk_norm=True, tie_embeddings=True),
    tiny_config(family="smollm3", num_layers=4, unrotated_layers=(3,)),
]


@pytest.mark.parity
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.family)
def test_torch_to_jax_to_torch_keeps_every_bit(tmp_path, config, dtype):
    torch = pytest.importorskip("torch", reason="compares with PyTorch, which is not installed")
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    wanted = getattr(torch, dtype.name)
    config = dataclasses.replace(config, eos_token_ids=(2, 3))
    first = AutoModelForCausalLM.from_config(AutoConfig.for_model(**config.to_hf()), dtype=wanted)
    first.save_pretrained(tmp_path / "torch")
    save_folder(load_folder(tmp_path / "torch", dtype), tmp_path / "jax", shard_bytes=30_000)
    second, report = AutoModelForCausalLM.from_pretrained(
        tmp_path / "jax", dtype="auto", output_loading_info=True
    )
    assert not any(report.values())
    before, after = first.state_dict(), second.state_dict()
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype == wanted
        assert torch.equal(after[name], tensor), name
    assert second.generation_config.eos_token_id == [2, 3]
