"""Weights in int8: a quarter of float32's memory, half of bfloat16's."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int8

from .errors import WeightsError
from .llama import Llama, changed, parameters_of


def to_int8(model: Llama) -> Llama:
    """A model whose projections and embeddings are int8, each output channel with its own scale.

    Norms and biases stay as they are, and so do the activations. It is for reading and generating:
    int8 has no slopes, and such a model is not saved (save the one that it is made of).

    Args:
        model: The decoder, in any float dtype.

    Raises:
        WeightsError: It is int8 already.

    Example:
        >>> small = pce.models.to_int8(model)
        >>> small.blocks.q_proj.dtype, small.dtype
        (dtype('int8'), dtype('float32'))
    """
    if model.embed_scale is not None:
        raise WeightsError("the model is int8 already.")
    parameters: dict[str, Array] = {}
    for name, value in parameters_of(model).items():
        if name.endswith(("norm", "bias")):
            parameters[name] = value
        else:
            scale = f"{name.removesuffix('_proj')}_scale"
            parameters[name], parameters[scale] = _rounded(value)
    return changed(model, parameters=parameters)


def _rounded(
    weight: Float[Array, "*layers out in_"],
) -> tuple[Int8[Array, "*layers out in_"], Float[Array, "*layers out"]]:
    wide = weight.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / 127
    units = wide / jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)[..., None]
    return jnp.round(units).astype(jnp.int8), scale.astype(weight.dtype)
