"""The two key/value caches: an encoded context, and a query's own growing tail."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .models import Llama
from .models.config import LlamaConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KV:
    """Rotated keys and values, heads first so that attention reads them without a transpose.

    Attributes:
        k: Keys, `[*axes, kv_heads, tokens, head_dim]` (segments add an axis before `tokens`).
        v: Values, shaped like the keys.
    """

    k: Float[Array, "*axes tokens head_dim"]
    v: Float[Array, "*axes tokens head_dim"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContextCache:
    """An encoded context. Never changed by queries, so that any number of them can share it.

    Attributes:
        sink: Of the shared prefix, `[layers, kv_heads, sink, head_dim]`.
        segments: Of the segments, `[layers, kv_heads, segments, tokens, head_dim]`.
        lengths: Tokens in each segment; the slots behind them hold padding.
        query_start: Position of the first query token.
    """

    sink: KV
    segments: KV
    lengths: Int[Array, " segments"]
    query_start: Float[Array, ""]


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


def empty_tail(model: Llama, capacity: int) -> Tail:
    """A tail for up to `capacity` query and generated tokens.

    Example:
        >>> tail = pce.empty_tail(model, 64)
        >>> first = pce.query(model, cache, jnp.array([1, 2, 3]), tail=tail)
        >>> second = pce.query(model, cache, jnp.array([4]), tail=first.tail)
        >>> int(second.tail.length)
        4
    """
    return Tail(empty_kv(model.config, capacity, model.dtype), jnp.zeros((), jnp.int32))


def empty_kv(config: LlamaConfig, tokens: int, dtype: jnp.dtype) -> KV:
    """Zeros for `tokens` tokens in every layer, `[layers, kv_heads, tokens, head_dim]`."""
    shape = (config.num_layers, config.num_kv_heads, tokens, config.head_dim)
    return KV(jnp.zeros(shape, dtype), jnp.zeros(shape, dtype))
