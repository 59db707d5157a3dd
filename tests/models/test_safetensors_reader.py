"""Reading Hugging Face folders: what is accepted, what is refused, and what the refusal says."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_models import (
    BFLOAT16,
    assert_bits_equal,
    hf_tensors,
    random_parameters,
    tiny_config,
)

from pce_jax.models import ConfigError, LlamaConfig, WeightsError, load_folder, safetensors_format

CONFIG = tiny_config()
INDEX = "model.safetensors.index.json"


def write_folder(
    folder: Path, tensors: dict[str, np.ndarray], config: LlamaConfig = CONFIG, files: int = 1
) -> Path:
    """A folder of one file, or of several without an index."""
    (folder / "config.json").write_text(json.dumps(config.to_hf()))
    names = sorted(tensors)
    for number in range(files):
        name = "model" if files == 1 else f"model-{number + 1:05}-of-{files:05}"
        part = {key: np.ascontiguousarray(tensors[key]) for key in names[number::files]}
        save_file(part, folder / f"{name}.safetensors")
    return folder


def write_index(folder: Path, **other: str) -> None:
    """An index of what the files hold, but for what `other` says."""
    weight_map = {}
    for file in folder.glob("*.safetensors"):
        weight_map |= dict.fromkeys(header(file), file.name)
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map | other}))


def header(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


@pytest.fixture
def parameters() -> dict[str, np.ndarray]:
    return random_parameters(CONFIG)


@pytest.fixture
def tensors(parameters: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return hf_tensors(CONFIG, parameters)


@pytest.fixture
def folder(tmp_path: Path, tensors: dict[str, np.ndarray]) -> Path:
    return write_folder(tmp_path, tensors)


def refusal(folder: Path, **options: Any) -> str:
    with pytest.raises(WeightsError) as error:
        load_folder(folder, **options)
    return str(error.value)


@pytest.mark.smoke
@pytest.mark.parametrize("files", [1, 3])
@pytest.mark.parametrize("index", [True, False])
def test_files_are_read_with_and_without_index(tmp_path, tensors, parameters, files, index):
    folder = write_folder(tmp_path, tensors, files=files)
    if index:
        write_index(folder)
    model = load_folder(folder)
    assert_bits_equal(model, parameters)
    assert model.config == CONFIG


def test_chunks_smaller_than_a_tensor_join_up(folder, parameters, monkeypatch):
    monkeypatch.setattr(safetensors_format, "CHUNK", 7)
    assert_bits_equal(load_folder(folder), parameters)


@pytest.mark.parametrize("wanted", [np.float32, np.float16, BFLOAT16])
def test_files_may_mix_dtypes(tmp_path, wanted):
    stored = random_parameters(CONFIG)
    for name, dtype in zip(stored, [np.float32, np.float16, BFLOAT16] * 4, strict=False):
        stored[name] = stored[name].astype(dtype)
    model = load_folder(write_folder(tmp_path, hf_tensors(CONFIG, stored)), dtype=wanted)
    expected = {name: a.astype(np.float32).astype(wanted) for name, a in stored.items()}
    assert_bits_equal(model, expected)


def test_every_family_with_all_its_parts_is_read(tmp_path):
    config = tiny_config(family="qwen3", qkv_bias=True, qk_norm=True, out_bias=True)
    parameters = random_parameters(config)
    assert_bits_equal(
        load_folder(write_folder(tmp_path, hf_tensors(config, parameters), config)), parameters
    )


def test_one_file_wins_over_an_index_and_mistrals_copy_is_ignored(folder, parameters):
    (folder / INDEX).write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    (folder / "consolidated.safetensors").write_bytes(b"")
    assert_bits_equal(load_folder(folder), parameters)
    (folder / INDEX).unlink()
    (folder / "model.safetensors").rename(folder / "weights.safetensors")
    assert_bits_equal(load_folder(folder), parameters)


def test_saved_rotary_buffers_are_ignored(tmp_path, tensors, parameters):
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = np.ones(8, np.float32)
    assert_bits_equal(load_folder(write_folder(tmp_path, tensors)), parameters)


def test_everything_wrong_is_in_one_error(tmp_path, tensors):
    del tensors["model.norm.weight"], tensors["lm_head.weight"]
    tensors["model.layers.0.mlp.extra.weight"] = np.ones(3, np.float32)
    tensors["model.layers.1.mlp.up_proj.weight"] = np.ones((32, 96), np.float32)
    tensors["model.layers.0.input_layernorm.weight"] = np.ones(32, np.int8)
    message = refusal(write_folder(tmp_path, tensors, files=2))
    assert str(tmp_path) in message
    assert "missing (2):\n  model.norm.weight\n  lm_head.weight\n" in message
    assert "unexpected (1):\n  model.layers.0.mlp.extra.weight in model-0000" in message
    assert (
        "wrong shape (1):\n  model.layers.1.mlp.up_proj.weight: expected [96, 32], "
        "found [32, 96] in model-0000"
    ) in message
    assert "unsupported dtype (1):\n  model.layers.0.input_layernorm.weight is I8 in" in message
    assert message.endswith("check that config.json belongs to these weights.")


def test_a_long_list_is_cut_and_counted(tmp_path):
    many = {f"t{number}": np.ones(1, np.float32) for number in range(30)}
    message = refusal(write_folder(tmp_path, many))
    assert "unexpected (30):" in message
    assert "... and 10 more" in message


def test_a_file_cut_short_is_named_with_its_tensors(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    message = refusal(folder)
    assert "broken file (1):\n  model.safetensors" in message
    assert "it holds lm_head.weight, " in message
    assert "missing" not in message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"short",
        b"\xff" * 64,
        (9).to_bytes(8, "little") + b"[1,2,3,4]",
        (4).to_bytes(8, "little") + b"{bad",
        (9).to_bytes(8, "little") + b'{"a":{} }',
    ],
)
def test_what_is_no_safetensors_file_is_called_broken(folder, content):
    (folder / "model.safetensors").write_bytes(content)
    assert "broken file (1):\n  model.safetensors" in refusal(folder)


def test_a_header_that_contradicts_itself_is_refused(folder):
    text = json.dumps({"x": {"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}}).encode()
    data = len(text).to_bytes(8, "little") + text + bytes(8)
    (folder / "model.safetensors").write_bytes(data)
    assert "broken file (1):\n  model.safetensors" in refusal(folder)


def test_an_index_must_agree_with_the_files(tmp_path, tensors):
    folder = write_folder(tmp_path, tensors, files=2)
    first, second = (f"model-0000{number}-of-00002.safetensors" for number in (1, 2))
    inside_first = next(name for name in header(folder / first) if "layers" in name)
    write_index(folder, **{inside_first: second, "lm_head.weight": "gone.safetensors"})
    message = refusal(folder)
    assert "missing file (1):\n  gone.safetensors" in message
    assert f"{inside_first}: said to be in {second}, found in {first}" in message
    (folder / INDEX).write_text("{}")
    assert "no weight_map" in refusal(folder)


def test_a_tensor_in_two_files_is_refused(folder):
    (folder / "model.safetensors").rename(folder / "a.safetensors")
    save_file({"model.norm.weight": np.ones(32, np.float32)}, folder / "b.safetensors")
    assert "twice (1):\n  model.norm.weight in a.safetensors and b.safe" in refusal(folder)


@pytest.mark.parametrize("stored", [np.float32, BFLOAT16])
def test_values_beyond_float16_are_refused_not_made_infinite(tmp_path, tensors, stored):
    tensors["model.norm.weight"] = np.full(32, 1e6).astype(stored)
    message = refusal(write_folder(tmp_path, tensors), dtype=np.float16)
    assert "model.norm.weight has values too large for float16. Load it as bfloat16" in message


@pytest.mark.parametrize("pickle", ["pytorch_model.bin", "x.pt", "consolidated.00.pth"])
def test_pickles_are_refused_with_the_way_out(folder, pickle):
    (folder / "model.safetensors").rename(folder / pickle)
    message = refusal(folder)
    assert pickle in message
    assert "save_pretrained(new_folder, safe_serialization=True)" in message


def test_a_folder_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    assert "has no .safetensors files" in refusal(folder)


def test_a_tied_head_saved_as_a_copy_is_accepted_and_one_that_differs_is_not(tmp_path):
    config = tiny_config(tie_embeddings=True)
    parameters = random_parameters(config)
    tensors = hf_tensors(config, parameters)
    tensors["lm_head.weight"] = parameters["embed"].copy()
    assert_bits_equal(load_folder(write_folder(tmp_path, tensors, config)), parameters)
    tensors["lm_head.weight"][-1, -1] += 1
    message = refusal(write_folder(tmp_path, tensors, config))
    assert "not tied (1):" in message
    assert "Set tie_word_embeddings to false" in message


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "config.json is not valid JSON"),
        ("[]", "config.json must hold a JSON object, not list"),
        ('{"model_type": "gpt2"}', "config.json: model_type 'gpt2' is not supported"),
    ],
)
def test_a_bad_config_is_refused_with_its_path(folder, text, words):
    (folder / "config.json").write_text(text)
    with pytest.raises(ConfigError, match=words) as error:
        load_folder(folder)
    assert str(folder) in str(error.value)


def test_a_missing_config_or_folder_is_told_apart(tmp_path):
    with pytest.raises(ConfigError, match=r"it has no config\.json"):
        load_folder(tmp_path)
    with pytest.raises(ConfigError, match="there is no such folder"):
        load_folder(tmp_path / "nowhere")


def test_end_tokens_of_the_generation_config_win(folder):
    file = folder / "generation_config.json"
    file.write_text('{"eos_token_id": [7, 9]}')
    assert load_folder(folder).config.eos_token_ids == (7, 9)
    file.write_text('{"temperature": 0.5}')
    assert load_folder(folder).config.eos_token_ids == (2,)
    file.write_text("{")
    with pytest.raises(ConfigError, match=r"generation_config\.json is not valid JSON"):
        load_folder(folder)


def test_only_float_dtypes_are_offered(folder):
    with pytest.raises(ValueError, match="float32, bfloat16 or float16, got int8"):
        load_folder(folder, dtype=np.int8)


def test_progress_counts_every_weight(folder):
    seen = []
    model = load_folder(folder, progress=lambda *step: seen.append(step))
    total = model.config.num_parameters
    assert seen[-1] == (total, total)
    assert [done for done, _ in seen] == sorted({done for done, _ in seen})
