"""Runs side by side: a table of what each reached, and pictures of how it got there."""

import dataclasses
import io
import itertools
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pce_jax import plots
from pce_jax.errors import FinetuneError

from .folder import read_run
from .measured import Found, Measured, closed, read_summary
from .track import read_rows


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """A finished run.

    Attributes:
        name: Of its folder.
        settings: What its numbers follow from.
        rows: Of its `metrics.jsonl`.
        summary: By task, `base` and `tuned`, and degree.
    """

    name: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    summary: Mapping[str, Mapping[str, Found]]

    @property
    def minutes(self) -> float:
        """Of training, measurements left out."""
        return sum(row["seconds"] for row in self.rows if row["kind"] == "step") / 60

    def curve(self, task: str, degree: int, windows: int) -> list[tuple[int, float, float]]:
        """Steps, log PPL and entropy on the first held-out texts, before and after among them."""
        found = []
        for row in self.rows:
            if row["kind"] == "heldout" and row["task"] == task:
                one = Measured.from_json(row["degrees"][str(degree)]).first(windows)
                found.append((row["step"], one.log_ppl, one.mean_entropy))
        return found


def read_result(folder: Path) -> Result:
    """A finished run.

    Args:
        folder: Of the run.

    Raises:
        FinetuneError: There is no run, or it is not finished.
    """
    return Result(
        name=folder.absolute().name,
        settings=read_run(folder)["settings"],
        rows=read_rows(folder),
        summary=read_summary(folder),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Runs that differ by their seed alone.

    Attributes:
        name: What their names begin with.
        runs: In the order given.
    """

    name: str
    runs: Sequence[Result]


def recipes(results: Sequence[Result]) -> list[Recipe]:
    """Runs put together that differ by their seed alone, in the order of the first of each.

    Args:
        results: From `read_result`.
    """
    found: dict[str, list[Result]] = {}
    for result in results:
        same = {name: value for name, value in result.settings.items() if name != "seed"}
        found.setdefault(json.dumps(same, sort_keys=True, default=str), []).append(result)
    return [Recipe(name=_common([run.name for run in runs]), runs=runs) for runs in found.values()]


def table(results: Sequence[Result], degree: int) -> str:
    """Markdown: a row a recipe, and for each task what full attention and segments reached.

    Runs that differ by their seed alone share a row: their mean, with half of the difference
    between the highest and the lowest behind it.

    The share of the gap that is closed is that of the first run's base, so that methods can be
    compared: 1 - (tuned at the degree - better of base and tuned in full) / (base's own gap).

    Args:
        results: From `read_result`; all of the same held-out texts.
        degree: Of the segments.

    Raises:
        FinetuneError: A run was measured on other texts or not at this degree.
    """
    first = results[0].summary
    for result in results:
        for task in first:
            _check_measured(result, task, first[task]["base"], degree)
    head = ["run", "minutes"]
    for task in first:
        head += [f"{task}: full", f"P={degree}", "gap closed"]
        head += ["entropy full", f"entropy P={degree}"]
    lines = [_row(head), _row(["---"] * len(head))]
    cells = [_cells(None, [both["base"]], degree) for both in first.values()]
    lines.append(_row(["before", "", *itertools.chain(*cells)]))
    for recipe in recipes(results):
        cells = [[_mean([run.minutes for run in recipe.runs], ".0f")]]
        for task, both in first.items():
            tuned = [run.summary[task]["tuned"] for run in recipe.runs]
            cells.append(_cells(both["base"], tuned, degree))
        lines.append(_row([recipe.name, *itertools.chain(*cells)]))
    return "\n".join(lines) + "\n"


def pictures(results: Sequence[Result], degree: int) -> dict[str, bytes]:
    """Held-out log PPL and entropy over the steps, a picture a task, as PNG by file name.

    Runs that differ by their seed alone are drawn as their mean.

    Args:
        results: From `read_result`.
        degree: Of the segments.
    """
    done = {}
    for task in results[0].summary:
        windows = min(len(one.ce) for result in results for one in _measured(result, task, degree))
        base = results[0].summary[task]["base"][1].first(windows)
        series = {
            recipe.name: _mean_curve([run.curve(task, degree, windows) for run in recipe.runs])
            for recipe in recipes(results)
        }
        file = io.BytesIO()
        plots.over_steps(
            series,
            (base.log_ppl, base.mean_entropy),
            file,
            title=f"Held-out text ({task}, {windows} windows) at P={degree}",
        )
        done[f"{task}-P{degree}.png"] = file.getvalue()
    return done


def _common(names: Sequence[str]) -> str:
    """What names begin with: `ce` of `ce-0` and `ce-1`."""
    same = [len(set(letters)) == 1 for letters in zip(*names, strict=False)]
    start = names[0][: [*same, False].index(False)]
    return names[0] if len(names) == 1 else start.rstrip("-_. ") or ", ".join(names)


def _check_measured(result: Result, task: str, base: Found, degree: int) -> None:
    found = result.summary.get(task, {"tuned": {}})["tuned"]
    if degree not in found or degree not in base:
        raise FinetuneError(f"{result.name} was not measured on {task} at degree {degree}.")
    mine, first = found[degree].targets, base[degree].targets
    if mine != first:
        raise FinetuneError(
            f"{result.name} was measured on {len(mine)} other texts of {task} than the first run's "
            f"{len(first)}. Compare runs with the same [heldout.{task}]."
        )


def _mean_curve(curves: Sequence[list[tuple[int, float, float]]]) -> list[tuple[int, float, float]]:
    """Of curves with the same steps."""
    mean = []
    for points in zip(*curves, strict=True):
        steps, losses, entropies = zip(*points, strict=True)
        mean.append((steps[0], sum(losses) / len(losses), sum(entropies) / len(entropies)))
    return mean


def _measured(result: Result, task: str, degree: int) -> list[Measured]:
    return [
        Measured.from_json(row["degrees"][str(degree)])
        for row in result.rows
        if row["kind"] == "heldout" and row["task"] == task
    ]


def _cells(base: Found | None, found: Sequence[Found], degree: int) -> list[str]:
    """Of a task; `base` is what a share of its gap may be closed of."""
    shares = [] if base is None else [closed(base, one, degree) for one in found]
    return [
        _mean([one[1].log_ppl for one in found], ".4f"),
        _mean([one[degree].log_ppl for one in found], ".4f"),
        _mean(shares, ".0%"),
        _mean([one[1].mean_entropy for one in found], ".3f"),
        _mean([one[degree].mean_entropy for one in found], ".3f"),
    ]


def _mean(values: Sequence[float], digits: str) -> str:
    """With half of what lies between the highest and the lowest behind it, if there are several."""
    if not values:
        return ""
    mean, apart = sum(values) / len(values), (max(values) - min(values)) / 2
    return f"{mean:{digits}}" + (f" ±{apart:{digits}}" if len(values) > 1 else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
