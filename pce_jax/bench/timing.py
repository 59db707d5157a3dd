"""Interleaved timing: A, B, A, B, ... so that whatever else the machine does hits both alike."""

import dataclasses
import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from pce_jax.programs import CompileTime


@dataclasses.dataclass(frozen=True)
class Sample:
    """What repeats of one thing gave, in the order in which they were taken.

    Attributes:
        values: Seconds, or a ratio; at least one.
    """

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The value in the middle."""
        return statistics.median(self.values)

    @property
    def low(self) -> float:
        """The smallest."""
        return min(self.values)

    @property
    def high(self) -> float:
        """The largest."""
        return max(self.values)

    def scaled(self, factor: float) -> "Sample":
        """Every value times `factor`."""
        return Sample(tuple(value * factor for value in self.values))


@dataclasses.dataclass(frozen=True)
class Ratio:
    """How one thing compares with another that was timed in turns with it.

    Attributes:
        value: Median over median.
        low: Smallest of the ratios of neighbours in time.
        high: The largest.
    """

    value: float
    low: float
    high: float


def ratio(above: Sample, below: Sample) -> Ratio:
    """`above` over `below`, which have equally many values."""
    pairs = [a / b for a, b in zip(above.values, below.values, strict=True)]
    return Ratio(above.median / below.median, min(pairs), max(pairs))


@dataclasses.dataclass(frozen=True)
class Case:
    """One thing to time.

    Attributes:
        run: What is timed, until its result is ready; gets what `prepare` gives, if there is one.
        prepare: Run before each call, and not timed.
        cost: Roughly how much work a call is, in FLOPs; for the time left.
    """

    run: Callable[..., Any]
    prepare: Callable[[], Any] | None = None
    cost: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timed:
    """How long something took.

    Attributes:
        sample: Seconds of each call but the first.
        compile_seconds: What jax spent in the first call to trace, lower and compile.
    """

    sample: Sample
    compile_seconds: float


def interleaved(
    cases: Mapping[str, Case],
    repeats: int,
    *,
    step: Callable[[str, float], object] = lambda name, cost: None,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, Timed]:
    """Time several things in turns, after one call of each that does not count.

    Args:
        cases: What to time, by name.
        repeats: Calls of each that count; at least one.
        step: Told the name and the cost before each call.
        clock: Seconds.
    """
    compiled, values = {}, {name: [] for name in cases}
    for name, case in cases.items():
        step(name, case.cost)
        with CompileTime() as compiling:
            _call(case, clock)
        compiled[name] = compiling.seconds
    for _ in range(repeats):
        for name, case in cases.items():
            step(name, case.cost)
            values[name].append(_call(case, clock))
    return {name: Timed(Sample(tuple(values[name])), compiled[name]) for name in cases}


def _call(case: Case, clock: Callable[[], float]) -> float:
    given = () if case.prepare is None else (jax.block_until_ready(case.prepare()),)
    start = clock()
    jax.block_until_ready(case.run(*given))
    return clock() - start
