"""The demo's picture: perplexity and entropy against the degree, a line a method."""

from collections.abc import Mapping
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from .report import Mean
from .study import FULL

# Okabe and Ito's colours, told apart by colour-blind readers too.
_STYLES = {
    "naive": {"color": "#D55E00", "marker": "o"},
    "sink": {"color": "#0072B2", "marker": "s"},
    "sel": {"color": "#009E73", "marker": "^"},
    "sink+sel": {"color": "#CC79A7", "marker": "D"},
}


def draw(summary: Mapping[tuple[str, int], Mean], subtitle: str, file: BinaryIO) -> None:
    """Write a PNG.

    Args:
        summary: Means by method and degree; full attention among them.
        subtitle: What was measured on what.
        file: Where to.
    """
    layout = ConstrainedLayoutEngine(wspace=0.06)
    figure = Figure(figsize=(10, 4.4), dpi=150, layout=layout)
    left, right = figure.subplots(1, 2)
    figure.suptitle(f"Parallel context encoding\n{subtitle}", fontsize=11)
    _panel(left, {key: mean.perplexity for key, mean in summary.items()}, "perplexity")
    _panel(right, {key: mean.entropy for key, mean in summary.items()}, "attention entropy (nats)")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    figure.savefig(file, format="png")


def _panel(axes: Axes, values: Mapping[tuple[str, int], float], title: str) -> None:
    degrees = sorted({degree for _, degree in values})
    axes.axhline(
        values[FULL, 1], color="0.35", linestyle="--", linewidth=1.2, label="full attention"
    )
    for method in dict.fromkeys(method for method, _ in values if method != FULL):
        x = [degree for degree in degrees if (method, degree) in values]
        axes.plot(
            x,
            [values[method, degree] for degree in x],
            label=method,
            linewidth=1.8,
            markersize=5,
            **_STYLES.get(method, {}),
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks(degrees, [str(degree) for degree in degrees])
    axes.minorticks_off()
    axes.set_xlabel("degree of parallelism P (segments)")
    axes.set_ylabel(title)
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
