"""Generation: a jitted loop over one shared context cache, for one query or many side by side."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key

from .cache import ContextCache, Tail, empty_tail
from .errors import LayoutError
from .layout import bucket
from .method import Method
from .models import Llama, unembed
from .query import check_room
from .query_pass import read
from .sampling import Sampling, sample


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """What was generated, one row a query.

    Attributes:
        tokens: Generated token ids; what lies behind a row's length is meaningless.
        lengths: Tokens before the stop token, per row.
        entropy: If asked for, mean attention entropy in nats of the query pass and then of each
            decode step (each a mean over layers, heads and tokens); NaN where a row had already
            stopped.
    """

    tokens: Int[np.ndarray, "queries new"]
    lengths: Int[np.ndarray, " queries"]
    entropy: Float[np.ndarray, "queries steps"] | None = None

    def sequences(self) -> list[list[int]]:
        """Each row's generated tokens, without padding or stop token."""
        return [row[:n].tolist() for row, n in zip(self.tokens, self.lengths, strict=True)]


def generate(
    model: Llama,
    cache: ContextCache,
    queries: Sequence[int] | Sequence[Sequence[int]] | np.ndarray,
    method: Method = Method(),
    *,
    max_new_tokens: int = 64,
    sampling: Sampling = Sampling(),
    seed: int = 0,
    stop_tokens: Sequence[int] | None = None,
    on_tokens: Callable[[list[list[int]]], None] | None = None,
    stats: bool = False,
) -> GenerateOutput:
    r"""Answer one query, or several at once, over an encoded context.

    The context cache is shared by all rows and never copied; each row has its own preallocated
    tail. Selection is renewed at every step. A row's result does not depend on its neighbours.

    Args:
        model: The decoder.
        cache: From `encode`.
        queries: Token ids of one query, or a list of queries.
        method: As in `query`.
        max_new_tokens: Tokens to generate at most.
        sampling: Greedy by default.
        seed: Of the random draws.
        stop_tokens: Tokens that end a row; the model's own by default, `()` for none.
        on_tokens: Called after every step with each row's new tokens (an empty list for a row that
            has stopped).
        stats: Also measure attention entropy.

    Returns:
        Tokens and lengths on the host.

    Raises:
        LayoutError: A query is empty, `max_new_tokens` is below 1, or query and answer do not fit
            the model's positions.

    Example:
        >>> question = tokenizer.encode("Question: Who baked bread?\\nAnswer:")
        >>> out = pce.generate(model, cache, question, max_new_tokens=8)
        >>> answer = tokenizer.decode(out.sequences()[0])
    """
    if max_new_tokens < 1:
        raise LayoutError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    tokens, lengths = _pad_queries(queries)
    stops = jnp.asarray(
        model.config.eos_token_ids if stop_tokens is None else stop_tokens, jnp.int32
    )
    capacity = bucket(tokens.shape[1] + max_new_tokens)
    check_room(model, cache, empty_tail(model, capacity), capacity, max(lengths) + max_new_tokens)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(len(lengths)))
    state = _start(model, cache, tokens, lengths, keys, stops, method, sampling, capacity, stats)
    collected = _Collector(len(lengths), on_tokens)
    collected.add(state)
    while collected.steps < max_new_tokens and not collected.done.all():
        state = _step(model, cache, state, stops, method, sampling, stats)
        collected.add(state)
    return collected.output(stats)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class _State:
    """One row between two steps: the token just drawn has not been read yet."""

    token: Int[Array, ""]
    done: Bool[Array, ""]  # the token, or one before it, is a stop token
    tail: Tail
    key: Key[Array, ""]
    entropy: Float[Array, ""]


class _Collector:
    """Gathers each step's tokens on the host and passes them on."""

    def __init__(self, rows: int, on_tokens: Callable[[list[list[int]]], None] | None):
        self.done = np.zeros(rows, bool)
        self.on_tokens = on_tokens
        self._lengths = np.zeros(rows, np.int32)
        self._tokens: list[np.ndarray] = []
        self._entropy: list[np.ndarray] = []

    @property
    def steps(self) -> int:
        return len(self._tokens)

    def add(self, state: _State) -> None:
        tokens, done, entropy = jax.device_get((state.token, state.done, state.entropy))
        self._entropy.append(np.where(self.done, np.nan, entropy))
        self._tokens.append(tokens)
        self._lengths += ~done
        self.done = done
        if self.on_tokens is not None:
            self.on_tokens(
                [[] if stopped else [int(t)] for t, stopped in zip(tokens, done, strict=True)]
            )

    def output(self, stats: bool) -> GenerateOutput:
        entropy = np.stack(self._entropy, axis=1) if stats else None
        return GenerateOutput(np.stack(self._tokens, axis=1), self._lengths, entropy)


@functools.partial(jax.jit, static_argnames=("method", "sampling", "capacity", "stats"))
def _start(
    model: Llama,
    cache: ContextCache,
    tokens: Array,
    lengths: Array,
    keys: Array,
    stops: Array,
    method: Method,
    sampling: Sampling,
    capacity: int,
    stats: bool,
) -> _State:
    """Read each row's query and draw its first token."""

    def row(tokens: Array, length: Array, key: Array) -> _State:
        tail = empty_tail(model, capacity)
        return _advance(
            model,
            cache,
            tail,
            tokens,
            length,
            key,
            jnp.zeros((), bool),
            stops,
            method,
            sampling,
            stats,
        )

    return jax.vmap(row)(tokens, lengths, keys)


@functools.partial(
    jax.jit, static_argnames=("method", "sampling", "stats"), donate_argnames="state"
)
def _step(
    model: Llama,
    cache: ContextCache,
    state: _State,
    stops: Array,
    method: Method,
    sampling: Sampling,
    stats: bool,
) -> _State:
    """Read each row's last token and draw the next."""

    def row(s: _State) -> _State:
        one = jnp.ones((), jnp.int32)
        return _advance(
            model, cache, s.tail, s.token[None], one, s.key, s.done, stops, method, sampling, stats
        )

    return jax.vmap(row)(state)


def _advance(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Int[Array, " tokens"],
    length: Int[Array, ""],
    key: Key[Array, ""],
    done: Bool[Array, ""],
    stops: Int[Array, " stops"],
    method: Method,
    sampling: Sampling,
    stats: bool,
) -> _State:
    hidden, tail, measured = read(model, cache, tail, tokens, length, method, stats)
    token = sample(
        unembed(model, hidden[length - 1]), jax.random.fold_in(key, tail.length), sampling
    )
    done = done | jnp.isin(token, stops)
    entropy = jnp.zeros(()) if measured is None else measured.mean()
    return _State(token.astype(jnp.int32), done, tail, key, entropy)


def _pad_queries(
    queries: Sequence[int] | Sequence[Sequence[int]] | np.ndarray,
) -> tuple[np.ndarray, np.ndarray]:
    """One row a query, padded to a common bucket, and their lengths."""
    single = len(queries) and np.ndim(queries[0]) == 0
    rows = [np.asarray(row, np.int32) for row in ([queries] if single else queries)]
    lengths = np.asarray([len(row) for row in rows], np.int32)
    if not len(rows) or not lengths.all():
        raise LayoutError("a query is empty: give at least one token to each.")
    tokens = np.zeros((len(rows), bucket(int(lengths.max()))), np.int32)
    for padded, row in zip(tokens, rows, strict=True):
        padded[: len(row)] = row
    return tokens, lengths
