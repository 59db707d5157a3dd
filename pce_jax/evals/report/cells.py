"""From rows to cells: a task's instances as arrays, by method and degree."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from pce_jax.errors import EvalError
from pce_jax.evals.rows import Row
from pce_jax.method import METHODS

from .stats import Sample

FULL, NAIVE = "full", "naive"

Key = tuple[str, int]
"""Method and degree."""


@dataclasses.dataclass(frozen=True, eq=False)
class Cell:
    """What one method made of a task at one degree.

    Attributes:
        rows: Its rows by instance.
        sample: Headline score and weight of each.
        entropy: Attention entropy of each, in nats.
    """

    rows: Mapping[str, Row]
    sample: Sample
    entropy: Float[np.ndarray, " instances"]


@dataclasses.dataclass(frozen=True, eq=False)
class TaskCells:
    """All cells of a task.

    Attributes:
        name: Of the task.
        metric: Key of the headline metric; `None` for passages, whose score is perplexity.
        cells: By method and degree.
    """

    name: str
    metric: str | None
    cells: Mapping[Key, Cell]

    @property
    def is_lm(self) -> bool:
        """Whether passages were scored, and not answers."""
        return self.metric is None

    @functools.cached_property
    def degrees(self) -> list[int]:
        """Ascending."""
        return sorted({degree for _, degree in self.cells})

    @functools.cached_property
    def methods(self) -> list[str]:
        """Those with a degree, in the library's order and then that of the rows; not `full`."""
        found = dict.fromkeys(method for method, _ in self.cells if method != FULL)
        known = [method for method in METHODS if method in found]
        return known + [method for method in found if method not in known]

    @functools.cached_property
    def reference(self) -> Key | None:
        """The cell of full attention: method `full`, or `naive` in one segment."""
        full = sorted(degree for method, degree in self.cells if method == FULL)
        if full:
            return FULL, full[0]
        return (NAIVE, 1) if (NAIVE, 1) in self.cells else None

    def curve(self, method: str) -> dict[int, Key]:
        """A method's cells by degree. Naive encoding in one segment is full attention."""
        found = {degree: (method, degree) for degree in self.degrees if self.has(method, degree)}
        if method == NAIVE and self.reference is not None:
            found = {1: self.reference} | found
        return found

    def has(self, method: str, degree: int) -> bool:
        """Whether there is such a cell."""
        return (method, degree) in self.cells

    def paired(self, *keys: Key) -> list[Cell] | None:
        """Cells cut to the instances that all of them have, in one order; `None` if none."""
        first, *others = (self.cells[key].rows for key in keys)
        common = [name for name in first if all(name in rows for rows in others)]
        if not common:
            return None
        return [_cell([self.cells[key].rows[name] for name in common], self.metric) for key in keys]


def collect(
    rows: Sequence[Row], metrics: Mapping[str, str] | None = None
) -> tuple[list[TaskCells], list[str]]:
    """Sort rows into tasks and cells.

    Args:
        rows: In any order.
        metrics: Headline metric by task; without, the first one that a task's rows name.

    Returns:
        The tasks, in the order of the rows, and remarks on rows that were left out.

    Raises:
        EvalError: There are no rows, an instance is there twice in a cell, or a row does not fit
            its task.
    """
    if not rows:
        raise EvalError("there are no rows to report. Run `pce-jax eval` first, or let it finish.")
    tasks: dict[str, dict[Key, dict[str, Row]]] = {}
    chosen: dict[str, str | None] = {}
    lost: dict[tuple[str, str, int], int] = {}
    for row in rows:
        if row.task not in chosen:
            named = (metrics or {}).get(row.task)
            chosen[row.task] = None if row.nll is not None else named or next(iter(row.metrics), "")
        metric = chosen[row.task]
        _check(row, metric)
        if not _finite(row, metric):
            key = (row.task, row.method, row.degree)
            lost[key] = lost.get(key, 0) + 1
            continue
        cell = tasks.setdefault(row.task, {}).setdefault((row.method, row.degree), {})
        if row.id in cell:
            raise EvalError(
                f"{_where(row)}: the instance is there twice. Delete the cell's file and run "
                "`pce-jax eval` again."
            )
        cell[row.id] = row
    remarks = [
        f"{task}, {method}, P={degree}: {count} rows without a finite score and entropy were left "
        "out. The model's output was no number there: look at these rows."
        for (task, method, degree), count in lost.items()
    ]
    if not tasks:
        raise EvalError("no row has a finite score and entropy. " + " ".join(remarks))
    found = []
    for name, cells in tasks.items():
        metric = chosen[name]
        made = {key: _cell(list(cell.values()), metric) for key, cell in cells.items()}
        found.append(TaskCells(name, metric, made))
    return found, remarks


def _cell(rows: Sequence[Row], metric: str | None) -> Cell:
    if metric is None:
        total = [row.nll for row in rows]
        weight = [row.scored for row in rows]
    else:
        total = [row.metrics[metric] for row in rows]
        weight = [1] * len(rows)
    return Cell(
        {row.id: row for row in rows},
        Sample(np.array(total, np.float64), np.array(weight, np.float64)),
        np.array([row.entropy for row in rows], np.float64),
    )


def _where(row: Row) -> str:
    return f"task {row.task!r}, method {row.method!r}, P={row.degree}, instance {row.id!r}"


def _check(row: Row, metric: str | None) -> None:
    """See that a row has what its task is scored by."""
    if (row.nll is None) != (metric is not None):
        raise EvalError(
            f"{_where(row)}: some rows of the task are scored passages and some are answers. Two "
            "tasks share the name: give them different names and run `pce-jax eval` again."
        )
    if metric is None:
        if row.scored < 1:
            raise EvalError(f"{_where(row)}: `scored` is {row.scored}; it must be at least 1.")
    elif metric not in row.metrics:
        raise EvalError(
            f"{_where(row)}: there is no metric {metric!r}, by which the task is scored "
            f"(found: {', '.join(row.metrics) or 'none'})."
        )


def _finite(row: Row, metric: str | None) -> bool:
    score = row.nll if metric is None else row.metrics[metric]
    return score is not None and math.isfinite(score) and math.isfinite(row.entropy)
