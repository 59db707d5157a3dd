"""Loading a model while saying so."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .console import progress

if TYPE_CHECKING:
    from pce_jax.models import Llama, MeshLayout


def load_model(
    name: str,
    dtype: str | None = None,
    weights: Literal["int8"] | None = None,
    adapters: Path | None = None,
    layout: "MeshLayout | None" = None,
) -> "tuple[Llama, Any]":
    """Load a model and its tokenizer behind a progress bar.

    Args:
        name: See `pce_jax.hub.resolve`.
        dtype: Of weights and activations; by default float32 on CPU and bfloat16 elsewhere.
        weights: Keep the weights smaller than `dtype`, see `pce_jax.models.to_int8`.
        adapters: Folder of adapters to put on them, see `pce_jax.load_adapters`.
        layout: How the weights lie on a mesh of devices.

    Raises:
        PceError, ModelError: See `pce_jax.load`.
    """
    import pce_jax as pce
    from pce_jax.models import to_int8

    with progress(f"Loading {name}") as report:
        model, tokenizer = pce.load(
            name, dtype=dtype, layout=layout, progress=lambda done, total: report(done, total, "")
        )
    model = model if weights is None else to_int8(model)
    if adapters is not None:
        model = pce.with_adapters(model, pce.load_adapters(adapters, model.config))
    return model, tokenizer


def random_model(shapes: str, dtype: str | None = None) -> "Llama":
    """A model of random weights, made where jax computes.

    Args:
        shapes: A key of `pce_jax.models.SHAPES`.
        dtype: Of weights and activations; by default float32 on CPU and bfloat16 elsewhere.
    """
    import jax

    from pce_jax.hub.load import default_dtype
    from pce_jax.models import SHAPES, init

    make = jax.jit(lambda key: init(SHAPES[shapes], key, dtype or default_dtype()))
    return make(jax.random.key(0))
