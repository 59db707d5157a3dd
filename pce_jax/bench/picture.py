"""The benchmark's picture: every bar against its limit, and tokens a second."""

import math
from collections.abc import Callable, Sequence
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, NullFormatter

from pce_jax import plots

from .bars import Bar
from .found import Found, Row
from .report import limit, number

COLOURS = {"pass": "#0072B2", "miss": "#D55E00", "": "0.6"}
LINE = 0.3  # inches a bar


def draw(found: Found, title: str, file: BinaryIO) -> None:
    """Write a PNG.

    Args:
        found: What was measured; at least one bar, or one row that has tokens.
        title: What was measured on.
        file: Where to.
    """
    rows = [row for row in found.rows if row.tokens]
    lines = [len(each) for each in (found.bars, rows) if each]
    figure, axes = plots.panels(len(lines), f"pce-jax bench\n{title}", columns=1)
    figure.set_size_inches(9, 1.6 + 0.8 * len(lines) + LINE * sum(lines))
    if (grid := axes[0].get_gridspec()) is not None:
        grid.set_height_ratios([count + 1 for count in lines])
    if found.bars:
        _bars(axes[0], found.bars)
    if rows:
        _rates(axes[-1], rows)
    plots.save(figure, file)


def _bars(axes: Axes, bars: Sequence[Bar]) -> None:
    """How far each value is from its limit: what is left of the line keeps it."""
    places = range(len(bars))
    used = [bar.limit / bar.value if bar.at_least else bar.value / bar.limit for bar in bars]
    axes.barh(places, used, color=[COLOURS[bar.verdict] for bar in bars], height=0.7)
    axes.axvline(1.0, color="0.2", linewidth=1.2, linestyle="--")
    for place, (bar, share) in enumerate(zip(bars, used, strict=True)):
        says = " ".join((number(bar, bar.value), f"({limit(bar)})", bar.verdict))
        axes.text(max(share, 1.0) + 0.02, place, says, va="center", fontsize=8)
    axes.set_xlim(0, max(1.0, *used) * 1.45)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.set_yticks(places, [bar.name for bar in bars], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("share of the limit that is used (left of the line: kept)")


def _rates(axes: Axes, rows: Sequence[Row]) -> None:
    """Medians, from the slowest to the fastest repeat."""
    places = range(len(rows))
    medians = [row.tokens_per_second for row in rows]
    low = [m - row.tokens / row.sample.high for m, row in zip(medians, rows, strict=True)]
    high = [row.tokens / row.sample.low - m for m, row in zip(medians, rows, strict=True)]
    axes.errorbar(medians, places, xerr=[low, high], fmt="o", color="#0072B2", ecolor="0.4")
    names = [f"{row.part} {row.size}: {row.name}" for row in rows]
    axes.set_ylim(-0.6, len(rows) - 0.4)
    axes.set_yticks(places, names, fontsize=8)
    axes.set_xscale("log")
    axes.set_xlim(_decade(min(medians), math.floor), _decade(max(medians), math.ceil))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.invert_yaxis()
    axes.set_xlabel("tokens per second (median, slowest to fastest)")


def _decade(value: float, towards: Callable[[float], int]) -> float:
    """The power of ten next to a value, a little farther so that no point stands on the edge."""
    power = towards(math.log10(value))
    return 10.0**power * (0.8 if towards is math.floor else 1.25)
