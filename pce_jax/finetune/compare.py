"""Runs side by side: a table of what each reached, and pictures of how it got there."""

import dataclasses
import io
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


def table(results: Sequence[Result], degree: int) -> str:
    """Markdown: a row a run, and for each task what full attention and segments reached.

    The share of the gap that is closed is that of the first run's base, so that methods can be
    compared: 1 - (tuned at the degree - better of base and tuned in full) / (base's own gap).

    Args:
        results: From `read_result`; all of the same held-out texts.
        degree: Of the segments.

    Raises:
        FinetuneError: A run was measured on other texts or not at this degree.
    """
    tasks = list(results[0].summary)
    for result in results:
        known = {task for task in tasks if degree in result.summary.get(task, {}).get("tuned", {})}
        if missing := [task for task in tasks if task not in known]:
            raise FinetuneError(
                f"{result.name} was not measured on {missing[0]} at degree {degree}."
            )
    head = ["run", "minutes"]
    for task in tasks:
        head += [f"{task}: full", f"P={degree}", "gap closed"]
        head += ["entropy full", f"entropy P={degree}"]
    lines = [_row(head), _row(["---"] * len(head))]
    first = results[0].summary
    before = [cell for task in tasks for cell in _cells(first[task], "base", degree)]
    lines.append(_row(["before", "", *before]))
    for result in results:
        cells = [result.name, f"{result.minutes:.0f}"]
        for task in tasks:
            cells += _cells(
                {"base": first[task]["base"], "tuned": result.summary[task]["tuned"]},
                "tuned",
                degree,
            )
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def pictures(results: Sequence[Result], degree: int) -> dict[str, bytes]:
    """Held-out log PPL and entropy over the steps, a picture a task, as PNG by file name.

    Args:
        results: From `read_result`.
        degree: Of the segments.
    """
    done = {}
    for task in results[0].summary:
        windows = min(len(one.ce) for result in results for one in _measured(result, task, degree))
        base = results[0].summary[task]["base"][1].first(windows)
        series = {result.name: result.curve(task, degree, windows) for result in results}
        file = io.BytesIO()
        plots.over_steps(
            series,
            (base.log_ppl, base.mean_entropy),
            file,
            title=f"Held-out text ({task}, {windows} windows) at P={degree}",
        )
        done[f"{task}-P{degree}.png"] = file.getvalue()
    return done


def _measured(result: Result, task: str, degree: int) -> list[Measured]:
    return [
        Measured.from_json(row["degrees"][str(degree)])
        for row in result.rows
        if row["kind"] == "heldout" and row["task"] == task
    ]


def _cells(both: Mapping[str, Found], who: str, degree: int) -> list[str]:
    base, found = both["base"], both[who]
    share = "" if who == "base" else f"{closed(base, found, degree):.0%}"
    return [
        f"{found[1].log_ppl:.4f}",
        f"{found[degree].log_ppl:.4f}",
        share,
        f"{found[1].mean_entropy:.3f}",
        f"{found[degree].mean_entropy:.3f}",
    ]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
