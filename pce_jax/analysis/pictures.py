"""The analysis in pictures: entropy by layer and head, and what happens along the tokens."""

import io
from collections.abc import Sequence

from pce_jax import plots

from .study import Measured, curve, values

CURVES = {
    "entropy": "attention entropy (nats)",
    "logit": "mean |logit|",
    "k_norm": "L2 norm of the key",
}


def pictures(found: Sequence[Measured], subtitle: str) -> dict[str, bytes]:
    """All pictures as PNG, by file name.

    Args:
        found: Cells of one context and query; full attention among them.
        subtitle: What was measured on what.
    """
    file = io.BytesIO()
    maps = {m.cell.title: values(m.query)["entropy"].mean(axis=2) for m in found}
    plots.heat_maps(maps, f"Attention entropy of the query\n{subtitle}", file)
    done = {"heads.png": file.getvalue()}
    full = [m for m in found if m.cell.method.full]
    for degree in dict.fromkeys(m.cell.degree for m in found if m.cell.degree > 1):
        cells = [*full, *(m for m in found if m.cell.degree == degree)]
        for name, label in CURVES.items():
            done[f"{name}-P{degree}.png"] = _curves(cells, name, label, f"P={degree}, {subtitle}")
    return done


def _curves(found: Sequence[Measured], name: str, label: str, subtitle: str) -> bytes:
    boundaries, start = [], 0
    for segment in found[-1].cell.segments:
        start += len(segment)
        boundaries.append(start)
    series = {m.cell.name: curve(m, name) for m in found}
    file = io.BytesIO()
    plots.position_curve(
        series,
        boundaries,
        file,
        title=f"{label} by token, mean over layers and heads\n{subtitle}",
        label=label,
        smooth=max(1, max(map(len, series.values())) // 128),
    )
    return file.getvalue()
