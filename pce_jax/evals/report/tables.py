"""Tables of a report: methods against degrees."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from .cells import FULL, Key, TaskCells
from .stats import Estimate
from .study import Study, best
from .words import MINUS, Table, label, number, unit, with_interval


def score_table(studies: Sequence[Study]) -> Table:
    """Score of each task and method (rows) at each degree (columns); the best of each is bold."""

    def line(study: Study, method: str, degrees: Sequence[int]) -> list[str]:
        scale, digits = (1, 2) if study.task.is_lm else (100, 1)
        cells = []
        for degree in degrees:
            text = number(_value(study.scores, (method, degree)), digits, scale)
            cells.append(f"**{text}**" if method in _winners(study, degree) else text)
        return cells

    return _by_degree(studies, line, ("score", unit))


def _winners(study: Study, degree: int) -> set[str]:
    found = [
        (method, value)
        for method in study.task.methods
        if (value := _value(study.scores, (method, degree))) is not None
    ]
    if degree == 1 or len(found) < 2:
        return set()
    winners = best(found, higher=not study.task.is_lm)
    return set() if len(winners) == len(found) else winners


def entropy_table(studies: Sequence[Study]) -> Table:
    """Attention entropy, likewise, and its change with every doubling of the degree."""

    def line(study: Study, method: str, degrees: Sequence[int]) -> list[str]:
        found = [_value(study.entropies, (method, degree)) for degree in degrees]
        slope = study.find("slope").get((method, "", None))
        return [
            *(number(value, 2) for value in found),
            with_interval(slope, 2, sign=True),
        ]

    table = _by_degree(studies, line)
    return dataclasses.replace(table, header=[*table.header, "per doubling"])


def gap_table(studies: Sequence[Study]) -> Table:
    """Share of the gap between naive and full attention that each method closes, in percent."""

    def line(study: Study, method: str, degrees: Sequence[int]) -> list[str] | None:
        found = study.find("gap_closed")
        cells = [found.get((method, "naive", degree)) for degree in degrees]
        return [with_interval(cell, 0, 100) for cell in cells] if any(cells) else None

    return _by_degree(studies, line, skip_one=True)


def conditional_table(studies: Sequence[Study]) -> Table:
    """Score on the instances that full attention gets right, in percent."""

    def line(study: Study, method: str, degrees: Sequence[int]) -> list[str] | None:
        found = study.find("given_full_right")
        cells = [found.get((method, FULL, degree)) for degree in degrees]
        return [with_interval(cell, 1, 100) for cell in cells] if any(cells) else None

    def right(task: TaskCells) -> str:
        counts = [e.count for s in studies if s.task is task for e in _right(s)]
        return f"n={_span(counts)}"

    return _by_degree(studies, line, ("instances", right))


def _right(study: Study) -> Iterable[Estimate]:
    return study.find("given_full_right").values()


def _span(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def correlation_table(studies: Sequence[Study]) -> Table:
    """Pearson's R between the entropy and the score of cells."""
    rows = []
    for study in studies:
        found, logs = study.find("correlation"), study.find("correlation_log")
        for method, _, _ in found:
            estimate, log = found[method, "", None], logs.get((method, "", None))
            rows.append(
                [
                    study.task.name,
                    unit(study.task),
                    method,
                    with_interval(estimate, 3),
                    with_interval(log, 3),
                    str(estimate.count),
                    estimate.why,
                ]
            )
    header = ["task", "score", "method", "R", "R of log perplexity", "instances", "remark"]
    table = Table(header, rows, left=3)
    return table if any(study.task.is_lm for study in studies) else _without(table, 4)


def _without(table: Table, column: int) -> Table:
    header, *rows = ([*line[:column], *line[column + 1 :]] for line in (table.header, *table.rows))
    return Table(header, rows, table.left)


def difference_table(study: Study) -> Table:
    """Differences between methods (rows) at each degree (columns); bold where chance is excluded.

    In points of percent, or for passages in nats per token.
    """
    found = study.find("difference")
    pairs = dict.fromkeys((method, versus) for method, versus, _ in found)
    digits, scale = (3, 1) if study.task.is_lm else (1, 100)
    order = [*study.task.methods, FULL]
    rows = []
    for method, versus in sorted(pairs, key=lambda pair: [order.index(n) for n in reversed(pair)]):
        cells = []
        for degree in study.task.degrees:
            estimate = found.get((method, versus, degree))
            text = with_interval(estimate, digits, scale, sign=True)
            cells.append(f"**{text}**" if estimate and estimate.excludes_zero else text)
        rows.append([f"{method} {MINUS} {label(versus)}", *cells])
    return Table(["difference", *_headings(study.task.degrees)], rows)


def family_tables(studies: Sequence[Study], families: dict[str, str]) -> tuple[Table, Table]:
    """Means of scores and of entropies over the tasks of each family that has several.

    Args:
        studies: All tasks.
        families: Family of each task.
    """
    groups: dict[str, list[Study]] = {}
    for study in studies:
        if study.task.name in families:
            groups.setdefault(families[study.task.name], []).append(study)
    groups = {name: group for name, group in groups.items() if len(group) > 1}
    degrees = sorted({d for group in groups.values() for s in group for d in s.task.degrees})
    scores, entropies = [], []
    for name, group in groups.items():
        kind = "perplexity" if group[0].task.is_lm else "score (%)"
        scale, digits = (1, 2) if group[0].task.is_lm else (100, 2)
        methods = dict.fromkeys(m for s in group for m, _ in s.scores if m != FULL)
        for method in [FULL, *methods]:
            keys = [(method, degree) for degree in degrees]
            if not any(key in s.scores for s in group for key in keys):
                continue
            head = [f"{name} ({len(group)} tasks)", label(method)]
            values = [_macro([_value(s.scores, key) for s in group]) for key in keys]
            scores.append([head[0], kind, head[1], *(number(v, digits, scale) for v in values)])
            values = [_macro([_value(s.entropies, key) for s in group]) for key in keys]
            entropies.append([*head, *(number(v, 2) for v in values)])
    headings = _headings(degrees)
    return (
        Table(["family", "score", "method", *headings], scores, left=3),
        Table(["family", "method", *headings], entropies, left=2),
    )


def _macro(values: Sequence[float | None]) -> float | None:
    """The mean, if every task has a value."""
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if len(found) == len(values) else None


def _value(estimates: Mapping[Key, Estimate], key: Key) -> float | None:
    estimate = estimates.get(key)
    return None if estimate is None else estimate.value


def _by_degree(
    studies: Sequence[Study],
    line: Callable[[Study, str, Sequence[int]], list[str] | None],
    second: tuple[str, Callable[[TaskCells], str]] | None = None,
    *,
    skip_one: bool = False,
) -> Table:
    """A row for each task and method, with a column for each degree of any task.

    Args:
        studies: The tasks.
        line: Cells of a task and method, or `None` for no row.
        second: Heading and text of a column between task and method.
        skip_one: Leave out degree 1.
    """
    degrees = sorted({degree for study in studies for degree in study.task.degrees})
    degrees = [degree for degree in degrees if not (skip_one and degree == 1)]
    rows = []
    for study in studies:
        task = study.task
        methods = [FULL, *task.methods] if any(m == FULL for m, _ in task.cells) else task.methods
        for method in methods:
            cells = line(study, method, degrees)
            if cells is not None:
                extra = [second[1](task)] if second else []
                rows.append([task.name, *extra, label(method), *cells])
    header = ["task", *([second[0]] if second else []), "method", *_headings(degrees)]
    return Table(header, rows, left=3 if second else 2)


def _headings(degrees: Sequence[int]) -> list[str]:
    return [f"P={degree}" for degree in degrees]
