"""Generation: answers to one query, or to many side by side, over one encoded context."""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from .cache import ContextCache, empty_tail
from .decode_loop import Drawn, Rules, go_on, start
from .errors import LayoutError
from .layout import bucket
from .method import Method
from .models import Llama
from .query import check_room
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
    on_tokens: Callable[[list[list[int]]], object] | None = None,
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
            has stopped). If it returns `True`, generation ends there.
        stats: Also measure attention entropy.

    Returns:
        Tokens and lengths on the host.

    Raises:
        LayoutError: A query is empty, `max_new_tokens` is below 1, or query and answer do not fit
            the model's positions.

    Example:
        >>> question = tokenizer.encode("Question: Who baked bread?\nAnswer:")
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
    check_room(
        model, cache, empty_tail(model, capacity), capacity, int(lengths.max()) + max_new_tokens - 1
    )
    keys = jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), jnp.arange(len(lengths)))
    rules = Rules(method, sampling, stats)
    rows = start(model, cache, tokens, lengths, keys, stops, rules, capacity)
    gathered = _Gathered(len(lengths), on_tokens)
    gathered.add(jax.tree.map(lambda x: x[None], rows.drawn), 1)
    steps = 1 if on_tokens else _STEPS_PER_CALL
    while (left := max_new_tokens - gathered.steps) and not gathered.ended:
        limit = jnp.asarray(min(left, steps), jnp.int32)
        rows, drawn, count = go_on(model, cache, rows, stops, limit, rules, steps)
        gathered.add(drawn, int(count))
    return gathered.output(stats)


_STEPS_PER_CALL = 32  # steps between two looks at the device, where nobody waits for each token


class _Gathered:
    """What was drawn so far, on the host."""

    def __init__(self, rows: int, on_tokens: Callable[[list[list[int]]], object] | None):
        self.done = np.zeros(rows, bool)
        self.ended = False
        self._on_tokens = on_tokens
        self._lengths = np.zeros(rows, np.int32)
        self._tokens: list[np.ndarray] = []
        self._entropy: list[np.ndarray] = []

    @property
    def steps(self) -> int:
        return len(self._tokens)

    def add(self, drawn: Drawn, count: int) -> None:
        seen = (np.asarray(x)[:count] for x in (drawn.token, drawn.done, drawn.entropy))
        for tokens, done, entropy in zip(*seen, strict=True):
            self._entropy.append(np.where(self.done, np.nan, entropy))
            self._tokens.append(tokens)
            self._lengths += ~done
            self.done = done
            self.ended = bool(done.all())
            if self._on_tokens is not None:
                new = zip(tokens.tolist(), done, strict=True)
                told = self._on_tokens([[] if stopped else [token] for token, stopped in new])
                self.ended |= told is True

    def output(self, stats: bool) -> GenerateOutput:
        entropy = np.stack(self._entropy, axis=1) if stats else None
        return GenerateOutput(np.stack(self._tokens, axis=1), self._lengths, entropy)


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
