"""Queries over an encoded context: next-token logits, likelihoods of a text, and their entropy."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .cache import ContextCache, Tail, empty_tail
from .errors import LayoutError
from .layout import check_tokens
from .method import Method
from .models import Llama, unembed
from .models.sharding import picked
from .query_pass import Stats, read


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class QueryOutput:
    """Result of `query`.

    Attributes:
        logits: Next-token logits of each token, float32 (of the last real one only if asked).
        tail: Cache of the query's own tokens, to go on from.
        stats: Entropy, if asked for.
    """

    logits: Float[Array, "*tokens vocab"]
    tail: Tail
    stats: Stats | None


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ScoreOutput:
    """Result of `score`.

    Attributes:
        nll: Negative log-likelihood, in nats, of each token given everything before it; the first
            token is not predicted and padding does not count: both 0.
        greedy: Whether each token is the most likely one; `True` where nothing is predicted.
        stats: Entropy, if asked for.
    """

    nll: Float[Array, " tokens"]
    greedy: Bool[Array, " tokens"]
    stats: Stats | None

    def sum(self) -> Float[Array, "*batch"]:
        """Total negative log-likelihood in nats, of each text under an outer `vmap`."""
        return jnp.sum(self.nll, axis=-1)


def query(
    model: Llama,
    cache: ContextCache,
    tokens: Int[Array | np.ndarray, " tokens"] | Sequence[int],
    method: Method = Method(),
    *,
    length: Int[Array, ""] | int | None = None,
    tail: Tail | None = None,
    capacity: int | None = None,
    stats: bool = False,
    last_only: bool = False,
) -> QueryOutput:
    """Read query tokens against an encoded context.

    For many queries over one context, `vmap` over `tokens` and `tail` with the cache unmapped: it
    is not copied.

    Args:
        model: The decoder.
        cache: From `encode`.
        tokens: Token ids of the query; pad them with `pad_tokens` and give `length` to share
            compiled programs.
        method: Its selection applies here, and its positions must be those of `encode`.
        length: Number of real tokens; all by default.
        tail: What was read or generated before; empty by default. It must have room for `tokens`.
        capacity: Size of a fresh tail; just enough for `tokens` by default.
        stats: Also return attention entropies.
        last_only: Return the logits of the last real token only, `[vocab]`.

    Returns:
        Logits, the grown tail, and statistics.

    Raises:
        LayoutError: There are no tokens, or they are not one sequence; the tail has no room for
            them, or they reach past the model's positions.

    Example:
        >>> out = pce.query(model, cache, jnp.array([1, 2, 3]), stats=True)
        >>> out.logits.shape, out.stats.entropy.total.shape  # layers, heads, tokens
        ((3, 49152), (30, 9, 3))
    """
    tokens = one_sequence(tokens, model.config.vocab_size)
    if tail is None:
        tail = empty_tail(model, tokens.shape[0] if capacity is None else capacity)
    length = jnp.asarray(tokens.shape[0] if length is None else length)
    check_room(model, cache, tail, tokens.shape[0], length)
    return _query(model, cache, tail, tokens, length, method, stats, last_only)


def score(
    model: Llama,
    cache: ContextCache,
    tokens: Int[Array | np.ndarray, " tokens"] | Sequence[int],
    method: Method = Method(),
    *,
    length: Int[Array, ""] | int | None = None,
    stats: bool = False,
) -> ScoreOutput:
    """How well the model predicts tokens that follow an encoded context (the paper's LM task).

    Args:
        model: The decoder.
        cache: From `encode`.
        tokens: First the unsplit token that starts the query, then the tokens to score.
        method: As in `query`.
        length: Number of real tokens; all by default.
        stats: Also return attention entropies.

    Raises:
        LayoutError: There are no tokens, they are not one sequence, or they reach past the model's
            positions.

    Example:
        >>> text = pce.encode_text(tokenizer, "Ada wrote code. Then she rested.")
        >>> nll = pce.score(model, cache, jnp.array(text)).nll
        >>> perplexity = jnp.exp(nll[1:].mean())
    """
    tokens = one_sequence(tokens, model.config.vocab_size)
    tail = empty_tail(model, tokens.shape[0])
    length = jnp.asarray(tokens.shape[0] if length is None else length)
    check_room(model, cache, tail, tokens.shape[0], length, predicted=1)
    return _score(model, cache, tail, tokens, length, method, stats)


def one_sequence(
    tokens: Int[Array | np.ndarray, " tokens"] | Sequence[int], vocab_size: int
) -> Int[Array, " tokens"]:
    """The tokens of one text as an array.

    Raises:
        LayoutError: There are none, they are several texts, or the model has no such tokens.
    """
    shape = np.shape(tokens)
    if len(shape) != 1:
        raise LayoutError(
            f"one sequence of token ids is read at a time, these have the shape {shape}. Use "
            "jax.vmap over the first axis, or generate, which takes several."
        )
    if not shape[0]:
        raise LayoutError("no tokens: the text is empty. Give at least one token.")
    check_tokens(tokens, vocab_size)
    return jnp.asarray(tokens)


def check_room(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    slots: int,
    length: Array | np.ndarray | int,
    predicted: int = 0,
) -> None:
    """Refuse tokens that the tail or the model's window cannot hold.

    Traced values cannot be checked, but for the tail's size.

    Args:
        model: The decoder.
        cache: What stands before the tail.
        tail: What the tokens are appended to.
        slots: Token slots that will be written, padding included.
        length: Real tokens among them; several where rows have their own.
        predicted: Tokens at their end that are only predicted, and need no position for that.

    Raises:
        LayoutError: No room, or `length` is above `slots`.
    """
    if any(isinstance(x, jax.core.Tracer) for x in (cache.query_start, tail.length, length)):
        if slots > tail.capacity:
            raise LayoutError(
                f"the tail holds {tail.capacity} tokens, {slots} were given: raise its capacity"
            )
        return
    if int(tail.length) + slots > tail.capacity:
        raise LayoutError(
            f"the tail holds {tail.capacity} tokens, has {int(tail.length)} and was given {slots} "
            "more (padding included): raise its capacity."
        )
    if (longest := int(np.max(np.asarray(length)))) > slots:
        raise LayoutError(f"length {longest} is above the number of tokens given, {slots}.")
    check_window(model, cache, length + int(tail.length) - predicted)


def check_window(model: Llama, cache: ContextCache, length: Array | np.ndarray | int) -> None:
    """Refuse a query, with what is generated behind it, that reaches past the model's positions.

    Args:
        model: The decoder.
        cache: What stands before the query; nothing is checked where it is traced.
        length: Tokens behind the context; several where rows have their own.

    Raises:
        LayoutError: They do not fit.
    """
    if isinstance(cache.query_start, jax.core.Tracer):
        return
    last = float(np.max(np.asarray(cache.query_start) + np.asarray(length)))
    if last > model.config.max_positions:
        raise LayoutError(
            f"the query ends at position {last:.0f}, and the model has "
            f"{model.config.max_positions}. Use a shorter query or context, a higher degree, "
            "or a model with a longer window."
        )


@functools.partial(jax.jit, static_argnames=("method", "stats", "last_only"))
def _query(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Array,
    length: Array,
    method: Method,
    stats: bool,
    last_only: bool,
) -> QueryOutput:
    hidden, tail, measured = read(model, cache, tail, tokens, length, method, stats)
    return QueryOutput(unembed(model, hidden[length - 1] if last_only else hidden), tail, measured)


@functools.partial(jax.jit, static_argnames=("method", "stats"))
def _score(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Array,
    length: Array,
    method: Method,
    stats: bool,
) -> ScoreOutput:
    return score_tokens(model, cache, tail, tokens, length, method, stats)


def score_tokens(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Int[Array, " tokens"],
    length: Int[Array, ""],
    method: Method,
    stats: bool,
    lanes: int = 1,
) -> ScoreOutput:
    """Score one text: `score` without checks and `jit`.

    Args:
        model: The decoder.
        cache: The encoded context.
        tail: Empty, with room for `tokens`.
        tokens: Token ids, padded at the end.
        length: Number of real tokens.
        method: As in `query`.
        stats: Measure entropy.
        lanes: How many texts run side by side under an outer `vmap`; only bounds memory.
    """
    hidden, _, measured = read(model, cache, tail, tokens, length, method, stats, lanes)

    def loss(row: tuple[Array, Array]) -> tuple[Array, Array]:
        hidden, target = row
        logits = unembed(model, hidden)
        nll = jax.nn.logsumexp(logits) - picked(logits, target, model.rules)
        return nll, jnp.argmax(logits) == target

    rows = (hidden[:-1], tokens[1:])
    at_once = max(1, _SCORED_AT_ONCE // lanes)
    nll, greedy = jax.lax.map(jax.checkpoint(loss), rows, batch_size=at_once)
    counted = jnp.arange(1, tokens.shape[0]) < length
    return ScoreOutput(
        jnp.pad(jnp.where(counted, nll, 0.0), (1, 0)),
        jnp.pad(greedy | ~counted, (1, 0), constant_values=True),
        measured,
    )


_SCORED_AT_ONCE = 128  # rows of vocabulary logits that exist at a time
