"""Reading GGUF files: types, llama.cpp's row order, metadata, and refusals."""

import dataclasses
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_gguf import gguf_tensors, write_gguf
from tiny_models import BFLOAT16, assert_bits_equal, random_parameters, tiny_config

from pce_jax.models import (
    SHAPES,
    ConfigError,
    LlamaConfig,
    RopeConfig,
    WeightsError,
    gguf_format,
    load_gguf,
)

CONFIG = tiny_config(rope=RopeConfig(theta=500_000.0), norm_eps=1e-5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "model.gguf"


def written(path: Path, config: LlamaConfig = CONFIG, **options: Any) -> dict[str, np.ndarray]:
    """Write random parameters, and return them."""
    parameters = random_parameters(config)
    write_gguf(path, config, gguf_tensors(config, parameters), **options)
    return parameters


FAMILIES = [
    CONFIG,
    tiny_config(family="llama", qkv_bias=True, out_bias=True, mlp_bias=True, tie_embeddings=True),
    tiny_config(family="qwen2", qkv_bias=True, eos_token_ids=()),
    tiny_config(family="qwen3", qk_norm=True, bos_token_id=None),
    tiny_config(family="smollm3", num_layers=8, unrotated_layers=(3, 7)),
]


@pytest.mark.smoke
@pytest.mark.parametrize("config", FAMILIES, ids=lambda config: config.family)
def test_each_architecture_reads_back_bit_for_bit(path, config):
    parameters = written(path, config)
    model = load_gguf(path)
    assert_bits_equal(model, parameters)
    assert model.config == config


@pytest.mark.parametrize("chunk", [256, gguf_format.CHUNK])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K"])
def test_each_type_is_dequantised_as_the_gguf_package_does(path, kind, chunk, monkeypatch):
    monkeypatch.setattr(gguf_format, "CHUNK", chunk)
    config = tiny_config(
        family="qwen2", qkv_bias=True, hidden_size=256, intermediate_size=512, head_dim=64
    )
    tensors = gguf_tensors(config, random_parameters(config))
    tensors = {name: array / 8 for name, array in tensors.items()}
    stored = write_gguf(path, config, tensors, kind)
    model = load_gguf(path)
    for index in range(config.num_layers):
        for ours, theirs in (("q_proj", "attn_q"), ("down_proj", "ffn_down")):
            array = getattr(model.blocks, ours)[index]
            np.testing.assert_array_equal(array, stored[f"blk.{index}.{theirs}.weight"])
    np.testing.assert_array_equal(model.embed[...], stored["token_embd.weight"])
    assert np.isfinite(stored["token_embd.weight"]).all()


@pytest.mark.parametrize("dtype", [BFLOAT16, np.float16])
def test_weights_are_cast_to_the_dtype_asked_for(path, dtype):
    parameters = written(path)
    cast = {name: array.astype(dtype) for name, array in parameters.items()}
    assert_bits_equal(load_gguf(path, dtype=dtype), cast)


def test_the_head_size_defaults_to_the_width_over_the_heads(path):
    config = tiny_config(head_dim=8)
    keys = ("attention.key_length", "attention.value_length", "rope.dimension_count")
    written(path, config, without=keys)
    assert load_gguf(path).config == config


def test_all_end_tokens_are_kept(path):
    written(path, metadata={"tokenizer.ggml.eot_token_id": 5, "tokenizer.ggml.eom_token_id": 2})
    assert load_gguf(path).config.eos_token_ids == (2, 5)


@pytest.mark.parametrize(
    ("metadata", "rope"),
    [
        ({"rope.scaling.type": "none"}, {}),
        ({"rope.scaling.type": "linear", "rope.scaling.factor": 4.0}, {"kind": "linear"}),
        ({"rope.scaling.attn_factor": 1.0}, {}),
        ({"rope.scale_linear": 4.0}, {"kind": "linear"}),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 4.0,
                "rope.scaling.original_context_length": 512,
            },
            {"kind": "yarn", "original_max_positions": 512},
        ),
    ],
)
def test_rope_scaling_is_read(path, metadata, rope):
    written(path, metadata=metadata)
    expected = {"theta": 500_000.0, "factor": 4.0 if rope else 1.0} | rope
    assert load_gguf(path).config.rope == RopeConfig(**expected)


def llama3_factors(factor: float, window: int = 8192, dim: int = 16) -> np.ndarray:
    """What llama.cpp's converter stores: the divisor of each frequency, from the published rule."""
    factors = []
    for pair in range(dim // 2):
        wavelength = 2 * np.pi * 500_000.0 ** (2 * pair / dim)
        if wavelength < window / 4.0:
            factors.append(1.0)
        elif wavelength > window / 1.0:
            factors.append(factor)
        else:
            smooth = (window / wavelength - 1.0) / (4.0 - 1.0)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(factors, np.float32)


@pytest.mark.parametrize("factor", [8.0, 32.0])
def test_llama3_scaling_is_recognised_by_its_factors(path, factor):
    parameters = random_parameters(CONFIG)
    tensors = gguf_tensors(CONFIG, parameters) | {"rope_freqs.weight": llama3_factors(factor)}
    write_gguf(path, CONFIG, tensors)
    model = load_gguf(path)
    assert_bits_equal(model, parameters)
    assert model.config.rope == RopeConfig(
        theta=500_000.0,
        kind="llama3",
        factor=factor,
        original_max_positions=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


@pytest.mark.parametrize(
    "factors",
    [llama3_factors(8.0, window=4096), np.linspace(1, 8, 8, dtype=np.float32), np.ones(3)],
)
def test_other_rope_factors_are_refused_unless_they_do_nothing(path, factors):
    tensors = gguf_tensors(CONFIG, random_parameters(CONFIG))
    write_gguf(path, CONFIG, tensors | {"rope_freqs.weight": factors.astype(np.float32)})
    if np.all(factors == 1):
        assert load_gguf(path).config == CONFIG
        return
    with pytest.raises(ConfigError, match=r"rope_freqs\.weight holds frequency factors other"):
        load_gguf(path)


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"expert_count": 8}, "llama.expert_count is 8: this decoder does not compute it"),
        ({"attention.sliding_window": 64}, "sliding_window is 64: sliding-window attention"),
        ({"attention.head_count": [4, 4]}, r"head_count is \[4, 4\], expected one number"),
        ({"attention.head_count": 0}, "head_count is 0, expected one number above 0"),
        ({"attention.value_length": 8}, "value_length is 8, expected the head size 16"),
        ({"rope.dimension_count": 8}, "dimension_count is 8, expected the head size 16"),
        ({"attention.causal": False}, "attention.causal is false"),
        ({"rope.scaling.attn_factor": 0.5}, "attn_factor is 0.5: this refinement is not"),
        ({"rope.freq_base": "x"}, "freq_base is 'x', expected a number"),
        (
            {"rope.scaling.type": "longrope", "rope.scaling.factor": 2.0},
            "'longrope' is not supported",
        ),
        (
            {
                "rope.scaling.type": "yarn",
                "rope.scaling.factor": 2.0,
                "rope.scaling.yarn_log_multiplier": 0.5,
            },
            "yarn_log_multiplier is 0.5: this refinement is not",
        ),
    ],
)
def test_what_the_decoder_does_not_compute_is_refused_by_key(path, metadata, words):
    written(path, metadata=metadata)
    with pytest.raises(ConfigError, match=words) as error:
        load_gguf(path)
    assert str(path) in str(error.value)


def test_a_missing_key_is_named(path):
    written(path, without=["block_count"])
    with pytest.raises(ConfigError, match=r"llama\.block_count is missing"):
        load_gguf(path)


def test_another_architecture_is_refused_with_those_supported(path):
    written(path, dataclasses.replace(CONFIG, family="gemma2"))
    with pytest.raises(ConfigError, match=r"'gemma2' is not supported\. Supported: llama"):
        load_gguf(path)


def refusal(path: Path) -> str:
    with pytest.raises(WeightsError) as error:
        load_gguf(path)
    return str(error.value)


def test_everything_wrong_is_in_one_error(path):
    import gguf

    tensors = gguf_tensors(CONFIG, random_parameters(CONFIG))
    del tensors["output_norm.weight"]
    tensors["blk.0.attn_k.weight"] = np.ones((3, 32), np.float32)
    tensors["blk.1.extra.weight"] = np.ones(3, np.float32)
    tensors["blk.1.attn_v.weight"] = np.ones((32, 32), np.float32)
    write = gguf.GGUFWriter.add_tensor

    def with_q5(self, name, tensor, **options):
        if name == "blk.1.attn_v.weight":
            kind = gguf.GGMLQuantizationType.Q5_0
            return write(self, name, gguf.quantize(tensor, kind), raw_dtype=kind)
        return write(self, name, tensor, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf.GGUFWriter, "add_tensor", with_q5)
        write_gguf(path, CONFIG, tensors)
    message = refusal(path)
    assert str(path) in message
    assert "missing (1):\n  output_norm.weight" in message
    assert "unexpected (1):\n  blk.1.extra.weight" in message
    assert "wrong shape (1):\n  blk.0.attn_k.weight: expected [32, 32], found [3, 32]" in message
    assert "unsupported type (1):\n  blk.1.attn_v.weight is Q5_0; supported: F32, F16," in message
    assert message.endswith("or convert the model to one of the supported types.")


def test_a_file_cut_short_is_refused_wherever_it_ends(path):
    written(path)
    data = path.read_bytes()
    path.write_bytes(data[:-100])
    assert "cut short (1):" in refusal(path)
    path.write_bytes(data[: len(data) // 2])
    assert "cut short (" in refusal(path)
    for end in (9, 30, 100, 700, 1500):
        path.write_bytes(data[:end])
        assert "cut short or damaged in its header" in refusal(path)


def test_a_damaged_header_is_refused(path):
    written(path)
    data = bytearray(path.read_bytes())
    data[24:32] = b"\xff" * 8  # the length of the first key
    path.write_bytes(data)
    assert "cut short or damaged in its header" in refusal(path)


def test_other_files_and_versions_are_refused(path):
    path.write_bytes(b"PK\x03\x04 a zip")
    assert "is not a GGUF file" in refusal(path)
    path.write_bytes(b"GGUF" + (1).to_bytes(4, "little") + bytes(16))
    assert "GGUF version 1; only" in refusal(path)


def test_one_part_of_several_is_refused_with_the_way_out(path):
    written(path, metadata={"split.count": 3})
    assert "one of 3 parts. Merge them with `llama-gguf-split --merge`" in refusal(path)


def test_progress_reaches_the_number_of_weights(path):
    written(path)
    seen = []
    model = load_gguf(path, progress=lambda *step: seen.append(step))
    assert seen[-1] == (model.config.num_parameters,) * 2


def test_importing_the_models_imports_no_heavy_package():
    code = "import sys, pce_jax.models; print({'torch', 'transformers', 'gguf'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "set()"


def test_the_real_model_loads_in_seconds(smollm2_path):
    start = time.process_time()
    model = load_gguf(smollm2_path)
    elapsed = time.process_time() - start
    assert model.config.num_parameters == 134_515_008
    known = SHAPES["smollm2-135m"]
    assert dataclasses.replace(model.config, bos_token_id=None, eos_token_ids=()) == known
    assert model.config.norm_eps == 1e-5
    assert elapsed < 15, f"took {elapsed:.1f} s of processor time; 2 are usual"
