"""The demo's picture: perplexity and entropy against the degree, a line a method."""

from collections.abc import Mapping
from typing import BinaryIO

from matplotlib.axes import Axes

from pce_jax import plots

from .report import Mean
from .study import FULL


def draw(summary: Mapping[tuple[str, int], Mean], subtitle: str, file: BinaryIO) -> None:
    """Write a PNG.

    Args:
        summary: Means by method and degree; full attention among them.
        subtitle: What was measured on what.
        file: Where to.
    """
    figure, (left, right) = plots.panels(2, f"Parallel context encoding\n{subtitle}")
    _panel(left, {key: mean.perplexity for key, mean in summary.items()}, "perplexity")
    _panel(right, {key: mean.entropy for key, mean in summary.items()}, "attention entropy (nats)")
    plots.legend(figure, [left, right])
    plots.save(figure, file)


def _panel(axes: Axes, values: Mapping[tuple[str, int], float], title: str) -> None:
    degrees = sorted({degree for _, degree in values})
    axes.axhline(values[FULL, 1], label="full attention", **plots.FULL_LINE)
    methods = dict.fromkeys(method for method, _ in values if method != FULL)
    for method, style in plots.styles(methods).items():
        x = [degree for degree in degrees if (method, degree) in values]
        y = [values[method, degree] for degree in x]
        axes.plot(x, y, label=method, linewidth=1.8, markersize=5, **style)
    plots.degree_axis(axes, degrees)
    axes.set_ylabel(title)
