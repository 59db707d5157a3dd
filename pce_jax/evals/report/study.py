"""All statistics of a task: which cells are compared with which, and what is missing."""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from .cells import FULL, NAIVE, Cell, Key, TaskCells
from .stats import (
    Bootstrap,
    Estimate,
    Sample,
    conditional,
    correlation,
    difference,
    gap_closed,
    mean,
    slope,
)

POOLED = "all methods"
_UNPAIRED = "the cells have no instance in common"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Statistic:
    """One number of a report.

    Attributes:
        name: What it is: `correlation`, `correlation_log`, `slope`, `gap_closed`, `difference` or
            `given_full_right`.
        task: Name of the task.
        method: Name of the method, or `POOLED`.
        versus: Method it is compared with, if any.
        degree: Of the cell; `None` for what spans degrees.
        estimate: The number.
    """

    name: str
    task: str
    method: str
    versus: str = ""
    degree: int | None = None
    estimate: Estimate


@dataclasses.dataclass(frozen=True, eq=False)
class Study:
    """A task with all that is said of it.

    Attributes:
        task: Its cells.
        scores: Accuracy, or perplexity, by method and degree.
        entropies: Likewise, in nats.
        statistics: Everything else.
        remarks: What is missing or limited, in words.
    """

    task: TaskCells
    scores: dict[Key, Estimate]
    entropies: dict[Key, Estimate]
    statistics: list[Statistic]
    remarks: list[str]

    def find(self, name: str) -> dict[tuple[str, str, int | None], Estimate]:
        """Statistics of one name, by method, versus and degree."""
        return {
            (found.method, found.versus, found.degree): found.estimate
            for found in self.statistics
            if found.name == name
        }


def study(task: TaskCells, bootstrap: Bootstrap) -> Study:
    """Compute everything for a task.

    Args:
        task: Its cells.
        bootstrap: Resampling.
    """
    scores, entropies = {}, {}
    for key, cell in task.cells.items():
        score = mean(cell.sample, bootstrap)
        scores[key] = score.map(np.exp) if task.is_lm else score
        entropies[key] = mean(Sample(cell.entropy, np.ones(cell.entropy.size)), bootstrap)
    statistics = [
        *_over_degrees(task, bootstrap),
        *_gaps(task, bootstrap),
        *_differences(task, bootstrap),
        *_given_full_right(task, bootstrap),
    ]
    return Study(task, scores, entropies, statistics, list(_remarks(task)))


def _over_degrees(task: TaskCells, bootstrap: Bootstrap) -> Iterable[Statistic]:
    curves = {method: list(task.curve(method).values()) for method in task.methods}
    groups = dict(curves)
    if len(curves) > 1:
        groups[POOLED] = list(dict.fromkeys(itertools.chain(*curves.values())))
    for name, keys in groups.items():
        cells = task.paired(*keys)
        if cells is None:
            nothing = Estimate(value=None, count=0, why=_UNPAIRED)
            for statistic in ("correlation", "slope"):
                yield Statistic(name=statistic, task=task.name, method=name, estimate=nothing)
            continue
        entropy = np.stack([cell.entropy for cell in cells])
        score = Sample(*(np.stack(parts) for parts in zip(*(c.sample for c in cells), strict=True)))
        found = {"correlation": correlation(entropy, score, bootstrap)}
        if task.is_lm:
            found["correlation_log"] = found["correlation"]
            found["correlation"] = correlation(entropy, score, bootstrap, np.exp)
        if name != POOLED:
            degrees = np.array(list(task.curve(name)), np.float64)
            found["slope"] = slope(degrees, entropy, bootstrap)
        for statistic, estimate in found.items():
            yield Statistic(name=statistic, task=task.name, method=name, estimate=estimate)


def _gaps(task: TaskCells, bootstrap: Bootstrap) -> Iterable[Statistic]:
    if task.reference is None or NAIVE not in task.methods:
        return
    for method, degree in itertools.product(task.methods, task.degrees):
        if method == NAIVE or degree == 1 or not task.has(method, degree):
            continue
        if not task.has(NAIVE, degree):
            estimate = Estimate(value=None, count=0, why="naive was not run at this degree")
        else:
            cells = task.paired((method, degree), (NAIVE, degree), task.reference)
            if cells is None:
                estimate = Estimate(value=None, count=0, why=_UNPAIRED)
            else:
                one, naive, full = (cell.sample for cell in cells)
                estimate = gap_closed(one, naive, full, bootstrap, higher_is_better=not task.is_lm)
        yield Statistic(
            name="gap_closed",
            task=task.name,
            method=method,
            versus=NAIVE,
            degree=degree,
            estimate=estimate,
        )


def _differences(task: TaskCells, bootstrap: Bootstrap) -> Iterable[Statistic]:
    """Every method with those before it, and with full attention."""
    for degree in task.degrees:
        present = [method for method in task.methods if task.has(method, degree)]
        pairs = [(b, (b, degree), a, (a, degree)) for a, b in itertools.combinations(present, 2)]
        if task.reference is not None:
            pairs += [
                (method, (method, degree), FULL, task.reference)
                for method in present
                if (method, degree) != task.reference
            ]
        for method, key, versus, other in pairs:
            cells = task.paired(key, other)
            yield Statistic(
                name="difference",
                task=task.name,
                method=method,
                versus=versus,
                degree=degree,
                estimate=Estimate(value=None, count=0, why=_UNPAIRED)
                if cells is None
                else difference(cells[0].sample, cells[1].sample, bootstrap),
            )


def _given_full_right(task: TaskCells, bootstrap: Bootstrap) -> Iterable[Statistic]:
    if task.is_lm or task.reference is None:
        return
    for key in itertools.product(task.methods, task.degrees):
        if key not in task.cells or key == task.reference:
            continue
        cells = task.paired(key, task.reference)
        yield Statistic(
            name="given_full_right",
            task=task.name,
            method=key[0],
            versus=FULL,
            degree=key[1],
            estimate=Estimate(value=None, count=0, why=_UNPAIRED)
            if cells is None
            else conditional(cells[0].sample.total, cells[1].sample.total, bootstrap),
        )


def _remarks(task: TaskCells) -> Iterable[str]:
    if task.reference is None:
        yield (
            f"{task.name}: full attention was not measured, so there is no share of the gap and "
            "nothing to compare with. Run `pce-jax eval` with degree 1 too, where the model's "
            "window holds the whole context."
        )
    if task.reference is not None and NAIVE not in task.methods:
        yield (
            f"{task.name}: method naive was not measured, so there is no share of the gap. Run "
            "`pce-jax eval` with it too."
        )
    if len(task.degrees) < 2:
        yield (
            f"{task.name}: there is one degree only, P={task.degrees[0]}, so nothing can be said "
            "of how score and entropy change with it. Run `pce-jax eval` with more of them."
        )
    sizes = {key: len(cell.rows) for key, cell in task.cells.items()}
    together = task.paired(*task.cells)
    common = 0 if together is None else len(together[0].rows)
    if common != max(sizes.values()):
        least = min(sizes, key=lambda key: sizes[key])
        yield (
            f"{task.name}: cells differ in their instances, from {sizes[least]} ({least[0]}, "
            f"P={least[1]}) to {max(sizes.values())}; {common} are in all cells. A cell's mean is "
            "over all it has; what compares cells uses only the instances that they share."
        )
    fewer = {}
    for degree in task.degrees:
        cells = [cell for (method, at), cell in task.cells.items() if at == degree != 1]
        found = [_segments(cell) for cell in cells if FULL not in _methods(cell)]
        if found and min(found) < degree:
            fewer[degree] = min(found)
    if fewer:
        text = ", ".join(f"{found:.4g} at P={degree}" for degree, found in fewer.items())
        yield (
            f"{task.name}: contexts have fewer items than segments asked for. Segments really "
            f"filled, on average: {text}."
        )


def _segments(cell: Cell) -> float:
    return float(np.mean([row.segments for row in cell.rows.values()]))


def _methods(cell: Cell) -> set[str]:
    return {row.method for row in cell.rows.values()}


def best(values: Sequence[tuple[str, float]], *, higher: bool) -> set[str]:
    """The names of the best value, all that tie."""
    top = (max if higher else min)(value for _, value in values)
    return {name for name, value in values if value == top}
