"""The decode loop on the device: read the query, then draw token after token in one `while`.

Rows (queries) run side by side under `vmap`. Over one context its cache is not mapped and so is
shared; over a cache from `encode_many` each row has its own context behind the shared sink. Each
row has its own preallocated tail and random key.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Key

from .cache import KV, ContextCache, Tail, empty_tail
from .method import Method
from .models import Llama, unembed
from .models.sharding import shard
from .query_pass import read
from .sampling import Sampling, sample

Out = TypeVar("Out")


@dataclasses.dataclass(frozen=True)
class Rules:
    """What a compiled loop is made for; static under `jit`."""

    method: Method
    sampling: Sampling
    stats: bool


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Drawn:
    """What one step drew, for one row or with axes in front.

    Attributes:
        token: The token.
        done: It, or one before it, is a stop token.
        entropy: Mean attention entropy of the pass that led to it, in nats (0 if not asked for).
        between: What of it lies between sink, segments and tail.
    """

    token: Int[Array, "*axes"]
    done: Bool[Array, "*axes"]
    entropy: Float[Array, "*axes"]
    between: Float[Array, "*axes"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Row:
    """A row between two steps: the token it drew last has not been read yet."""

    drawn: Drawn
    tail: Tail
    key: Key[Array, "*axes"]


@functools.partial(jax.jit, static_argnames=("rules", "capacity"))
def start(
    model: Llama,
    cache: ContextCache,
    tokens: Int[Array, "rows tokens"],
    lengths: Int[Array, " rows"],
    keys: Key[Array, " rows"],
    stops: Int[Array, " stops"],
    rules: Rules,
    capacity: int,
) -> Row:
    """Read each row's query into a fresh tail of `capacity` tokens and draw its first token."""

    def row(cache: ContextCache, tokens: Array, length: Array, key: Array) -> Row:
        tail = empty_tail(model, capacity)
        done = jnp.zeros((), bool)
        return _advance(model, cache, tail, tokens, length, key, done, stops, rules, lanes)

    lanes = tokens.shape[0]
    return over_rows(row, cache, tokens, lengths, keys)


@functools.partial(jax.jit, static_argnames=("rules", "steps"), donate_argnames="rows")
def go_on(
    model: Llama,
    cache: ContextCache,
    rows: Row,
    stops: Int[Array, " stops"],
    limit: Int[Array, ""],
    rules: Rules,
    steps: int,
) -> tuple[Row, Drawn, Int[Array, ""]]:
    """Draw until `limit` steps are done or every row has stopped.

    Args:
        model: The decoder.
        cache: The encoded context.
        rows: Where the rows stand; donated.
        stops: Tokens that end a row.
        limit: Steps to do at most; not above `steps`.
        rules: Method, sampling, and whether to measure entropy.
        steps: Room for what is drawn.

    Returns:
        Where the rows stand now, what was drawn with axes `[steps, rows]`, and how many steps of it
        were done.
    """

    def step(cache: ContextCache, row: Row) -> Row:
        one, last = jnp.ones((), jnp.int32), row.drawn
        return _advance(
            model, cache, row.tail, last.token[None], one, row.key, last.done, stops, rules, lanes
        )

    def wanted(carry: tuple[Array, Row, Drawn]) -> Array:
        count, rows, _ = carry
        return (count < limit) & ~jnp.all(rows.drawn.done)

    def body(carry: tuple[Array, Row, Drawn]) -> tuple[Array, Row, Drawn]:
        count, rows, drawn = carry
        rows = over_rows(step, cache, rows)
        drawn = jax.tree.map(lambda all_, new: all_.at[count].set(new), drawn, rows.drawn)
        return count + 1, rows, drawn

    lanes = rows.tail.length.shape[0]
    room = jax.tree.map(lambda x: jnp.zeros((steps, *x.shape), x.dtype), rows.drawn)
    count, rows, drawn = jax.lax.while_loop(wanted, body, (jnp.zeros((), jnp.int32), rows, room))
    return rows, drawn, count


def over_rows(f: Callable[..., Out], cache: ContextCache, *rows: object) -> Out:
    """Apply `f(cache, *row)` to each row, over one shared context or over one context a row.

    Args:
        f: Function of a context cache and one row.
        cache: From `encode`, or from `encode_many` with as many contexts as there are rows.
        rows: Pytrees with a leading row axis.
    """
    axes: tuple[int | None, ...] = (1, 0, 0) if cache.lengths.ndim == 2 else (None, None, None)

    def one(segments: KV, lengths: Array, query_start: Array, *row: object) -> Out:
        own = {"segments": segments, "lengths": lengths, "query_start": query_start}
        return f(dataclasses.replace(cache, **own), *row)

    mapped = jax.vmap(one, in_axes=(*axes, *(0 for _ in rows)))
    return mapped(cache.segments, cache.lengths, cache.query_start, *rows)


def _advance(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Int[Array, " tokens"],
    length: Int[Array, ""],
    key: Key[Array, ""],
    done: Bool[Array, ""],
    stops: Int[Array, " stops"],
    rules: Rules,
    lanes: int,
) -> Row:
    """Read one row's tokens and draw the next."""
    hidden, tail, stats = read(model, cache, tail, tokens, length, rules.method, rules.stats, lanes)
    logits = shard(unembed(model, hidden[length - 1]), (None,), model.rules)
    token = sample(logits, jax.random.fold_in(key, tail.length), rules.sampling).astype(jnp.int32)
    entropy = between = jnp.zeros(())
    if stats is not None:
        entropy, between = stats.mean(), jnp.mean(stats.between_by_layer())
    return Row(Drawn(token, done | jnp.isin(token, stops), entropy, between), tail, key)
