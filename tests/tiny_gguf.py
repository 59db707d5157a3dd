"""GGUF files of tiny models, written as llama.cpp's converter lays them out."""

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from pce_jax.models import LlamaConfig
from pce_jax.models.gguf_io import gguf_tensor_names

K_BLOCKS = {"Q4_K": (144, (0, 2)), "Q6_K": (210, (208,))}
"""Bytes of a block of 256, and where its float16 scales are."""


def paired_rows(array: np.ndarray, heads: int) -> np.ndarray:
    """Rows of each head in llama.cpp's order, 0 d/2 1 d/2+1 ...; spelled out row by row."""
    size = len(array) // heads
    order = [
        h * size + half + i
        for h in range(heads)
        for i in range(size // 2)
        for half in (0, size // 2)
    ]
    return array[order]


def gguf_tensors(
    config: LlamaConfig, parameters: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Arrays by GGUF's names, a layer each, queries and keys reordered where llama.cpp does so."""
    heads = {"q": config.num_heads, "k": config.num_kv_heads}
    tensors = {}
    for name, array in parameters.items():
        layers = array if name.startswith("blocks.") else array[None]
        kind = name.removeprefix("blocks.")
        if config.family in ("llama", "smollm3") and kind in (
            "q_proj",
            "k_proj",
            "q_bias",
            "k_bias",
        ):
            layers = [paired_rows(layer, heads[kind[0]]) for layer in layers]
        names = gguf_tensor_names(name, config.num_layers)
        tensors |= dict(zip(names, layers, strict=True))
    return tensors


def write_gguf(
    path: Path,
    config: LlamaConfig,
    tensors: Mapping[str, np.ndarray],
    kind: str = "F32",
    *,
    metadata: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
) -> dict[str, np.ndarray]:
    """Write a file, matrices in type `kind` and vectors in float32.

    Args:
        path: To be made.
        config: Gives the metadata.
        tensors: Arrays by GGUF's names.
        kind: A quantisation; the K ones get random blocks, for nothing in Python quantises to them.
        metadata: More keys, or others; the architecture is put in front of all but `tokenizer.*`
            and `split.*`.
        without: Keys to leave out, spelled like those.

    Returns:
        What the tensors are once quantised, by the `gguf` package's account.
    """
    quantization = gguf.GGMLQuantizationType[kind]
    writer = gguf.GGUFWriter(path, config.family)
    keys: dict[str, Any] = {
        "block_count": config.num_layers,
        "context_length": config.max_positions,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_heads,
        "attention.head_count_kv": config.num_kv_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        "attention.layer_norm_rms_epsilon": config.norm_eps,
        "rope.freq_base": config.rope.theta,
        "rope.dimension_count": config.head_dim,
    } | dict(metadata or {})
    add = {int: writer.add_uint32, float: writer.add_float32, str: writer.add_string}
    add |= {list: writer.add_array, bool: writer.add_bool}
    for key, value in keys.items():
        whole = key.startswith(("tokenizer.", "split."))
        if key not in without:
            add[type(value)](key if whole else f"{config.family}.{key}", value)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    if config.eos_token_ids:
        writer.add_eos_token_id(config.eos_token_ids[0])
    writer.add_token_list([f"token {number}" for number in range(config.vocab_size)])
    stored = {}
    for name, array in tensors.items():
        if array.ndim == 1 or kind == "F32":
            writer.add_tensor(name, np.ascontiguousarray(array))
            stored[name] = array
            continue
        data = (
            _random_blocks(array, kind) if kind in K_BLOCKS else gguf.quantize(array, quantization)
        )
        writer.add_tensor(name, data, raw_dtype=quantization)
        stored[name] = gguf.dequantize(data, quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return stored


def _random_blocks(array: np.ndarray, kind: str) -> np.ndarray:
    size, scales = K_BLOCKS[kind]
    draw = np.random.default_rng(array.size)
    blocks = draw.integers(0, 256, (array.size // 256, size), dtype=np.uint8)
    for at in scales:
        scale = draw.uniform(0.01, 0.1, (len(blocks), 1)).astype(np.float16)
        blocks[:, at : at + 2] = scale.view(np.uint8)
    return blocks.reshape(len(array), -1)
