"""Queries over an encoded context: next-token logits, likelihoods of a text, and their entropy."""

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .cache import ContextCache, Tail, empty_tail
from .errors import LayoutError
from .method import Method
from .models import Llama, unembed
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
        stats: Entropy, if asked for.
    """

    nll: Float[Array, " tokens"]
    stats: Stats | None

    def sum(self) -> Float[Array, ""]:
        """Total negative log-likelihood in nats."""
        return jnp.sum(self.nll)


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
        LayoutError: The tail has no room for the tokens, or they reach past the model's positions.

    Example:
        >>> out = pce.query(model, cache, jnp.array([1, 2, 3]), stats=True)
        >>> out.logits.shape, out.stats.entropy.total.shape  # layers, heads, tokens
        ((3, 49152), (30, 9, 3))
    """
    tokens = jnp.asarray(tokens)
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
        LayoutError: The tokens reach past the model's positions.

    Example:
        >>> text = tokenizer.encode("Ada wrote code. Then she rested.")
        >>> nll = pce.score(model, cache, jnp.array(text)).nll
        >>> perplexity = jnp.exp(nll[1:].mean())
    """
    tokens = jnp.asarray(tokens)
    tail = empty_tail(model, tokens.shape[0])
    length = jnp.asarray(tokens.shape[0] if length is None else length)
    check_room(model, cache, tail, tokens.shape[0], length)
    return _score(model, cache, tail, tokens, length, method, stats)


def check_room(
    model: Llama, cache: ContextCache, tail: Tail, slots: int, length: Array | int
) -> None:
    """Refuse tokens that the tail or the model's window cannot hold.

    Traced values cannot be checked, but for the tail's size.

    Args:
        model: The decoder.
        cache: What stands before the tail.
        tail: What the tokens are appended to.
        slots: Token slots that will be written, padding included.
        length: Real tokens among them.

    Raises:
        LayoutError: No room.
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
    last = float(cache.query_start) + int(tail.length) + int(length)
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
    hidden, _, measured = read(model, cache, tail, tokens, length, method, stats)

    def loss(row: tuple[Array, Array]) -> Array:
        hidden, target = row
        logits = unembed(model, hidden)
        return jax.nn.logsumexp(logits) - logits[target]

    rows = (hidden[:-1], tokens[1:])
    nll = jax.lax.map(jax.checkpoint(loss), rows, batch_size=_SCORED_AT_ONCE)
    counted = jnp.arange(1, tokens.shape[0]) < length
    return ScoreOutput(jnp.pad(jnp.where(counted, nll, 0.0), (1, 0)), measured)


_SCORED_AT_ONCE = 128  # rows of vocabulary logits that exist at a time
