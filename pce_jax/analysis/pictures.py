"""The analysis in pictures: entropy by layer and head, and what happens along the tokens."""

import io
import itertools
from collections.abc import Sequence

from pce_jax import plots

from .profile import CURVES, Profile


def pictures(
    found: Sequence[Profile], subtitle: str, curves: Sequence[str] = tuple(CURVES)
) -> dict[str, bytes]:
    """All pictures as PNG, by file name.

    Args:
        found: Profiles of one context and query, full attention among them if it was measured.
        subtitle: What was measured on what.
        curves: Which of `CURVES` to draw.
    """
    file = io.BytesIO()
    maps = {one.title: one.heads for one in found}
    plots.heat_maps(maps, f"Attention entropy of the query\n{subtitle}", file)
    done = {"heads.png": file.getvalue()}
    full = [one for one in found if one.full]
    for degree in dict.fromkeys(one.degree for one in found if one.degree > 1):
        shown = [*full, *(one for one in found if one.degree == degree and not one.full)]
        for name in curves:
            drawn = _curves(shown, name, CURVES[name], f"P={degree}, {subtitle}")
            done[f"{name}-P{degree}.png"] = drawn
    return done


def _curves(found: Sequence[Profile], name: str, label: str, subtitle: str) -> bytes:
    series = {"full" if one.full else one.method: one.curves[name] for one in found}
    file = io.BytesIO()
    plots.position_curve(
        series,
        list(itertools.accumulate(found[-1].segments)),
        file,
        title=f"{label} by token, mean over layers and heads\n{subtitle}",
        label=label,
        smooth=max(1, max(map(len, series.values())) // 128),
    )
    return file.getvalue()
