"""Tiny models in Hugging Face's spelling, one per property of the decoder.

The weights are made here, bit for bit the same on every machine, by the recorder (`record.py`), the
live tests and the recorded tests alike: so the fixtures hold logits only. They are large enough for
attention to be far from uniform, norms are not 1 and biases are not 0: a part that is left out or
misread shows.
"""

import dataclasses
import json
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

LENGTH = 160
RECORDED = slice(5, None, 7)
"""Positions whose logits are recorded: every seventh, the last one among them."""

FIXTURES = Path(__file__).parent.parent / "fixtures"


@dataclasses.dataclass(frozen=True)
class Case:
    """One model: its `config.json`, and where its tokens are.

    Attributes:
        name: The family, then the property that the case is about.
        hf: The object in `config.json`.
        step: Distance between the positions of neighbouring tokens; may be fractional.
    """

    name: str
    hf: dict[str, Any]
    step: float = 1.0

    @property
    def family(self) -> str:
        return self.hf["model_type"]

    @property
    def tokens(self) -> np.ndarray:
        """Token ids `[1, LENGTH]`."""
        raw = np.random.PCG64(zlib.crc32(self.name.encode())).random_raw(LENGTH)
        return (raw % np.uint64(self.hf["vocab_size"])).astype(np.int32)[None]

    @property
    def positions(self) -> np.ndarray:
        """Positions of the tokens, float32 `[1, LENGTH]`."""
        return (np.arange(LENGTH) * self.step).astype(np.float32)[None]


def _case(name: str, step: float = 1.0, **fields: Any) -> Case:
    tiny = {
        "model_type": name.partition("/")[0],
        "vocab_size": 97,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": None,
    }
    kept = {key: value for key, value in (tiny | fields).items() if value is not _ABSENT}
    return Case(name, kept, step)


_ABSENT = object()
_LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3 |= {"original_max_position_embeddings": 32}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
_YARN |= {"beta_fast": 1.0, "beta_slow": 0.25}  # of 32 positions, so that the ramp has an inside
_OLD_YARN = {"type" if key == "rope_type" else key: value for key, value in _YARN.items()}


CASES = (
    _case("llama/square", num_key_value_heads=4),
    _case("llama/kv_heads_left_out", num_key_value_heads=_ABSENT),
    _case("llama/non_square", head_dim=16),
    _case("llama/one_kv_head_tied", head_dim=16, num_key_value_heads=1, tie_word_embeddings=True),
    _case("llama/attention_bias", head_dim=16, attention_bias=True),
    _case("llama/mlp_bias", mlp_bias=True),
    _case("llama/norm_eps", rms_norm_eps=0.3),
    _case("llama/gelu", hidden_act="gelu"),
    _case("llama/gelu_tanh", hidden_act="gelu_pytorch_tanh"),
    _case("llama/theta_v4", rope_theta=300.0, rope_scaling=None, torch_dtype="float32"),
    _case(
        "llama/theta_v5",
        rope_parameters={"rope_type": "default", "rope_theta": 300.0},
        dtype="float32",
    ),
    _case("llama/linear_v4", rope_scaling={"type": "linear", "factor": 3.0}),
    _case(
        "llama/linear_v5",
        rope_parameters={"rope_type": "linear", "factor": 2.5, "rope_theta": 500.0},
    ),
    _case("llama/llama3_v4", head_dim=16, rope_theta=5000.0, rope_scaling=_LLAMA3),
    _case(
        "llama/llama3_v5",
        head_dim=16,
        rope_parameters=_LLAMA3
        | {"rope_theta": 700.0, "factor": 32.0, "low_freq_factor": 0.7, "high_freq_factor": 9.0},
    ),
    _case("llama/llama3_strided", step=11.0, head_dim=16, rope_theta=5000.0, rope_scaling=_LLAMA3),
    _case("llama/yarn_v4", head_dim=16, rope_theta=5000.0, rope_scaling=_OLD_YARN),
    _case("llama/yarn_v5", head_dim=16, rope_parameters=_YARN | {"rope_theta": 700.0}),
    _case(
        "llama/yarn_defaults",  # window and betas left out
        head_dim=24,
        rope_parameters={"rope_type": "yarn", "factor": 4.0, "rope_theta": 50.0},
    ),
    _case(
        "llama/yarn_attention_factor",
        head_dim=16,
        rope_parameters=_YARN | {"rope_theta": 700.0, "attention_factor": 1.4},
    ),
    _case(
        "llama/yarn_mscale",
        head_dim=16,
        rope_parameters=_YARN | {"rope_theta": 700.0, "mscale": 2.5, "mscale_all_dim": 0.5},
    ),
    _case(
        "llama/yarn_one_mscale",  # without its partner it counts for nothing
        head_dim=16,
        rope_parameters=_YARN | {"rope_theta": 700.0, "mscale": 2.5},
    ),
    _case(
        "llama/yarn_not_truncated",
        head_dim=16,
        rope_parameters=_YARN | {"rope_theta": 700.0, "truncate": False},
    ),
    _case(
        "llama/yarn_fractional",
        step=0.75,
        head_dim=16,
        rope_parameters=_YARN | {"rope_theta": 700.0},
    ),
    _case(
        "llama/window_outside",  # of rope_parameters: it wins
        head_dim=16,
        original_max_position_embeddings=48,
        rope_parameters=_LLAMA3 | {"rope_theta": 700.0},
    ),
    _case("mistral/no_window", head_dim=16, sliding_window=None, rope_theta=1000.0),
    _case(
        "mistral/idle_window", max_position_embeddings=160, sliding_window=160, hidden_act="gelu"
    ),
    _case("qwen2/tied", tie_word_embeddings=True, use_sliding_window=False, sliding_window=8),
    _case("qwen2/yarn", head_dim=16, rope_theta=5000.0, rope_scaling=_OLD_YARN),
    _case("qwen3/non_square", head_dim=16, rms_norm_eps=0.05, layer_types=["full_attention"] * 2),
    _case("qwen3/head_dim_left_out", num_attention_heads=2, num_key_value_heads=1),
    _case(
        "qwen3/biases_tied",
        head_dim=16,
        attention_bias=True,
        tie_word_embeddings=True,
        rope_parameters=_LLAMA3 | {"rope_theta": 700.0},
    ),
    _case("smollm3/every_fourth_tied", num_hidden_layers=5, tie_word_embeddings=_ABSENT),
    _case(
        "smollm3/every_second", num_hidden_layers=3, head_dim=16, no_rope_layer_interval=2,
        rope_theta=3000.0, use_sliding_window=False,
    ),
    _case(
        "smollm3/listed_yarn_biases",
        num_hidden_layers=3,
        head_dim=16,
        no_rope_layers=[0, 1, 0],
        attention_bias=True,
        mlp_bias=True,
        rope_parameters=_YARN | {"rope_theta": 700.0, "attention_factor": 1.4},
    ),
)  # fmt: skip

BY_NAME = {case.name: case for case in CASES}


def weights(case: Case) -> dict[str, np.ndarray]:
    """Every tensor of the case under its Hugging Face name, float32; independent of the library."""
    hf = case.hf
    d, mlp, layers = hf["hidden_size"], hf["intermediate_size"], hf["num_hidden_layers"]
    heads = hf["num_attention_heads"]
    head_dim = hf.get("head_dim", 128 if case.family == "qwen3" else d // heads)
    q, kv = heads * head_dim, hf.get("num_key_value_heads", heads) * head_dim
    qkv_bias = case.family == "qwen2" or hf.get("attention_bias", False)
    out_bias = case.family != "qwen2" and hf.get("attention_bias", False)
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (hf["vocab_size"], d)}
    for layer in range(layers):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{at}.{norm}.weight"] = (d,)
        for name, size in (("q", q), ("k", kv), ("v", kv)):
            shapes[f"{at}.self_attn.{name}_proj.weight"] = (size, d)
            if qkv_bias:
                shapes[f"{at}.self_attn.{name}_proj.bias"] = (size,)
        shapes[f"{at}.self_attn.o_proj.weight"] = (d, q)
        if out_bias:
            shapes[f"{at}.self_attn.o_proj.bias"] = (d,)
        if case.family == "qwen3":
            shapes[f"{at}.self_attn.q_norm.weight"] = (head_dim,)
            shapes[f"{at}.self_attn.k_norm.weight"] = (head_dim,)
        for name, out, inside in (("gate", mlp, d), ("up", mlp, d), ("down", d, mlp)):
            shapes[f"{at}.mlp.{name}_proj.weight"] = (out, inside)
            if hf.get("mlp_bias", False):
                shapes[f"{at}.mlp.{name}_proj.bias"] = (out,)
    shapes["model.norm.weight"] = (d,)
    if not hf.get("tie_word_embeddings", case.family == "smollm3"):
        shapes["lm_head.weight"] = (hf["vocab_size"], d)
    return {name: _tensor(name, shape) for name, shape in shapes.items()}


def write_folder(case: Case, folder: Path, files: int = 1) -> Path:
    """Write the case as Hugging Face does: `config.json`, and safetensors as one file or several.

    Args:
        case: What to write.
        folder: Where to; created.
        files: Number of safetensors files; with more than one, an index lists them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(case.hf))
    tensors = weights(case)
    if files == 1:
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return folder
    where = {}
    for index in range(files):
        file = f"model-{index + 1:05d}-of-{files:05d}.safetensors"
        part = dict(list(tensors.items())[index::files])
        save_file(part, folder / file, metadata={"format": "pt"})
        where |= dict.fromkeys(part, file)
    total = sum(tensor.nbytes for tensor in tensors.values())
    index = {"metadata": {"total_size": total}, "weight_map": where}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def _tensor(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform numbers from the stream that the tensor's name seeds."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(math.prod(shape))
    uniform = (raw >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    centre, spread = _distribution(name, shape)
    return (np.float32(centre) + np.float32(spread) * uniform).reshape(shape)


def _distribution(name: str, shape: tuple[int, ...]) -> tuple[float, float]:
    """Centre and half width: projections have the deviation `gain / sqrt(in)`."""
    if "q_norm" in name or "k_norm" in name:
        return 1.3, 0.4
    if "norm" in name:
        return 1.0, 0.4
    if name.endswith("bias"):
        return 0.0, 0.5
    if "embed" in name:
        return 0.0, 1.0
    gain = 1.6 if "q_proj" in name or "k_proj" in name else 1.0
    return 0.0, gain * math.sqrt(3 / shape[-1])
