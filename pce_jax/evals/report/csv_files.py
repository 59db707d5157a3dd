"""The CSV files of a report: every number unrounded, one a line."""

import csv
import io
import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from .study import Study


def cells_csv(studies: Sequence[Study]) -> bytes:
    """Every measure of every cell, a line each."""
    header = ("task", "method", "degree", "measure", "value", "low", "high", "instances")
    lines = itertools.chain.from_iterable(_cell_lines(study) for study in studies)
    return _csv(header, lines)


def _cell_lines(study: Study) -> Iterable[tuple[object, ...]]:
    task = study.task
    headline = "perplexity" if task.is_lm else task.metric
    for key, cell in task.cells.items():
        rows = list(cell.rows.values())
        for measure, estimate in ((headline, study.scores[key]), ("entropy", study.entropies[key])):
            ends = (estimate.value, estimate.low, estimate.high)
            yield task.name, *key, measure, *ends, estimate.count
        others = {
            name: [row.metrics[name] for row in rows if name in row.metrics]
            for name in dict.fromkeys(name for row in rows for name in row.metrics)
            if name != headline
        }
        for name in (
            *("entropy_query", "between", "context_tokens", "query_tokens"),
            *("sink_tokens", "segments", "scored", "seconds"),
        ):
            others[name] = [getattr(row, name) for row in rows]
        for name, values in others.items():
            finite = [value for value in values if np.isfinite(value)]
            mean = float(np.mean(finite)) if finite else None
            yield task.name, *key, name, mean, None, None, len(finite)


def statistics_csv(studies: Sequence[Study]) -> bytes:
    """Every statistic, a line each."""
    header = (
        *("statistic", "task", "method", "versus", "degree"),
        *("value", "low", "high", "instances", "remark"),
    )
    return _csv(
        header,
        (
            (
                *(s.name, s.task, s.method, s.versus, s.degree),
                *(s.estimate.value, s.estimate.low, s.estimate.high),
                *(s.estimate.count, s.estimate.why),
            )
            for study in studies
            for s in study.statistics
        ),
    )


def _csv(header: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """A CSV file in UTF-8; `None` is an empty cell."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(["" if cell is None else cell for cell in row] for row in rows)
    return out.getvalue().encode()
