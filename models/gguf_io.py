"""GGUF files in: quantised weights onto the same tree, as float arrays."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .assemble import Progress, StoredTensor, assemble, check_dtype, check_tensors, fill
from .config import LlamaConfig
from .errors import ConfigError, WeightsError
from .gguf_config import PERMUTED, config_from_gguf
from .gguf_format import read_gguf_header
from .llama import Llama
from .mesh import MeshLayout
from .problems import Problems

BLOCK_TENSORS = {
    "attention_norm": "attn_norm.weight",
    "q_proj": "attn_q.weight",
    "k_proj": "attn_k.weight",
    "v_proj": "attn_v.weight",
    "o_proj": "attn_output.weight",
    "q_bias": "attn_q.bias",
    "k_bias": "attn_k.bias",
    "v_bias": "attn_v.bias",
    "o_bias": "attn_output.bias",
    "q_norm": "attn_q_norm.weight",
    "k_norm": "attn_k_norm.weight",
    "mlp_norm": "ffn_norm.weight",
    "gate_proj": "ffn_gate.weight",
    "up_proj": "ffn_up.weight",
    "down_proj": "ffn_down.weight",
    "gate_bias": "ffn_gate.bias",
    "up_bias": "ffn_up.bias",
    "down_bias": "ffn_down.bias",
}
"""GGUF's name, within a block, of each parameter of a block."""

_TOP_TENSORS = {
    "embed": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
}
_ROPE_FACTORS = "rope_freqs.weight"


def load_gguf(
    path: Path | str,
    dtype: Any = jnp.float32,
    progress: Progress | None = None,
    layout: MeshLayout | None = None,
) -> Llama:
    """Read a model from a GGUF file, undoing quantisation a few megabytes at a time.

    On one device, the peak of memory is the weights in `dtype`, plus one stacked parameter where
    the device does not share the host's memory, plus a few megabytes.

    Args:
        path: A file of architecture llama (Mistral too), qwen2, qwen3 or smollm3, with tensors of
            type F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q4_K or Q6_K.
        dtype: Of the weights: float32, bfloat16 or float16.
        progress: Called as `progress(done, total)` with numbers of weights.
        layout: How the weights lie on a mesh; each process then reads only what its devices hold.
            JAX's default device by default.

    Raises:
        ConfigError: The metadata lacks a key or asks for what `Llama` does not compute.
        WeightsError: This is no GGUF file, it is cut short, one part of several, or its tensors are
            missing, unexpected, wrongly shaped or of an unsupported type. One error names all that
            is wrong.
        ValueError: `dtype` is another one.
    """
    path, dtype = Path(path), check_dtype(dtype)
    problems = Problems()
    header = read_gguf_header(path, problems)
    parts = header.metadata.get("split.count", 0)
    if parts > 1:
        raise WeightsError(
            f"{path} is one of {parts} parts. Merge them with `llama-gguf-split --merge` first."
        )
    advice = "Fetch the file anew, or convert the model to one of the supported types."
    stored = dict(header.tensors)
    factors = stored.pop(_ROPE_FACTORS, None)
    shapes = {name: tensor.shape for name, tensor in stored.items()}
    try:
        # A broken file is reported below, with all that is wrong; it need not be read for that.
        values = None if factors is None or problems else _read_factors(factors)
        config = config_from_gguf(header.metadata, shapes, values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error

    def names(parameter: str) -> list[str]:
        return gguf_tensor_names(parameter, config.num_layers)

    check_tensors(config, stored, names, problems)
    problems.raise_if_any(path, advice)
    if config.family in PERMUTED:
        for parameter, heads in _rotated_parameters(config).items():
            for name in names(parameter):
                unpair = _unpairing(heads)
                stored[name] = dataclasses.replace(stored[name], reorder=unpair)
    return assemble(config, stored, names, dtype, layout, progress)


def gguf_tensor_names(name: str, num_layers: int) -> list[str]:
    """GGUF's tensors that make one of our parameters: one, or one a layer when it is stacked."""
    if name in _TOP_TENSORS:
        return [_TOP_TENSORS[name]]
    tensor = BLOCK_TENSORS[name.removeprefix("blocks.")]
    return [f"blk.{layer}.{tensor}" for layer in range(num_layers)]


def _read_factors(tensor: StoredTensor) -> np.ndarray:
    values = np.empty(tensor.shape, np.float32)
    fill(_ROPE_FACTORS, tensor, values)
    return values


def _rotated_parameters(config: LlamaConfig) -> dict[str, int]:
    """Parameters whose rows the converter reordered, with their numbers of heads."""
    q, k = config.num_heads, config.num_kv_heads
    rotated = {"blocks.q_proj": q, "blocks.k_proj": k}
    return rotated | ({"blocks.q_bias": q, "blocks.k_bias": k} if config.qkv_bias else {})


def _unpairing(heads: int) -> Callable[[np.ndarray], None]:
    """Undo llama.cpp's order of a head's rows: pairs side by side there, half-split here.

    ```
    theirs:  0 d/2 1 d/2+1 2 ...      ours:  0 1 2 ... d/2 d/2+1 ...
    ```
    """

    def reorder(array: np.ndarray) -> None:
        paired = array.reshape(heads, array.shape[0] // heads // 2, 2, -1)
        array[...] = paired.swapaxes(1, 2).reshape(array.shape)

    return reorder
