"""From a name to a model and its tokenizer, ready to use."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from pce_jax.hub.resolve import resolve
from pce_jax.hub.tokenizer import load_tokenizer
from pce_jax.models import Llama, MeshLayout, load_folder, load_gguf

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def load(
    name: str = "smollm2-135m",
    *,
    dtype: jnp.dtype | str | None = None,
    layout: MeshLayout | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> "tuple[Llama, PreTrainedTokenizerBase]":
    """Load a model and its tokenizer, downloading them if need be.

    Args:
        name: `smollm2-135m` (embedded), a Hugging Face id, a local folder or a `.gguf` file; see
            `resolve`.
        dtype: Dtype of weights and activations; float32 on CPU and bfloat16 on accelerators by
            default.
        layout: How the weights lie on a mesh of devices; one device by default.
        progress: Called with the number of parameters read and their total.

    Raises:
        UnknownModelError: Nothing goes by this name.
        ModelFolderError, ConfigError, WeightsError, TokenizerError: What is there cannot be loaded.
        DownloadError, CacheError: It had to be fetched and could not be.

    Example:
        >>> model, tokenizer = pce.load("smollm2-135m")
        >>> model.config.num_layers
        30
    """
    source = resolve(name)
    dtype = default_dtype() if dtype is None else dtype
    read = load_gguf if source.kind == "gguf" else load_folder
    model = read(source.path, jnp.dtype(dtype), progress=progress, layout=layout)
    return model, load_tokenizer(source)


def default_dtype() -> jnp.dtype:
    """What a model is loaded as where nothing else is asked for: bfloat16, but on CPUs float32."""
    return jnp.dtype(jnp.float32 if jax.default_backend() == "cpu" else jnp.bfloat16)
