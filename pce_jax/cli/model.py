"""Loading a model while saying so."""

from typing import TYPE_CHECKING, Any

from .console import progress

if TYPE_CHECKING:
    from pce_jax.models import Llama


def load_model(name: str, dtype: str | None = None) -> "tuple[Llama, Any]":
    """Load a model and its tokenizer behind a progress bar.

    Args:
        name: See `pce_jax.hub.resolve`.
        dtype: Of weights and activations; by default float32 on CPU and bfloat16 elsewhere.

    Raises:
        PceError, ModelError: See `pce_jax.load`.
    """
    import pce_jax as pce

    with progress(f"Loading {name}") as report:
        return pce.load(name, dtype=dtype, progress=lambda done, total: report(done, total, ""))
