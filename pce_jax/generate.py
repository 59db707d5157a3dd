"""Generation: answers to one query, or to many side by side, over one encoded context."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from .cache import ContextCache
from .decode_loop import Drawn, Rules, go_on, start
from .errors import LayoutError, MethodError
from .layout import bucket, check_tokens
from .method import Method
from .models import Llama
from .query import check_window
from .sampling import Sampling


@dataclasses.dataclass(frozen=True)
class GenerateOutput:
    """What was generated, one row a query.

    Attributes:
        tokens: Generated token ids; what lies behind a row's length is meaningless.
        lengths: Tokens before the stop token, per row.
        entropy: If asked for, mean attention entropy in nats of the query pass and then of each
            decode step (each a mean over layers, heads and tokens); NaN where a row had already
            stopped.
        between: If asked for, what of `entropy` lies between sink, segments and tail.
    """

    tokens: Int[np.ndarray, "queries new"]
    lengths: Int[np.ndarray, " queries"]
    entropy: Float[np.ndarray, "queries steps"] | None = None
    between: Float[np.ndarray, "queries steps"] | None = None

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
    on_tokens: Callable[[list[list[int]]], object] | None = None,
    stats: bool = False,
    pad_to: int = 0,
) -> GenerateOutput:
    r"""Answer one query, or several at once, over an encoded context.

    The context cache is shared by all rows and never copied (with one from `encode_many`, each row
    reads its own context); each row has its own preallocated tail. Selection is renewed at every
    step. A row's result does not depend on its neighbours.

    Args:
        model: The decoder.
        cache: From `encode`, or from `encode_many` with as many contexts as there are queries.
        queries: Token ids of one query, or a list of queries.
        method: As in `query`.
        max_new_tokens: Tokens to generate at most.
        sampling: Greedy by default.
        seed: Of the random draws.
        stop_tokens: Tokens that end a row; the model's own by default, `()` for none.
        on_tokens: Called after every step with each row's new tokens (an empty list for a row that
            has stopped). If it returns `True`, generation ends there.
        stats: Also measure attention entropy.
        pad_to: Query tokens to make room for, at least: calls with equal room share one compiled
            program.

    Returns:
        Tokens and lengths on the host.

    Raises:
        LayoutError: A query is empty, `max_new_tokens` is below 1, query and answer do not fit the
            model's positions, or there is not one context a query.
        MethodError: The seed does not fit 64 bits.

    Example:
        >>> question = pce.encode_text(tokenizer, "Question: Who baked bread?\nAnswer:")
        >>> out = pce.generate(model, cache, question, max_new_tokens=8)
        >>> answer = tokenizer.decode(out.sequences()[0])
    """
    if max_new_tokens < 1:
        raise LayoutError(f"max_new_tokens must be at least 1, got {max_new_tokens}")
    tokens, lengths = _pad_queries(queries, pad_to, model.config.vocab_size)
    if cache.lengths.ndim == 2 and cache.lengths.shape[0] != len(lengths):
        raise LayoutError(
            f"{len(lengths)} queries over {cache.lengths.shape[0]} contexts: give one to each."
        )
    stops = np.asarray(model.config.eos_token_ids if stop_tokens is None else stop_tokens, np.int32)
    capacity = bucket(tokens.shape[1] + max_new_tokens)
    check_window(model, cache, lengths + max_new_tokens - 1)
    if not -(2**63) <= seed < 2**63:
        raise MethodError(f"the seed must fit 64 bits, got {seed}")
    keys = _keys(np.int64(seed), len(lengths))
    rules = Rules(method, sampling, stats)
    rows = start(model, cache, tokens, lengths, keys, stops, rules, capacity)
    gathered = _Gathered(len(lengths), on_tokens)
    gathered.add(jax.tree.map(lambda x: np.asarray(x)[None], rows.drawn), 1)
    steps = 1 if on_tokens else _STEPS_PER_CALL
    while (left := max_new_tokens - gathered.steps) and not gathered.ended:
        limit = np.int32(min(left, steps))
        rows, drawn, count = go_on(model, cache, rows, stops, limit, rules, steps)
        gathered.add(drawn, int(count))
    return gathered.output(stats)


_STEPS_PER_CALL = 32  # steps between two looks at the device, where nobody waits for each token
# What is small happens on the host: each operation on a device is a program of its own to compile.


@functools.partial(jax.jit, static_argnames="rows")
def _keys(seed: Array | np.int64, rows: int) -> Key[Array, " rows"]:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(rows))


class _Gathered:
    """What was drawn so far, on the host."""

    def __init__(self, rows: int, on_tokens: Callable[[list[list[int]]], object] | None):
        self.done = np.zeros(rows, bool)
        self.ended = False
        self._on_tokens = on_tokens
        self._lengths = np.zeros(rows, np.int32)
        self._tokens: list[np.ndarray] = []
        self._entropy: list[np.ndarray] = []
        self._between: list[np.ndarray] = []

    @property
    def steps(self) -> int:
        return len(self._tokens)

    def add(self, drawn: Drawn, count: int) -> None:
        parts = (drawn.token, drawn.done, drawn.entropy, drawn.between)
        seen = (np.asarray(x)[:count] for x in parts)
        for tokens, done, entropy, between in zip(*seen, strict=True):
            self._entropy.append(np.where(self.done, np.nan, entropy))
            self._between.append(np.where(self.done, np.nan, between))
            self._tokens.append(tokens)
            self._lengths += ~done
            self.done = done
            self.ended = bool(done.all())
            if self._on_tokens is not None:
                new = zip(tokens.tolist(), done, strict=True)
                told = self._on_tokens([[] if stopped else [token] for token, stopped in new])
                self.ended |= told is True

    def output(self, stats: bool) -> GenerateOutput:
        tokens = np.stack(self._tokens, axis=1)
        if not stats:
            return GenerateOutput(tokens, self._lengths)
        entropy, between = (np.stack(x, axis=1) for x in (self._entropy, self._between))
        return GenerateOutput(tokens, self._lengths, entropy, between)


def _pad_queries(
    queries: Sequence[int] | Sequence[Sequence[int]] | np.ndarray, pad_to: int, vocab_size: int
) -> tuple[np.ndarray, np.ndarray]:
    """One row a query, padded to a common bucket or to `pad_to`, and their lengths."""
    if isinstance(queries, str):
        raise LayoutError("a query is given as token ids: see encode_text(tokenizer, text).")
    single = len(queries) and np.ndim(queries[0]) == 0
    rows = [np.asarray(row, np.int32) for row in ([queries] if single else queries)]
    lengths = np.asarray([len(row) for row in rows], np.int32)
    if not len(rows) or not lengths.all():
        raise LayoutError("a query is empty: give at least one token to each.")
    for row in rows:
        check_tokens(row, vocab_size)
    longest = int(lengths.max())
    slots = pad_to if pad_to >= longest else bucket(longest)
    tokens = np.zeros((len(rows), slots), np.int32)
    for padded, row in zip(tokens, rows, strict=True):
        padded[: len(row)] = row
    return tokens, lengths
