"""What a model is, from its headers: nothing of its weights is read."""

from pathlib import Path
from typing import Any

from pce_jax.errors import USER_ERRORS
from pce_jax.hub import load_tokenizer, resolve
from pce_jax.hub.source import Source
from pce_jax.models import LlamaConfig
from pce_jax.models.gguf_config import config_from_gguf
from pce_jax.models.gguf_format import read_gguf_header
from pce_jax.models.problems import Problems
from pce_jax.models.safetensors_reader import load_config


def inspect_model(name: str) -> dict[str, Any]:
    """Size and shape of a model, or `{"error": ...}`.

    Args:
        name: See `pce_jax.hub.resolve`; it is fetched if need be.
    """
    try:
        source = resolve(name)
        config = _config(source)
        tokenizer = load_tokenizer(source)
    except USER_ERRORS as error:
        return {"name": name, "error": str(error)}
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_dim
    return {
        "name": name,
        "path": str(source.path),
        "family": config.family,
        "parameters": config.num_parameters,
        "layers": config.num_layers,
        "heads": f"{config.num_heads} (key/value: {config.num_kv_heads})",
        "positions": config.max_positions,
        "weights": f"{config.num_parameters * 4 / 2**20:.0f} MiB in float32, half in bfloat16",
        "cache": f"{per_token * 4 / 2**10:.0f} KiB a token in float32",
        "vocabulary": f"{config.vocab_size}, tokenizer {len(tokenizer)}",
        "chat template": "yes" if tokenizer.chat_template else "no",
    }


def _config(source: Source) -> LlamaConfig:
    path: Path = source.path
    if source.kind == "folder":
        return load_config(path)
    header = read_gguf_header(path, Problems())
    shapes = {name: tensor.shape for name, tensor in header.tensors.items()}
    return config_from_gguf(header.metadata, shapes)
