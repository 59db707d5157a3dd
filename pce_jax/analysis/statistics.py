"""What attention did, token by token: entropy, logits, norms and masses (paper, section 3).

The statistics of a token come out of the same function that mixes its values, row by row, so that
no array of heads x tokens x keys ever exists; they are those of the published code, but for the
cosine, which is not divided by the square root of the head's width here.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from pce_jax.attention import HIDDEN, Entropy, Keys, by_token
from pce_jax.cache import KV, ContextCache, Tail, empty_tail
from pce_jax.encode import check_context, encoder, read_context
from pce_jax.layout import SegmentedContext
from pce_jax.method import Method
from pce_jax.models import Llama
from pce_jax.query import check_room
from pce_jax.query_pass import read_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Statistics:
    """Of every layer, head and token, in float32; 0 at padding.

    The tokens' axes are `[tokens]` for a query and `[segments, tokens]` for the segments of a
    context. Query heads that share a key head share its row of `k`, `v` and `k_norm`. Queries and
    keys are taken after rotation.

    Attributes:
        entropy: Nats, over all visible keys, after selection.
        logit: Mean size of the logits, `|logit|`, over visible keys, before selection.
        cosine: Mean cosine of the angle between the query and its visible keys.
        q: Mean `|q|` of the query's numbers.
        q_norm: Its L2 norm.
        k: Mean `|k|` of the numbers of the token's own key.
        k_norm: Its L2 norm.
        v: Mean `|v|` of the numbers of the token's own value.
        output: Mean `|output|` of what the head mixed.
        sink_mass: Attention to the sink, after selection as all masses.
        segment_mass: Attention to each segment; for tokens of a segment, to their own, the only
            one that they see.
        tail_mass: Attention to the query's own tokens; 0 for tokens of a segment.
        valid: Which tokens are not padding.
    """

    entropy: Entropy
    logit: Float[Array, "layers heads *tokens"]
    cosine: Float[Array, "layers heads *tokens"]
    q: Float[Array, "layers heads *tokens"]
    q_norm: Float[Array, "layers heads *tokens"]
    k: Float[Array, "layers kv_heads *tokens"]
    k_norm: Float[Array, "layers kv_heads *tokens"]
    v: Float[Array, "layers kv_heads *tokens"]
    output: Float[Array, "layers heads *tokens"]
    sink_mass: Float[Array, "layers heads *tokens"]
    segment_mass: Float[Array, "layers heads *tokens segments"]
    tail_mass: Float[Array, "layers heads *tokens"]
    valid: Bool[Array, "*tokens"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ContextStatistics:
    """Of the tokens of a context while they are encoded.

    Attributes:
        sink: Of the sink's tokens, `[layers, heads, sink]`; `None` without a sink. To themselves
            they are the segment.
        segments: Of the segments' tokens, `[layers, heads, segments, tokens]`.
    """

    sink: Statistics | None
    segments: Statistics


def analyze_query(
    model: Llama,
    cache: ContextCache,
    tokens: Int[Array | np.ndarray, " tokens"] | Sequence[int],
    method: Method = Method(),
    *,
    length: Int[Array, ""] | int | None = None,
) -> Statistics:
    """Statistics of query tokens that read an encoded context.

    Args:
        model: The decoder.
        cache: From `encode`.
        tokens: Token ids of the query.
        method: As in `query`.
        length: Number of real tokens; all by default.

    Returns:
        Statistics of axes `[layers, heads, tokens]`; masses of segments have one more at the end.

    Raises:
        LayoutError: The tokens reach past the model's positions.

    Example:
        >>> found = pce.analysis.analyze_query(model, cache, jnp.array([1, 2, 3]))
        >>> found.logit.shape, found.segment_mass.shape  # layers, heads, tokens, segments
        ((30, 9, 3), (30, 9, 3, 2))
    """
    tokens = jnp.asarray(tokens)
    tail = empty_tail(model, tokens.shape[0])
    length = jnp.asarray(tokens.shape[0] if length is None else length)
    check_room(model, cache, tail, tokens.shape[0], length)
    return _analyze_query(model, cache, tail, tokens, length, method)


def analyze_segments(
    model: Llama, context: SegmentedContext, method: Method = Method()
) -> ContextStatistics:
    """Statistics of a context's own tokens while `encode` reads them.

    Args:
        model: The decoder.
        context: From `pack` or `split`.
        method: As in `encode`; `full` reads the segments as one.

    Raises:
        LayoutError: The context reaches past the model's positions.
        MethodError: The method wants a sink and the context was packed without one.

    Example:
        >>> found = pce.analysis.analyze_segments(model, context)
        >>> found.segments.entropy.total.shape  # layers, heads, segments, tokens (padded)
        (30, 9, 2, 16)
    """
    return encode_and_analyze(model, context, method)[1]


def encode_and_analyze(
    model: Llama, context: SegmentedContext, method: Method = Method()
) -> tuple[ContextCache, ContextStatistics]:
    """`encode` and `analyze_segments` in one pass."""
    check_context(model, context, method)
    return _analyze_segments(model, context, encoder(method))


@functools.partial(jax.jit, static_argnames="method")
def _analyze_query(
    model: Llama, cache: ContextCache, tail: Tail, tokens: Array, length: Array, method: Method
) -> Statistics:
    _, tail, rows = read_tokens(model, cache, tail, tokens, length, method, _attention)
    valid = jnp.arange(tokens.shape[0]) < length
    return _assemble(rows, tail.kv, valid)


@functools.partial(jax.jit, static_argnames="method")
def _analyze_segments(
    model: Llama, context: SegmentedContext, method: Method
) -> tuple[ContextCache, ContextStatistics]:
    cache, of_sink, of_segments = read_context(model, context, method, _attention)
    sink = None
    if of_sink is not None:
        sink = _assemble(of_sink, cache.sink, jnp.ones(context.sink.shape, bool), alone=True)
    by_layer = jax.tree.map(lambda x: jnp.moveaxis(x, 0, 1), of_segments)
    valid = jnp.arange(cache.segments.k.shape[-2]) < cache.lengths[:, None]
    segments = _assemble(by_layer, cache.segments, valid, alone=True)
    return cache, ContextStatistics(sink, segments)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _Row:
    """What one token's attention leaves: by head, and the groups' masses `[heads, groups]`."""

    entropy: Entropy
    logit: Array
    cosine: Array
    q: Array
    q_norm: Array
    output: Array
    masses: Array


def _measure(
    q: Float[Array, "heads head_dim"],
    groups: Sequence[Keys],
    row: Int[Array, ""],
    reweigh: Callable[[list[Array]], list[Array]] | None = None,
) -> tuple[Float[Array, "heads head_dim"], _Row]:
    """`mix`, but it keeps all statistics. The first group is the sink."""
    weights = by_token.weigh(q, groups, row, reweigh)
    mixed = weights.values(groups)
    logits = [by_token.token_logits(q, keys, row) for keys in groups]
    seen = [part > HIDDEN / 2 for part in logits]
    count = sum(jnp.sum(mask, axis=(-2, -1)) for mask in seen)
    q_norm = _norm(q)
    sizes, cosines = jnp.zeros(q.shape[0]), jnp.zeros(q.shape[0])
    for keys, part, mask in zip(groups, logits, seen, strict=True):
        shared = q.shape[0] // keys.kv.k.shape[0]
        k_norm = jnp.repeat(_norm(keys.kv.k), shared, axis=0)
        part = jnp.where(mask, part, 0.0)
        sizes += jnp.sum(jnp.abs(part), axis=(-2, -1))
        cosines += jnp.sum(part / jnp.maximum(k_norm, _TINY), axis=(-2, -1))
    kept = _Row(
        entropy=weights.entropy(),
        logit=sizes / count,
        cosine=cosines * q.shape[-1] ** 0.5 / (count * jnp.maximum(q_norm, _TINY)),
        q=_size(q),
        q_norm=q_norm,
        output=_size(mixed),
        masses=jnp.concatenate(weights.masses, axis=-1),
    )
    return mixed.astype(q.dtype), kept


_attention = functools.partial(by_token.attention, _measure)


def _assemble(rows: _Row, kv: KV, valid: Bool[Array, "*tokens"], alone: bool = False) -> Statistics:
    """From rows `[layers, *tokens, heads]` and the tokens' own keys and values.

    Args:
        rows: What `_measure` kept.
        kv: `[layers, kv_heads, *tokens, head_dim]`.
        valid: Which tokens are real.
        alone: The last group is the token's own segment and not a tail.
    """

    def real(x: Array) -> Array:
        beyond = x.ndim - 2 - valid.ndim  # the axis of segments
        return jnp.where(valid.reshape(*valid.shape, *[1] * beyond), x, 0.0)

    def by_head(x: Array) -> Array:
        return real(jnp.moveaxis(x, 1 + valid.ndim, 1))

    masses = by_head(rows.masses)
    return Statistics(
        entropy=jax.tree.map(by_head, rows.entropy),
        logit=by_head(rows.logit),
        cosine=by_head(rows.cosine),
        q=by_head(rows.q),
        q_norm=by_head(rows.q_norm),
        k=real(_size(kv.k)),
        k_norm=real(_norm(kv.k)),
        v=real(_size(kv.v)),
        output=by_head(rows.output),
        sink_mass=masses[..., 0],
        segment_mass=masses[..., 1:] if alone else masses[..., 1:-1],
        tail_mass=jnp.zeros_like(masses[..., 0]) if alone else masses[..., -1],
        valid=valid,
    )


def _size(x: Float[Array, "*axes head_dim"]) -> Float[Array, "*axes"]:
    return jnp.mean(jnp.abs(x.astype(jnp.float32)), axis=-1)


def _norm(x: Float[Array, "*axes head_dim"]) -> Float[Array, "*axes"]:
    return jnp.sqrt(jnp.sum(jnp.square(x.astype(jnp.float32)), axis=-1))


_TINY = 1e-30  # a vector of length 0 has cosine 0
