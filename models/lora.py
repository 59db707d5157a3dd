"""Low-rank adapters (LoRA, arXiv 2106.09685), stacked over layers like the weights they go with.

A projection with weight `W [out, in]` becomes `W x + scale * B (A x)`, with `A [rank, in]` and
`B [out, rank]`. `B` starts at zero, so that at first an adapter changes nothing.
"""

import dataclasses
import zlib
from collections.abc import Sequence
from typing import get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .config import LlamaConfig
from .errors import ConfigError
from .llama import PROJECTIONS, Llama, Remat, changed, parameter_shapes, parameters_of
from .sharding import READING, Rules, product

TARGETS = tuple(PROJECTIONS)
"""Projections that can have an adapter."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Lora:
    """Adapters of some projections; one layer's, or those of all layers with a leading axis.

    Attributes:
        a: By projection, what reads: `[layers, rank, in]`.
        b: By projection, what writes: `[layers, out, rank]`.
        scale: Factor on the product, alpha / rank.
        dropout: Share of the inputs of `a` that is dropped where there is a key.
        key: Of each layer, for dropout while training; `None` drops nothing.
    """

    a: dict[str, Float[Array, "*layers rank in_"]]
    b: dict[str, Float[Array, "*layers out rank"]]
    scale: float = dataclasses.field(default=1.0, metadata={"static": True})
    dropout: float = dataclasses.field(default=0.0, metadata={"static": True})
    key: Key[Array, "*layers"] | None = None

    def added(
        self, name: str, x: Float[Array, "*batch in_"], rules: Rules = READING
    ) -> Float[Array, "*batch out"] | float:
        """What one layer's adapter adds to a projection of `x`: nothing where it has none.

        Dropout drops alike in what runs side by side under `vmap`.
        """
        if name not in self.a:
            return 0.0
        a, b = (factor.astype(x.dtype) for factor in (self.a[name], self.b[name]))
        if self.key is not None and self.dropout:
            key = jax.random.fold_in(self.key, zlib.crc32(name.encode()))
            kept = jax.random.bernoulli(key, 1 - self.dropout, x.shape)
            x = jnp.where(kept, x / (1 - self.dropout), 0)
        out, into = PROJECTIONS[name]
        return self.scale * product(product(x, a, (None, into), rules), b, (out, None), rules)


def init_lora(
    config: LlamaConfig,
    key: Key[Array, ""],
    *,
    rank: int,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Sequence[str] = TARGETS,
) -> Lora:
    """Adapters that change nothing yet: `a` uniform within 1 / sqrt(in), `b` zero; float32.

    Args:
        config: Of the decoder they are for.
        key: Of the draws.
        rank: Of each adapter.
        alpha: Numerator of the scale; the rank by default, so that the scale is 1.
        dropout: See `Lora`.
        targets: Which projections, of `TARGETS`.

    Raises:
        ConfigError: A setting has no meaning.
    """
    if rank < 1:
        raise ConfigError(f"the rank of LoRA must be at least 1, got {rank}.")
    if not 0 <= dropout < 1:
        raise ConfigError(f"dropout must lie between 0 and 1 (1 excluded), got {dropout}.")
    if unknown := [name for name in targets if name not in TARGETS]:
        raise ConfigError(f"LoRA knows no projection {unknown[0]!r}: {', '.join(TARGETS)}.")
    if not targets:
        raise ConfigError(f"LoRA needs at least one of {', '.join(TARGETS)}.")
    shapes = parameter_shapes(config)
    a, b = {}, {}
    for name, key_ in zip(targets, jax.random.split(key, len(targets)), strict=True):
        layers, out, into = shapes[f"blocks.{name}_proj"]
        bound = into**-0.5
        a[name] = jax.random.uniform(key_, (layers, rank, into), jnp.float32, -bound, bound)
        b[name] = jnp.zeros((layers, out, rank), jnp.float32)
    return Lora(a, b, (rank if alpha is None else alpha) / rank, dropout)


def with_lora(model: Llama, lora: Lora | None, key: Key[Array, ""] | None = None) -> Llama:
    """The model with adapters beside its weights, which are shared and not copied.

    Args:
        model: The decoder.
        lora: Its adapters; `None` for the model without any.
        key: Of dropout, while training.
    """
    if lora is not None and key is not None:
        lora = dataclasses.replace(lora, key=jax.random.split(key, model.config.num_layers))
    return changed(model, lora=lora)


def with_remat(model: Llama, remat: Remat) -> Llama:
    """The model with what its backward pass computes again; it shares all arrays.

    Args:
        model: The decoder.
        remat: `none`, `products` or `all`, see `Remat`.

    Raises:
        ConfigError: There is no such setting.
    """
    if remat not in get_args(Remat):
        raise ConfigError(f"there is no remat {remat!r}. Known: {', '.join(get_args(Remat))}.")
    return changed(model, remat=remat)


def merged(model: Llama, lora: Lora) -> Llama:
    """The model with adapters worked into its weights, in their dtype.

    Raises:
        ConfigError: The weights are int8, which has no room for small changes.
    """
    if model.embed_scale is not None:
        raise ConfigError("adapters cannot be merged into int8 weights: merge first, then round.")
    parameters = parameters_of(model)
    for name, a in lora.a.items():
        weight = parameters[f"blocks.{name}_proj"]
        added = lora.scale * jnp.einsum("lor,lri->loi", lora.b[name], a)
        parameters[f"blocks.{name}_proj"] = (weight + added).astype(weight.dtype)
    return changed(model, parameters=parameters, lora=None)
