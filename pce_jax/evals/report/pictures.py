"""Pictures of a report: a panel for each task, in the look that all pictures share."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes

from pce_jax import plots

from .cells import FULL
from .stats import Estimate
from .study import POOLED, Study
from .words import label, unit, with_interval

DODGE = 0.06  # of a doubling, between methods, so that intervals at one degree do not overlap

Curve = Mapping[int, Estimate]
Looks = Mapping[str, dict[str, Any]]


def pictures(studies: Sequence[Study], title: str) -> dict[str, bytes]:
    """All pictures as PNG, by file name; none of what there is nothing to show of.

    Args:
        studies: A panel each.
        title: What was measured on what, over every picture.
    """
    plain = list(studies)
    plan = {
        "score": ("Score against degree", plain, _score),
        "entropy": ("Attention entropy against degree", plain, _entropy),
        "correlation": (
            "Attention entropy and score, a point for each method and degree "
            "(numbers: degree of naive)",
            _with(studies, "correlation"),
            _correlation,
        ),
        "gap": (
            "Share of the gap between naive encoding and full attention that is closed",
            _with(studies, "gap_closed"),
            _gap,
        ),
        "given_full_right": (
            "Score where full attention is right",
            _with(studies, "given_full_right"),
            _given_full_right,
        ),
    }
    looks = plots.styles(method for study in studies for method in study.task.methods)
    found = {
        name: _picture(chosen, f"{heading}\n{title}", draw, looks)
        for name, (heading, chosen, draw) in plan.items()
    }
    return {f"{name}.png": picture for name, picture in found.items() if picture is not None}


def _picture(
    studies: Sequence[Study], title: str, draw: Callable[[Axes, Study, Looks], None], looks: Looks
) -> bytes | None:
    if not studies:
        return None
    figure, panels = plots.panels(len(studies), title)
    for axes, study in zip(panels, studies, strict=True):
        axes.set_title(study.task.name, fontsize=10)
        draw(axes, study, looks)
    plots.legend(figure, panels)
    file = io.BytesIO()
    plots.save(figure, file)
    return file.getvalue()


def _with(studies: Sequence[Study], name: str) -> list[Study]:
    """Those that have a statistic of this name with a value."""
    return [s for s in studies if any(e.value is not None for e in s.find(name).values())]


def _score(axes: Axes, study: Study, looks: Looks) -> None:
    _full_line(axes, study, study.scores, _scale(study))
    _curves(axes, looks, _keyed(study, study.scores), _scale(study))
    axes.set_ylabel(unit(study.task))


def _entropy(axes: Axes, study: Study, looks: Looks) -> None:
    _full_line(axes, study, study.entropies)
    _curves(axes, looks, _keyed(study, study.entropies))
    axes.set_ylabel("attention entropy (nats)")


def _gap(axes: Axes, study: Study, looks: Looks) -> None:
    curves = _found(study, "gap_closed")
    axes.axhline(100, label="full attention", **plots.FULL_LINE)
    naive = plots.styles(["naive"])["naive"]["color"]
    axes.axhline(0, label="naive", color=naive, linestyle="--", linewidth=1.2)
    _curves(axes, looks, curves, 100)
    low, high = axes.get_ylim()
    axes.set_ylim(max(low, -150), min(high, 250))  # intervals of a small gap have no end
    axes.set_ylabel("gap closed (%)")


def _given_full_right(axes: Axes, study: Study, looks: Looks) -> None:
    curves = _found(study, "given_full_right")
    axes.axhline(100, label="full attention", **plots.FULL_LINE)
    _curves(axes, looks, curves, 100)
    axes.set_ylabel(unit(study.task))


def _correlation(axes: Axes, study: Study, looks: Looks) -> None:
    scale = _scale(study)
    for method in study.task.methods:
        curve = study.task.curve(method)
        points = [(study.entropies[key].value, study.scores[key].value) for key in curve.values()]
        x = [entropy for entropy, _ in points if entropy is not None]
        y = [score * scale for _, score in points if score is not None]
        axes.plot(x, y, label=method, linewidth=0.9, alpha=0.9, markersize=5, **looks[method])
        if method == "naive":
            for degree, at in zip(curve, zip(x, y, strict=True), strict=True):
                axes.annotate(
                    f"{degree}",
                    at,
                    xytext=(5, -9 if study.task.is_lm else 3),  # on the free side of the curve
                    textcoords="offset points",
                    fontsize=7,
                    color="0.3",
                )
    if study.task.reference is not None:
        reference = study.task.reference
        level = study.scores[reference].value
        if level is not None:
            axes.axhline(level * scale, label="full attention", **plots.FULL_LINE)
    found = study.find("correlation")
    lines = [study.task.name]
    for method in ("naive", POOLED):
        estimate = found.get((method, "", None))
        if estimate is not None and estimate.value is not None:
            lines.append(f"{method}: R = {with_interval(estimate, 2)}")
        elif estimate is not None:
            lines.append(f"{method}: no R ({estimate.why})")
    axes.margins(0.08)
    axes.set_title("\n".join(lines), fontsize=9)
    axes.set(xlabel="attention entropy (nats)", ylabel=unit(study.task))


def _found(study: Study, name: str) -> dict[str, Curve]:
    found = study.find(name)
    return {
        method: {d: e for (m, _, d), e in found.items() if m == method and d is not None}
        for method in study.task.methods
    }


def _keyed(study: Study, values: Mapping[tuple[str, int], Estimate]) -> dict[str, Curve]:
    return {
        method: {degree: values[key] for degree, key in study.task.curve(method).items()}
        for method in study.task.methods
    }


def _full_line(
    axes: Axes, study: Study, values: Mapping[tuple[str, int], Estimate], scale: float = 1
) -> None:
    if study.task.reference is None:
        return
    level = values[study.task.reference].value
    if level is not None:
        axes.axhline(level * scale, label=label(FULL), **plots.FULL_LINE)


def _curves(axes: Axes, looks: Looks, curves: Mapping[str, Curve], scale: float = 1) -> None:
    degrees: set[int] = set()
    for place, (method, curve) in enumerate(curves.items()):
        shown = {d: e for d, e in curve.items() if e.value is not None}
        if not shown:
            continue
        degrees.update(shown)
        shift = 2 ** (DODGE * (place - (len(curves) - 1) / 2))
        x = [degree * shift for degree in shown]
        y = [(e.value or 0) * scale for e in shown.values()]
        axes.plot(x, y, label=method, linewidth=1.6, markersize=4.5, **looks[method])
        bars = [
            (at, e.low * scale, e.high * scale)
            for at, e in zip(x, shown.values(), strict=True)
            if e.low is not None and e.high is not None
        ]
        if bars:
            at, low, high = zip(*bars, strict=True)
            axes.vlines(at, low, high, color=looks[method]["color"], linewidth=1, alpha=0.55)
    plots.degree_axis(axes, sorted(degrees))


def _scale(study: Study) -> float:
    return 1 if study.task.is_lm else 100
