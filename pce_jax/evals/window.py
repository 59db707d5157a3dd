"""How many positions instances take, so that a cell that does not fit the model is never begun."""

import functools
from collections.abc import Sequence

import jax
import numpy as np
from jaxtyping import Array, Float, Int

from pce_jax.evals.instance import Passage
from pce_jax.evals.prepare import Prepared
from pce_jax.method import Method
from pce_jax.positions import Positions


def positions_needed(
    prepared: Sequence[Prepared], degree: int, sink: int, method: Method, max_new_tokens: int
) -> Int[np.ndarray, " instances"]:
    """The smallest window in which the library encodes and reads each instance.

    Args:
        prepared: Instances, at least one.
        degree: Number of segments.
        sink: Tokens of the sink.
        method: Its positions apply.
        max_new_tokens: Length of an answer.

    Raises:
        EvalError: The degree is above the number of a passage's context tokens.
    """
    cuts = [one.segments(degree) for one in prepared]
    lengths = np.zeros((len(cuts), max(map(len, cuts))), np.int32)
    for row, cut in zip(lengths, cuts, strict=True):
        row[: len(cut)] = [len(segment) for segment in cut]
    behind = [_read_behind(one, max_new_tokens) for one in prepared]
    in_a_row = method.full or method.positions.sequential
    span = lengths.sum(axis=1) if in_a_row else lengths.max(axis=1)
    last = np.ceil(np.asarray(_query_starts(method.positions, lengths, sink)) + behind)
    return np.maximum(sink + span + 1, last.astype(int))  # a query has a token at least


def _read_behind(one: Prepared, max_new_tokens: int) -> int:
    """Tokens that are read behind the context. The last one of a passage is only predicted."""
    return len(one.query) + (-1 if isinstance(one.source, Passage) else max_new_tokens)


@functools.partial(jax.jit, static_argnames="positions")
def _query_starts(
    positions: Positions, lengths: Int[Array | np.ndarray, "instances segments"], sink: int
) -> Float[Array, " instances"]:
    return jax.vmap(lambda row: positions.of_segments(row, tokens=1, start=sink)[1])(lengths)
