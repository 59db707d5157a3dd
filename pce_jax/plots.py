"""The look of all pictures: a style for each method, panels over degrees, heat maps, curves.

Built on matplotlib's objects without pyplot, so nothing global is touched and no display is needed.
"""

import itertools
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's colours, told apart by colour-blind readers too.
_STYLES = {
    "full": {"color": "#595959", "marker": "*"},
    "naive": {"color": "#D55E00", "marker": "o"},
    "sink": {"color": "#0072B2", "marker": "s"},
    "sel": {"color": "#009E73", "marker": "^"},
    "sink+sel": {"color": "#CC79A7", "marker": "D"},
}
_MORE_COLOURS = ("#E69F00", "#56B4E9", "#000000", "#8C6D31")
_MORE_MARKERS = ("v", "P", "X", "h", "<", ">", "p")
_LINES = ("-", "--", ":", "-.")
FULL_LINE: dict[str, Any] = {"color": "0.35", "linestyle": "--", "linewidth": 1.2}
"""How full attention is drawn where it is one level and not a curve."""

TICKS = 16  # labels on an axis of layers or heads
LABELLED_SEGMENTS = 8  # above, segments are too narrow to be named one by one


def styles(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Colour, marker and line of each name: its own for known methods, free ones for others.

    Args:
        names: Everything in one picture, in order: other names take what is free in that order.
    """
    found: dict[str, dict[str, Any]] = {}
    others = 0
    for name in dict.fromkeys(names):
        if name in _STYLES:
            found[name] = {**_STYLES[name], "linestyle": "-"}
            continue
        found[name] = {
            "color": _MORE_COLOURS[others % len(_MORE_COLOURS)],
            "marker": _MORE_MARKERS[others % len(_MORE_MARKERS)],
            "linestyle": _LINES[others // len(_MORE_COLOURS) % len(_LINES)],
        }
        others += 1
    return found


def panels(count: int, title: str = "", columns: int = 0) -> tuple[Figure, list[Axes]]:
    """A figure with a grid of panels.

    Args:
        count: Panels in it.
        title: Over all of them; may have several lines.
        columns: Panels in a row at most; 0 for 3, or 2 if there are 4 in all.
    """
    columns = min(columns or (2 if count == 4 else 3), count)
    rows = math.ceil(count / columns)
    width = {1: 7.2, 2: 10}.get(columns, 4.4 * columns)
    long = int(width / 0.092)  # characters that fit in a line
    title = "\n".join(textwrap.fill(line, long) for line in title.split("\n"))
    height = (3.8 if columns < 3 else 3.4) * rows + 0.3 * (1 + title.count("\n"))
    figure = Figure(
        figsize=(width, height),
        dpi=150,
        layout=ConstrainedLayoutEngine(wspace=0.06, hspace=0.06),
    )
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for unused in axes[count:]:
        unused.remove()
    if title:
        figure.suptitle(title, fontsize=11)
    for used in axes[:count]:
        tidy(used)
    return figure, axes[:count]


def tidy(axes: Axes) -> None:
    """A pale grid and no box."""
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def degree_axis(axes: Axes, degrees: Sequence[int]) -> None:
    """A logarithmic axis with the measured degrees on it."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(degrees, [str(degree) for degree in degrees])
    axes.minorticks_off()
    axes.set_xlim(min(degrees) / 2**0.3, max(degrees) * 2**0.3)
    axes.set_xlabel("degree of parallelism P (segments)")


def legend(figure: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels, with every label once."""
    found: dict[str, Any] = {}
    for each in axes:
        for handle, label in zip(*each.get_legend_handles_labels(), strict=True):
            found.setdefault(label, handle)
    if found:
        room = int(figure.get_figwidth() / 1.4)  # labels side by side
        figure.legend(
            list(found.values()),
            list(found),
            loc="outside lower center",
            ncols=min(len(found), max(room, 1)),
            frameon=False,
        )


def save(figure: Figure, file: BinaryIO) -> None:
    """Write a figure as PNG, the same bytes for the same picture."""
    figure.savefig(file, format="png", metadata={"Software": None})


def heat_map(
    values: np.ndarray,
    title: str,
    file: BinaryIO,
    *,
    label: str = "attention entropy (nats)",
    diverging: bool = False,
) -> None:
    """Write a map of layers (downwards) by heads (to the right) as PNG.

    Args:
        values: `[layers, heads]`; what is not finite is drawn grey, and the title says so.
        title: Over the map.
        file: Where to.
        label: What the colours stand for.
        diverging: Blue below 0, red above, white at 0: for differences.

    Raises:
        ValueError: `values` has not two axes.
    """
    values = np.asarray(values, dtype=float)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a heat map needs [layers, heads], got an array of shape {values.shape}")
    shown = np.ma.masked_invalid(values)
    if shown.mask.any():
        title += "\n(grey: no value)"
    layers, heads = values.shape
    cell = min(0.22, 9 / layers, 9 / heads)
    size = (max(heads * cell, 3.2) + 2, max(layers * cell, 1.6) + 0.9 + 0.25 * title.count("\n"))
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    axes = figure.subplots()
    mesh = _mesh(axes, shown, _limits([shown], diverging), diverging)
    axes.set_title(title, fontsize=11)
    figure.colorbar(mesh, ax=axes, label=label)
    save(figure, file)


def heat_maps(
    maps: Mapping[str, np.ndarray | Sequence[Sequence[float]]],
    title: str,
    file: BinaryIO,
    *,
    label: str = "attention entropy (nats)",
    columns: int = 4,
) -> None:
    """Write maps of layers by heads side by side, in the same colours, as PNG.

    Args:
        maps: `[layers, heads]` by the title of its panel; what is not finite is drawn grey.
        title: Over all of them.
        file: Where to.
        label: What the colours stand for.
        columns: Maps in a row at most.
    """
    shown = {name: np.ma.masked_invalid(np.asarray(map, dtype=float)) for name, map in maps.items()}
    rows = -(-len(shown) // columns)
    figure, panes = panels(len(shown), title, -(-len(shown) // rows))
    limits = _limits(shown.values(), diverging=False)
    meshes = []
    for axes, (name, values) in zip(panes, shown.items(), strict=True):
        axes.grid(visible=False)
        axes.set_title(name, fontsize=10)
        meshes.append(_mesh(axes, values, limits, diverging=False))
    figure.colorbar(meshes[0], ax=panes, label=label, shrink=0.8)
    save(figure, file)


def position_curve(
    series: Mapping[str, Sequence[float] | np.ndarray],
    boundaries: Sequence[int],
    file: BinaryIO,
    *,
    title: str = "Attention entropy by position",
    label: str = "attention entropy (nats)",
    smooth: int = 1,
) -> None:
    """Write curves over the tokens of all segments and the query as PNG.

    Args:
        series: A value for each token, the segments one after another and then the query, by
            method; what is not finite leaves a gap.
        boundaries: Where the segments after the first begin, and last where the query begins.
        file: Where to.
        title: Over the curves.
        label: What the values are.
        smooth: Tokens in a running mean, which stays inside its segment; 1 for none.
    """
    figure, (axes,) = panels(1, title)
    figure.set_size_inches(10, 4.4)
    looks = styles(series)
    length = max((len(values) for values in series.values()), default=0)
    for name, values in series.items():
        full = name == "full"  # runs on over the boundaries
        pieces = [] if full else [edge for edge in boundaries if edge < len(values)]
        line = _running_mean(np.asarray(values, dtype=float), pieces, smooth)
        axes.plot(
            np.insert(np.arange(len(line), dtype=float), pieces, pieces),
            np.insert(line, pieces, np.nan),
            label="full attention" if full else name,
            color=looks[name]["color"],
            linestyle="--" if full else looks[name]["linestyle"],
            linewidth=1.4,
        )
    edges = [0, *boundaries, length]
    for edge in boundaries[:-1]:
        axes.axvline(edge, color="0.6", linewidth=0.8)
    if boundaries:
        axes.axvspan(boundaries[-1], length, color="0.93", zorder=0)
    spans = list(itertools.pairwise(edges)) if boundaries else []
    names = [f"segment {number}" for number in range(1, len(spans))]
    if len(names) > LABELLED_SEGMENTS:
        names, spans = [f"{len(names)} segments"], [(0, boundaries[-1]), spans[-1]]
    for (start, end), name in zip(spans, [*names, "query"], strict=False):
        axes.text(
            (start + end) / 2,
            1.01,
            name,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="bottom",
            fontsize=8,
            color="0.35",
        )
    axes.set_xlim(0, max(length, 1))
    axes.set(xlabel="token", ylabel=label)
    legend(figure, [axes])
    save(figure, file)


def over_steps(
    series: Mapping[str, Sequence[tuple[int, float, float]]],
    full: tuple[float, float],
    file: BinaryIO,
    *,
    title: str,
) -> None:
    """Write how likelihood and entropy moved in training as PNG, a panel each.

    Args:
        series: By run: steps done, log PPL and attention entropy in nats.
        full: The same two of full attention before training.
        file: Where to.
        title: Over both panels.
    """
    figure, both = panels(2, title)
    looks = styles(series)
    for place, (axes, label) in enumerate(
        zip(both, ("log PPL (nats a token)", "attention entropy (nats)"), strict=True)
    ):
        axes.axhline(full[place], label="full attention, before", **FULL_LINE)
        for name, points in series.items():
            steps = [point[0] for point in points]
            values = [point[place + 1] for point in points]
            axes.plot(steps, values, label=name, markersize=4, linewidth=1.4, **looks[name])
        axes.set(xlabel="step", ylabel=label)
    legend(figure, both)
    save(figure, file)


def _limits(maps: Iterable[np.ma.MaskedArray], diverging: bool) -> tuple[float, float]:
    """Lowest and highest value of all maps, around 0 if they are differences."""
    finite = np.concatenate([values.compressed() for values in maps])
    if not len(finite):
        return (-1.0, 1.0) if diverging else (0.0, 1.0)
    if diverging:
        return -float(np.abs(finite).max()), float(np.abs(finite).max())
    return float(finite.min()), float(finite.max())


def _mesh(
    axes: Axes, shown: np.ma.MaskedArray, limits: tuple[float, float], diverging: bool
) -> Any:
    """Layers downwards by heads to the right; returns what a colour bar is made from."""
    layers, heads = shown.shape
    mesh = axes.pcolormesh(
        np.arange(heads + 1) - 0.5,
        np.arange(layers + 1) - 0.5,
        shown,
        cmap="RdBu_r" if diverging else "viridis",
        vmin=limits[0],
        vmax=limits[1],
    )
    axes.set_facecolor("0.75")
    axes.invert_yaxis()
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(TICKS, integer=True, steps=[1, 2, 4, 5, 10]))
    axes.set(xlabel="head", ylabel="layer")
    return mesh


def _running_mean(values: np.ndarray, boundaries: Sequence[int], size: int) -> np.ndarray:
    """A centred mean over up to `size` finite values inside each piece; gaps stay gaps."""
    if size <= 1:
        return values
    result = np.full(len(values), np.nan)
    edges = [0, *boundaries, len(values)]
    for start, end in itertools.pairwise(edges):
        piece = values[start:end]
        finite = np.isfinite(piece)
        sums = np.concatenate([[0.0], np.cumsum(np.where(finite, piece, 0))])
        counts = np.concatenate([[0], np.cumsum(finite)])
        at = np.arange(len(piece))
        low, high = np.maximum(at - size // 2, 0), np.minimum(at + (size + 1) // 2, len(piece))
        found = counts[high] - counts[low]
        mean = (sums[high] - sums[low]) / np.maximum(found, 1)
        result[start:end] = np.where(finite, mean, np.nan)
    return result
