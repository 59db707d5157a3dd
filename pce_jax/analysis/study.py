"""One context and query read by a method at a degree, measured, and the measurements as rows."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pce_jax.cache import ContextCache
from pce_jax.encode import encoder
from pce_jax.layout import from_segments
from pce_jax.method import Method
from pce_jax.models import Llama
from pce_jax.query import score

from .statistics import ContextStatistics, Statistics, analyze_query, encode_and_analyze
from .swaps import full_like, swap

FULL = "full"
SWAPS = {"": (False, False), "K": (True, False), "V": (False, True), "KV": (True, True)}
"""Names of oracle swaps: whether keys, and whether values come from full attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cell:
    """A context laid out for a method.

    Attributes:
        name: Of the method.
        degree: Number of segments asked for.
        method: What it means here.
        sink: Token ids of the shared prefix.
        segments: Token ids of the segments.
        query: Token ids of the query.
    """

    name: str
    degree: int
    method: Method
    sink: Sequence[int]
    segments: Sequence[Sequence[int]]
    query: Sequence[int]

    @property
    def title(self) -> str:
        """For tables and pictures."""
        return "full attention" if self.method.full else f"{self.name}, P={self.degree}"


@dataclasses.dataclass(frozen=True)
class Measured:
    """A cell and its statistics, on the host."""

    cell: Cell
    context: ContextStatistics
    query: Statistics


@dataclasses.dataclass(frozen=True, kw_only=True)
class SwapRow:
    """How a cell reads its query with keys, values or both from full attention.

    Attributes:
        method: Name of the method.
        degree: Number of segments.
        swapped: What is swapped: nothing, `K`, `V` or `KV`.
        perplexity: Of the query's tokens but the first.
        entropy: Attention entropy of the query in nats: mean over tokens, heads and layers.
    """

    method: str
    degree: int
    swapped: str
    perplexity: float
    entropy: float


def plan(methods: Mapping[str, Method], degrees: Sequence[int]) -> list[tuple[str, int]]:
    """Names and degrees to measure: full attention first, and nothing twice.

    At degree 1 there is nothing to select, and without a sink it is full attention.
    """
    found = [(FULL, 1)]
    for degree in degrees:
        for name, method in methods.items():
            if name != FULL and (degree > 1 or (method.sink and method.select is None)):
                found.append((name, degree))
    return found


def measure(
    model: Llama, cells: Sequence[Cell], swaps: bool = False
) -> Iterator[tuple[Measured, list[SwapRow]]]:
    """Read cells, encoding once what neighbours of one degree share.

    Args:
        model: The decoder.
        cells: What to read.
        swaps: Also score every oracle swap.

    Yields:
        Of each cell the statistics, and a row for each swap (full attention has none to try).

    Raises:
        LayoutError: A cell does not fit the model's positions; with `swaps`, nor may its whole.
    """
    held: dict[Any, _Encoded] = {}
    degree = None
    for cell in cells:
        if cell.degree != degree:
            held.clear()
            degree = cell.degree
        key = encoder(cell.method), tuple(cell.sink)
        if key not in held:
            held[key] = _encode(model, cell, swaps)
        encoded = held[key]
        query = analyze_query(model, encoded.cache, cell.query, cell.method)
        measured = Measured(cell, encoded.statistics, jax.device_get(query))
        yield measured, list(_swap_rows(model, cell, encoded)) if swaps else []


@dataclasses.dataclass(frozen=True)
class _Encoded:
    """What cells share whose methods differ only in what queries do."""

    statistics: ContextStatistics
    cache: ContextCache
    full: ContextCache | None


def _encode(model: Llama, cell: Cell, swaps: bool) -> _Encoded:
    context = from_segments(cell.segments, cell.sink)
    cache, statistics = encode_and_analyze(model, context, cell.method)
    swappable = swaps and not cell.method.full
    full = full_like(model, context, cell.method) if swappable else None
    return _Encoded(jax.device_get(statistics), cache, full)


def _swap_rows(model: Llama, cell: Cell, encoded: _Encoded) -> Iterator[SwapRow]:
    for name, (keys, values) in SWAPS.items():
        if name and encoded.full is None:
            return
        cache = encoded.cache
        if encoded.full is not None:
            cache = swap(cache, encoded.full, keys=keys, values=values)
        out = score(model, cache, cell.query, cell.method, stats=True)
        assert out.stats is not None
        yield SwapRow(
            method=cell.name,
            degree=cell.degree,
            swapped=name,
            perplexity=float(np.exp(out.sum() / max(len(cell.query) - 1, 1))),
            entropy=float(out.stats.mean()),
        )


def values(found: Statistics) -> dict[str, np.ndarray]:
    """Every statistic as `[layers, heads, tokens]` of the real tokens, in order.

    Numbers of key heads are repeated for the query heads that share them.
    """
    heads = found.logit.shape[1]
    real = np.asarray(found.valid)

    def flat(x: Any) -> np.ndarray:
        x = np.asarray(x)[:, :, real]
        return np.repeat(x, heads // x.shape[1], axis=1)

    return {
        "entropy": flat(found.entropy.total),
        "entropy_between": flat(found.entropy.between),
        "entropy_within": flat(found.entropy.within),
        "logit": flat(found.logit),
        "cosine": flat(found.cosine),
        "q": flat(found.q),
        "k": flat(found.k),
        "v": flat(found.v),
        "q_norm": flat(found.q_norm),
        "k_norm": flat(found.k_norm),
        "output": flat(found.output),
        "sink_mass": flat(found.sink_mass),
        "segment_mass": flat(np.sum(found.segment_mass, axis=-1)),
        "tail_mass": flat(found.tail_mass),
    }


def masses(measured: Measured) -> np.ndarray:
    """Attention of the query to each segment, `[layers, heads, tokens, segments]`."""
    count = 1 if measured.cell.method.full else len(measured.cell.segments)
    return np.asarray(measured.query.segment_mass)[..., :count]


def layer_rows(measured: Measured) -> Iterator[dict[str, Any]]:
    """A row for each part, layer and head: means over its tokens."""
    by_segment = masses(measured).mean(axis=2)
    for part, found in _parts(measured).items():
        means = {name: x.mean(axis=2) for name, x in found.items()}
        for layer, head in np.ndindex(means["entropy"].shape):
            row: dict[str, Any] = {"part": part, "layer": layer, "head": head}
            row |= {name: _number(x[layer, head]) for name, x in means.items()}
            if part == "query":
                row["segment_masses"] = [_number(x) for x in by_segment[layer, head]]
            yield _named(measured) | row


def token_rows(measured: Measured) -> Iterator[dict[str, Any]]:
    """A row for each token: means over layers and heads.

    `token` counts from the first token of the context through the query; the sink is before 0.
    """
    cell = measured.cell
    places = {
        "sink": [(None, i, i - len(cell.sink), t) for i, t in enumerate(cell.sink)],
        "segment": _places(cell),
        "query": [(None, i, sum(map(len, cell.segments)) + i, t) for i, t in enumerate(cell.query)],
    }
    by_segment = masses(measured).mean(axis=(0, 1))
    for part, found in _parts(measured).items():
        means = {name: x.mean(axis=(0, 1)) for name, x in found.items()}
        for number, (segment, index, token, token_id) in enumerate(places[part]):
            row: dict[str, Any] = {"part": part, "segment": segment, "index": index}
            row |= {"token": token, "token_id": token_id}
            row |= {name: _number(x[number]) for name, x in means.items()}
            if part == "query":
                row["segment_masses"] = [_number(x) for x in by_segment[number]]
            yield _named(measured) | row


def curve(measured: Measured, name: str) -> np.ndarray:
    """A statistic by token of the context and then the query; mean over layers and heads."""
    parts = [values(measured.context.segments)[name], values(measured.query)[name]]
    return np.concatenate([part.mean(axis=(0, 1)) for part in parts])


def first_tokens(cell: Cell) -> np.ndarray:
    """Where segments begin, on the axis of `curve`."""
    lengths = [len(segment) for segment in cell.segments]
    return np.cumsum(lengths) - lengths


def _parts(measured: Measured) -> dict[str, dict[str, np.ndarray]]:
    found = {"segment": values(measured.context.segments), "query": values(measured.query)}
    if measured.context.sink is not None:
        found = {"sink": values(measured.context.sink)} | found
    return found


def _places(cell: Cell) -> list[tuple[int | None, int, int, int]]:
    """Segment, index in it, token of the whole and token id."""
    segments = cell.segments
    if cell.method.full:
        segments = [[token for segment in segments for token in segment]]
    found: list[tuple[int | None, int, int, int]] = []
    for number, segment in enumerate(segments, 1):
        found += [(number, i, len(found) + i, t) for i, t in enumerate(segment)]
    return found


def _named(measured: Measured) -> dict[str, Any]:
    return {"method": measured.cell.name, "degree": measured.cell.degree}


def _number(x: Any) -> float:
    return float(f"{float(x):.6g}")
