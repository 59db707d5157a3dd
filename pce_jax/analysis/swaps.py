"""Oracle swaps: a context whose keys, values or both come from full attention (paper, section 5).

They tell what parallel encoding spoils. With keys swapped, the query moves to where it would start
behind the whole context, since that is where those keys expect it; with values alone it stays.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from pce_jax.cache import KV, ContextCache
from pce_jax.encode import encode
from pce_jax.errors import LayoutError
from pce_jax.layout import SegmentedContext
from pce_jax.method import Method
from pce_jax.models import Llama


def full_like(model: Llama, context: SegmentedContext, method: Method = Method()) -> ContextCache:
    """The cache of full attention over the same tokens, laid out in segments.

    Queries over it get what full attention gives (behind the same sink, if there is one), and its
    keys and values stand where those of `encode(model, context, method)` stand.

    Args:
        model: The decoder.
        context: From `pack` or `split`.
        method: As in `encode`.

    Raises:
        LayoutError: The whole context reaches past the model's positions.
        MethodError: The method wants a sink and the context was packed without one.

    Example:
        >>> full = pce.analysis.full_like(model, context)
        >>> full.segments.k.shape == cache.segments.k.shape, int(full.query_start)
        (True, 11)
    """
    cache = encode(model, context, dataclasses.replace(method, full=True))
    return _lay_out(cache, jnp.asarray(context.lengths), context.segments.shape[1])


def swap(
    cache: ContextCache, other: ContextCache, *, keys: bool = True, values: bool = True
) -> ContextCache:
    """Put another cache's keys, values or both into a cache of the same tokens.

    Args:
        cache: The cache to change; it is not changed itself.
        other: Where to take them from, sink included: `full_like` of the same context.
        keys: Take the keys, and with them the position at which the query starts.
        values: Take the values.

    Raises:
        LayoutError: The caches differ in shape.

    Example:
        >>> full = pce.analysis.full_like(model, context)
        >>> swapped = pce.analysis.swap(cache, full, values=False)
        >>> int(cache.query_start), int(swapped.query_start)
        (6, 11)
    """
    for name in ("sink", "segments"):
        here, there = getattr(cache, name).k.shape, getattr(other, name).k.shape
        if here != there:
            raise LayoutError(
                f"caches of different contexts cannot be swapped: {name} {here} here and {there} "
                "there. Make the other one with full_like(model, context, method), from the "
                "context that this one was encoded from."
            )

    def mixed(here: KV, there: KV) -> KV:
        return KV(there.k if keys else here.k, there.v if values else here.v)

    return ContextCache(
        mixed(cache.sink, other.sink),
        mixed(cache.segments, other.segments),
        cache.lengths,
        other.query_start if keys else cache.query_start,
    )


@functools.partial(jax.jit, static_argnames="tokens")
def _lay_out(cache: ContextCache, lengths: Int[Array, " segments"], tokens: int) -> ContextCache:
    """Cut the one segment of a cache back into segments of `tokens` slots."""
    starts = jnp.cumsum(lengths) - lengths
    slots = starts[:, None] + jnp.arange(tokens)
    slots = jnp.minimum(slots, cache.segments.k.shape[-2] - 1)  # padding may hold anything
    segments = jax.tree.map(lambda x: x[:, :, 0, slots], cache.segments)
    return dataclasses.replace(cache, segments=segments, lengths=lengths)
