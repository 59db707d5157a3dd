"""Readings in batches of equal padded shape: each context is encoded once for all that share it."""

from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np

from pce_jax.cache import ContextCache
from pce_jax.evals.harness.reading import Reading
from pce_jax.evals.prepare import Shape, shapes
from pce_jax.generate import generate
from pce_jax.many import encode_many, score_many, stack
from pce_jax.method import Method
from pce_jax.models import Llama
from pce_jax.sampling import Sampling

Members = list[list[int]]
"""For each context of a batch, the numbers of the readings that share it."""


def score_readings(
    model: Llama,
    readings: Sequence[Reading],
    method: Method,
    *,
    batch: int,
    on_done: Callable[[int], object] = lambda count: None,
) -> list[tuple[float, bool]]:
    """Log-likelihood of each reading's scored tokens, and whether greedy decoding gives them.

    Args:
        model: The decoder.
        readings: What to read.
        method: How.
        batch: Contexts side by side.
        on_done: Called with the number of readings done since the last call.
    """
    found: dict[int, tuple[float, bool]] = {}
    for members, cache, shape in _encoded(model, readings, method, batch):
        for turn in range(max(map(len, members))):
            # A context that has fewer readings than others repeats its last one.
            chosen = [numbers[min(turn, len(numbers) - 1)] for numbers in members]
            texts, lengths, starts = _texts([readings[n] for n in chosen], shape.query, batch)
            out = jax.device_get(
                score_many(model, cache, texts, method, lengths=lengths, starts=starts)
            )
            before = len(found)
            for number, nll, greedy in zip(chosen, out.nll, out.greedy, strict=False):
                found[number] = (-float(nll), bool(greedy))
            on_done(len(found) - before)
    return [found[number] for number in range(len(readings))]


def answer_readings(
    model: Llama,
    readings: Sequence[Reading],
    method: Method,
    *,
    batch: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    ended: Callable[[list[int]], bool],
    on_done: Callable[[int], object] = lambda count: None,
) -> list[list[int]]:
    """Token ids that continue each reading.

    Args:
        model: The decoder.
        readings: What to read; nothing of it is scored.
        method: How.
        batch: Contexts side by side.
        max_new_tokens: Length of an answer at most.
        sampling: How tokens are drawn.
        seed: Of the draws, with the number of the batch.
        ended: Whether an answer is complete; a batch stops when all are.
        on_done: Called with the number of readings done since the last call.
    """
    found: dict[int, list[int]] = {}
    for members, cache, shape in _encoded(model, readings, method, batch):
        for turn in range(max(map(len, members))):
            chosen = [numbers[min(turn, len(numbers) - 1)] for numbers in members]
            queries = [readings[number].query for number in chosen]
            queries += [queries[-1]] * (batch - len(queries))
            watch = _Watch(len(members), ended)
            out = generate(
                model,
                cache,
                queries,
                method,
                max_new_tokens=max_new_tokens,
                sampling=sampling,
                seed=seed + len(found),
                on_tokens=watch,
                pad_to=shape.query,
            )
            before = len(found)
            for number, tokens in zip(chosen, out.sequences(), strict=False):
                found.setdefault(number, tokens)
            on_done(len(found) - before)
    return [found[number] for number in range(len(readings))]


class _Watch:
    """Tells generation to stop when the first `rows` answers are complete."""

    def __init__(self, rows: int, ended: Callable[[list[int]], bool]):
        self.ended = ended
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.open = set(range(rows))

    def __call__(self, new: list[list[int]]) -> bool:
        for row in list(self.open):
            self.tokens[row] += new[row]
            if not new[row] or self.ended(self.tokens[row]):
                self.open.remove(row)
        return not self.open


def _encoded(
    model: Llama, readings: Sequence[Reading], method: Method, batch: int
) -> Iterator[tuple[Members, ContextCache, Shape]]:
    """Batches of contexts with equal sinks and padded shapes, encoded."""
    contexts: dict[tuple, list[int]] = {}
    for number, reading in enumerate(readings):
        contexts.setdefault(reading.context, []).append(number)
    sinks: dict[tuple[int, ...], Members] = {}
    for (sink, *_), numbers in contexts.items():
        sinks.setdefault(sink, []).append(numbers)
    for sink, members in sinks.items():
        sizes = [_size(readings, numbers) for numbers in members]
        places: dict[Shape, Members] = {}
        for numbers, shape in zip(members, shapes(sizes, batch), strict=True):
            places.setdefault(shape, []).append(numbers)
        for shape, some in places.items():
            some.sort(key=len)  # contexts with as many readings go together
            for start in range(0, len(some), batch):
                chosen = some[start : start + batch]
                segments = [readings[numbers[0]].segments for numbers in chosen]
                segments += [segments[-1]] * (batch - len(segments))
                stacked = stack(segments, sink, segments=shape.segments, tokens=shape.tokens)
                yield chosen, encode_many(model, stacked, method), shape


def _size(readings: Sequence[Reading], numbers: Sequence[int]) -> tuple[int, int, int]:
    segments = readings[numbers[0]].segments
    longest = max(len(readings[number].query) for number in numbers)
    return len(segments), max(1, *map(len, segments)), longest


def _texts(
    chosen: Sequence[Reading], slots: int, rows: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Padded queries, their lengths, and the first scored token of each."""
    chosen = [*chosen, *([chosen[-1]] * (rows - len(chosen)))]
    texts = np.zeros((rows, slots), np.int32)
    for row, reading in zip(texts, chosen, strict=True):
        row[: len(reading.query)] = reading.query
    lengths = np.asarray([len(reading.query) for reading in chosen], np.int32)
    return texts, lengths, lengths - np.asarray([r.scored for r in chosen], np.int32)
