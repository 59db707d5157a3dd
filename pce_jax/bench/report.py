"""What the benchmark leaves behind: tables for people, and everything as JSON."""

import dataclasses
import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

from .bars import Bar
from .found import Found, Row
from .roofline import Roofline
from .timing import Sample

RATES = "Roofline"
TIMES = "Times"
BARS = "Bars"
COUNTS = "Counts"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A table as text.

    Attributes:
        title: Of the table.
        heads: Of the columns; all but the first hold numbers.
        rows: Cells; a row of one cell is a heading.
    """

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def grids(found: Found, roofline: Roofline) -> list[Grid]:
    """The tables, those that are empty left out."""
    tables = [_times(found.rows), _roofline(found.rows, roofline), _counts(found), _bars(found)]
    return [table for table in tables if table.rows]


def _times(rows: Sequence[Row]) -> Grid:
    lines: list[tuple[str, ...]] = []
    for (part, size), group in _grouped(rows):
        lines.append((f"{part} {size}",))
        lines += [
            (
                f"  {row.name}",
                seconds(row.sample.median),
                span(row.sample),
                f"{row.tokens_per_second:.1f}" if row.tokens else "",
                "" if row.compile_seconds is None else f"{row.compile_seconds:.1f}",
            )
            for row in group
        ]
    return Grid(TIMES, ("", "median", "spread", "tokens/s", "compile s"), tuple(lines))


def _roofline(rows: Sequence[Row], roofline: Roofline) -> Grid:
    """Operations a second and bytes a second, and their share of what the device can do."""
    lines: list[tuple[str, ...]] = [
        ("device", f"{roofline.flops / 1e9:.1f}", "100 %", f"{roofline.bytes / 1e9:.1f}", "100 %")
    ]
    for (part, size), group in _grouped(rows):
        counted = [row for row in group if row.flops]
        if counted:
            lines.append((f"{part} {size}",))
        for row in counted:
            flops = row.flops / row.sample.median
            read = row.bytes / row.sample.median
            lines.append(
                (
                    f"  {row.name}",
                    f"{flops / 1e9:.1f}",
                    f"{flops / roofline.flops:.0%}".replace("%", " %"),
                    f"{read / 1e9:.1f}" if read else "",
                    f"{read / roofline.bytes:.0%}".replace("%", " %") if read else "",
                )
            )
    heads = ("", "GFLOP/s", "of matmul", "GB/s", "of copy")
    return Grid(RATES, heads, tuple(lines))


def _counts(found: Found) -> Grid:
    rows = [(fact.name, fact.shown()) for fact in found.facts]
    return Grid(COUNTS, ("", "value"), tuple(rows))


def _bars(found: Found) -> Grid:
    rows = [
        (bar.name, number(bar, bar.value), _spread(bar), limit(bar), bar.verdict or "-")
        for bar in found.bars
    ]
    return Grid(BARS, ("", "value", "spread", "limit", ""), tuple(rows))


def _spread(bar: Bar) -> str:
    return "" if bar.low is None or bar.high is None else f"{bar.low:.2f}..{bar.high:.2f}"


def _grouped(rows: Sequence[Row]) -> Iterable[tuple[tuple[str, str], list[Row]]]:
    for key, group in itertools.groupby(rows, key=lambda row: (row.part, row.size)):
        yield key, list(group)


def number(bar: Bar, value: float) -> str:
    """A bar's value or limit for people: ratios with two digits, counts with none."""
    if bar.unit:
        return f"{value:.0f} {bar.unit}"
    return f"{value:.2f}" if bar.low is not None else f"{value:.0f}"


def limit(bar: Bar) -> str:
    """A bar's limit for people."""
    return f"{'>=' if bar.at_least else '<='} {number(bar, bar.limit)}"


def seconds(value: float) -> str:
    """Seconds, or milliseconds below one second, to three digits."""
    value, unit = (value * 1e3, "ms") if value < 1 else (value, "s")
    digits = 2 if value < 10 else 1 if value < 100 else 0
    return f"{value:.{digits}f} {unit}"


def span(sample: Sample) -> str:
    """From the lowest to the highest, the unit once if it is the same."""
    low, high = seconds(sample.low), seconds(sample.high)
    if low.split()[1] == high.split()[1]:
        low = low.split()[0]
    return f"{low}..{high}"


def headline(facts: dict[str, Any]) -> str:
    """One line that says what was measured on."""
    where = facts["device"] if facts["platform"] != "cpu" else facts["processor"]
    return (
        f"{facts['model']}, {facts['dtype']}, {where}, {facts['cores']} cores, "
        f"{facts['repeats']} repeats, jax {facts['versions'].get('jax')}"
    )


def notes(found: Found, facts: dict[str, Any]) -> list[str]:
    """What has to be known to read the tables."""
    lines = list(found.notes)
    if any(not bar.judged for bar in found.bars):
        lines.append(
            "Bars without a verdict are set for something else: SmolLM2-135M in float32 on two CPU "
            "cores, in the full sizes."
        )
    load, cores = facts["load_at_start"], facts["cores"]
    if load is not None and load > 0.5:
        lines.append(
            f"Other programs were running: at the start {load:.1f} of {cores} cores were busy. "
            "Such numbers compare badly, most of all with torch, whose threads wait for each other."
        )
    return lines


def markdown(found: Found, roofline: Roofline, facts: dict[str, Any]) -> bytes:
    """All tables as Markdown."""
    lines = ["# pce-jax bench", "", headline(facts), ""]
    for grid in grids(found, roofline):
        lines += [f"## {grid.title}", ""]
        lines.append("| " + " | ".join(grid.heads) + " |")
        lines.append("|" + "---|" + "---:|" * (len(grid.heads) - 1))
        for row in grid.rows:
            cells = (f"**{row[0]}**", *[""] * (len(grid.heads) - 1)) if len(row) == 1 else row
            lines.append("| " + " | ".join(cell.strip() for cell in cells) + " |")
        lines.append("")
    lines += [line + "\n" for line in notes(found, facts)]
    return "\n".join(lines).encode()


def as_json(
    found: Found, roofline: Roofline | None, facts: dict[str, Any], finished: bool
) -> bytes:
    """Everything, with every single time; `finished` is false while parts are missing."""
    content = {
        "finished": finished,
        "setting": facts,
        "roofline": None if roofline is None else dataclasses.asdict(roofline),
        "bars": [bar.as_dict() for bar in found.bars],
        "rows": [row.as_dict() for row in found.rows],
        "facts": [dataclasses.asdict(fact) for fact in found.facts],
        "notes": list(found.notes),
    }
    return (json.dumps(content, indent=2) + "\n").encode()
