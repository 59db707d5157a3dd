"""Many contexts at once: equal shapes side by side under `vmap`, behind one shared sink.

What evaluation runs on. Shapes are settled by the caller (`stack`), so that batches of one shape
share their compiled programs.
"""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .cache import ContextCache, Store, empty_tail
from .decode_loop import over_rows
from .encode import check_context, check_memory, encoder, read_context
from .errors import LayoutError
from .layout import SegmentedContext, dealt
from .method import Method
from .models import Llama
from .query import check_room, score_tokens


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
    """Result of `score_many`, one entry a text.

    Attributes:
        nll: Negative log-likelihood in nats, summed over the scored tokens.
        greedy: Whether every scored token is the most likely one.
        entropy: Attention entropy in nats: mean over tokens and heads, then layers.
        between: What of it lies between sink, segments and tail.
    """

    nll: Float[Array, " texts"]
    greedy: Bool[Array, " texts"]
    entropy: Float[Array, " texts"]
    between: Float[Array, " texts"]


def stack(
    contexts: Sequence[Sequence[Sequence[int]]],
    sink: Sequence[int] = (),
    *,
    segments: int = 0,
    tokens: int = 0,
) -> SegmentedContext:
    """Lay out several contexts of segments with one padded shape; the leading axis is the context.

    Args:
        contexts: Each a list of segments of token ids.
        sink: Token ids of the shared prefix.
        segments: Segments to pad to, at least.
        tokens: Tokens per segment to pad to, at least.

    Raises:
        LayoutError: There are no contexts, or one has no segments.

    Example:
        >>> pce.stack([[[1, 2], [3]], [[4, 5, 6]]]).lengths
        array([[2, 1],
               [3, 0]], dtype=int32)
    """
    if not contexts or not all(contexts):
        raise LayoutError(
            "there are no segments: give at least one context, and each at least one."
        )
    segments = max(segments, *map(len, contexts))
    tokens = max(tokens, *(len(segment) for context in contexts for segment in context))
    padded = np.zeros((len(contexts), segments, tokens), np.int32)
    lengths = np.zeros((len(contexts), segments), np.int32)
    for number, context in enumerate(contexts):
        for place, segment in enumerate(context):
            padded[number, place, : len(segment)] = segment
            lengths[number, place] = len(segment)
    return SegmentedContext(np.asarray(sink, np.int32), padded, lengths)


def encode_many(
    model: Llama,
    contexts: SegmentedContext,
    method: Method = Method(),
    *,
    at_once: int | None = None,
    store: Store | None = None,
) -> ContextCache:
    """Encode stacked contexts side by side. For `generate` and `score_many`, a row a context.

    Args:
        model: The decoder.
        contexts: From `stack`.
        method: As in `encode`.
        at_once: Segments of each context side by side at a time, as in `encode`.
        store: What to keep keys and values of the segments as, as in `encode`.

    Returns:
        A cache whose `segments` have the context as their second axis, behind the layers, and whose
        `lengths` and `query_start` have it in front. The sink is shared.

    Raises:
        LayoutError: A context reaches past the model's positions, or there is no such way to store.
        MethodError: The method wants a sink and there is none, or `at_once` is below 1.

    Example:
        >>> contexts = pce.stack([[[1, 2], [3]], [[4, 5, 6]]])
        >>> cache = pce.encode_many(model, contexts)
        >>> cache.segments.k.shape  # layers, contexts, kv_heads, segments, tokens, head_dim
        (30, 2, 3, 2, 3, 64)
    """
    for lengths in np.asarray(contexts.lengths):
        check_context(model, dataclasses.replace(contexts, lengths=lengths), method)
    check_memory(at_once, store)
    if not method.full:
        contexts = dealt(contexts, model.rules.over("segment"))
    return _encode_many(model, contexts, encoder(method), at_once, store)


@functools.partial(jax.jit, static_argnames=("method", "at_once", "store"))
def _encode_many(
    model: Llama,
    contexts: SegmentedContext,
    method: Method,
    at_once: int | None,
    store: Store | None,
) -> ContextCache:
    def one(segments: Array, lengths: Array) -> tuple:
        context = SegmentedContext(contexts.sink, segments, lengths)
        cache = read_context(model, context, method, lanes=lanes, at_once=at_once, store=store)[0]
        return cache.sink, cache.segments, cache.lengths, cache.query_start

    lanes = contexts.lengths.shape[0]
    mapped = jax.vmap(one, out_axes=(None, 1, 0, 0))
    return ContextCache(*mapped(jnp.asarray(contexts.segments), jnp.asarray(contexts.lengths)))


def score_many(
    model: Llama,
    cache: ContextCache,
    texts: Int[Array | np.ndarray, "texts tokens"],
    method: Method = Method(),
    *,
    lengths: Int[Array | np.ndarray, " texts"] | None = None,
    starts: Int[Array | np.ndarray, " texts"] | None = None,
) -> Scores:
    """Score one text over each context: the sums of what `score` gives, with its entropy.

    Args:
        model: The decoder.
        cache: From `encode_many`, or from `encode` to score all texts over one context.
        texts: In each row, the token that starts the query, the tokens to score, and padding.
        method: As in `score`.
        lengths: Real tokens in each row; all by default.
        starts: First token of each row that is scored; what stands before it is only read. By
            default, and at least, 1: the first token is never predicted.

    Raises:
        LayoutError: A text reaches past the model's positions.

    Example:
        >>> pce.score_many(model, cache, jnp.array([[5, 6, 7], [8, 9, 10]])).nll.shape
        (2,)
    """
    count, slots = texts.shape
    lengths = np.full(count, slots, np.int32) if lengths is None else lengths
    starts = np.ones(count, np.int32) if starts is None else starts
    check_room(model, cache, empty_tail(model, slots), slots, lengths, predicted=1)
    rows = (jnp.asarray(texts), jnp.asarray(lengths), jnp.asarray(starts))
    return _score_many(model, cache, *rows, method)


@functools.partial(jax.jit, static_argnames="method")
def _score_many(
    model: Llama,
    cache: ContextCache,
    texts: Array,
    lengths: Array,
    starts: Array,
    method: Method,
) -> Scores:
    def one(cache: ContextCache, tokens: Array, length: Array, start: Array) -> Scores:
        tail = empty_tail(model, tokens.shape[0])
        out = score_tokens(model, cache, tail, tokens, length, method, True, lanes)
        assert out.stats is not None
        scored = jnp.arange(tokens.shape[0]) >= start
        return Scores(
            nll=jnp.sum(jnp.where(scored, out.nll, 0.0)),
            greedy=jnp.all(out.greedy | ~scored),
            entropy=out.stats.mean(),
            between=jnp.mean(out.stats.between_by_layer()),
        )

    lanes = texts.shape[0]
    return over_rows(one, cache, texts, lengths, starts)
