"""The two key/value caches: an encoded context, and a query's own growing tail."""

import dataclasses
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Int8

from .errors import LayoutError
from .models import Llama
from .models.sharding import Axis, shard


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KV:
    """Rotated keys and values, heads first so that attention reads them without a transpose.

    Attributes:
        k: Keys, `[*axes, kv_heads, tokens, head_dim]` (segments add an axis before `tokens`).
        v: Values, shaped like the keys.
        k_scale: Of int8 keys, what a unit of each token's key stands for, float32.
        v_scale: The same of int8 values.
    """

    k: Float[Array, "*axes tokens head_dim"] | Int8[Array, "*axes tokens head_dim"]
    v: Float[Array, "*axes tokens head_dim"] | Int8[Array, "*axes tokens head_dim"]
    k_scale: Float[Array, "*axes tokens"] | None = None
    v_scale: Float[Array, "*axes tokens"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContextCache:
    """An encoded context. Never changed by queries, so that any number of them can share it.

    Attributes:
        sink: Of the shared prefix, `[layers, kv_heads, sink, head_dim]`.
        segments: Of the segments, `[layers, kv_heads, segments, tokens, head_dim]`.
        lengths: Tokens in each segment; the slots behind them hold padding.
        query_start: Position of the first query token.
        sharpness: Factor on each layer's and query head's logits with the segments' keys, 1 /
            temperature; `None` for 1. Learned by fine-tuning.
    """

    sink: KV
    segments: KV
    lengths: Int[Array, " segments"]
    query_start: Float[Array, ""]
    sharpness: Float[Array, "layers heads"] | None = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Tail:
    """Cache of query and generated tokens, preallocated so that it grows without recompiling.

    Attributes:
        kv: `[layers, kv_heads, capacity, head_dim]`; slots from `length` on are free.
        length: Tokens stored so far.
    """

    kv: KV
    length: Int[Array, ""]

    @property
    def capacity(self) -> int:
        """Tokens it can hold."""
        return self.kv.k.shape[-2]


Store = Literal["bfloat16", "int8"]


def compress(cache: ContextCache, store: Store) -> ContextCache:
    """A cache whose segments take half (`bfloat16`) or a good quarter (`int8`) of float32's room.

    With int8, each key and each value of a token is scaled by its own largest number. The sink,
    which every query looks at, stays as it is. `encode(..., store=...)` does the same layer by
    layer, so that no larger cache is ever there.

    Args:
        cache: From `encode` or `encode_many`.
        store: What to keep keys and values as. Attention widens them again, a layer at a time.

    Raises:
        LayoutError: There is no such way to store, or the cache is compressed already.

    Example:
        >>> small = pce.compress(cache, "int8")
        >>> small.segments.k.dtype
        dtype('int8')
    """
    check_store(store)
    if cache.segments.k_scale is not None:
        raise LayoutError("the cache is int8 already. Compress the one that encode gave.")
    return dataclasses.replace(cache, segments=compressed(cache.segments, store))


def check_store(store: Store | None) -> None:
    """Refuse a way to store that there is not.

    Raises:
        LayoutError: There is no such way.
    """
    if store is not None and store not in get_args(Store):
        raise LayoutError(
            f"cannot store a cache as {store!r}. Known: {', '.join(get_args(Store))}."
        )


def compressed(kv: KV, store: Store | None) -> KV:
    """Keys and values as a cache stores them.

    Args:
        kv: Not compressed.
        store: As in `compress`; `None` for what they are.
    """
    if store is None:
        return kv
    if store == "bfloat16":
        return KV(kv.k.astype(jnp.bfloat16), kv.v.astype(jnp.bfloat16))
    (k, k_scale), (v, v_scale) = _to_int8(kv.k), _to_int8(kv.v)
    return KV(k, v, k_scale, v_scale)


def widened(kv: KV, dtype: jnp.dtype) -> KV:
    """Keys and values as attention reads them.

    Args:
        kv: Compressed or not.
        dtype: Of the queries.
    """
    if kv.k_scale is None or kv.v_scale is None:
        return KV(kv.k.astype(dtype), kv.v.astype(dtype))
    k, v = (
        (x.astype(jnp.float32) * scale[..., None]).astype(dtype)
        for x, scale in ((kv.k, kv.k_scale), (kv.v, kv.v_scale))
    )
    return KV(k, v)


def _to_int8(x: Array) -> tuple[Array, Array]:
    wide = x.astype(jnp.float32)
    scale = jnp.max(jnp.abs(wide), axis=-1) / 127
    units = wide / jnp.maximum(scale, jnp.finfo(jnp.float32).tiny)[..., None]
    return jnp.round(units).astype(jnp.int8), scale


def empty_tail(model: Llama, capacity: int) -> Tail:
    """A tail for up to `capacity` query and generated tokens.

    Example:
        >>> tail = pce.empty_tail(model, 64)
        >>> first = pce.query(model, cache, jnp.array([1, 2, 3]), tail=tail)
        >>> second = pce.query(model, cache, jnp.array([4]), tail=first.tail)
        >>> int(second.tail.length)
        4
    """
    return Tail(empty_kv(model, capacity), jnp.zeros((), jnp.int32))


KV_AXES: tuple[Axis | None, ...] = (None, "kv_heads", None, None)
"""What the axes of a sink's or tail's keys and values mean."""


def empty_kv(model: Llama, tokens: int) -> KV:
    """Zeros for `tokens` tokens in every layer, `[layers, kv_heads, tokens, head_dim]`."""
    config = model.config
    shape = (config.num_layers, config.num_kv_heads, tokens, config.head_dim)
    zeros = shard(jnp.zeros(shape, model.dtype), KV_AXES, model.rules)
    return KV(zeros, zeros)
