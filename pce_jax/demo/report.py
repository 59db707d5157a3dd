"""What the demo leaves behind: rows on disk, a table and a summary per method and degree."""

import dataclasses
import json
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import numpy as np
from rich.table import Table

from pce_jax.method import Method

from .study import FULL, Row, lm_method


@dataclasses.dataclass(frozen=True)
class Mean:
    """A method at a degree, over all windows.

    Attributes:
        perplexity: exp of the mean negative log-likelihood of a token.
        entropy: Mean attention entropy in nats.
    """

    perplexity: float
    entropy: float


def means(rows: Sequence[Row]) -> dict[tuple[str, int], Mean]:
    """Means over windows, by method and degree."""
    groups: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.degree), []).append(row)
    return {
        key: Mean(
            float(np.exp(sum(r.nll for r in group) / sum(r.tokens for r in group))),
            float(np.mean([r.entropy for r in group])),
        )
        for key, group in groups.items()
    }


def table(rows: Sequence[Row]) -> Table:
    """Perplexity and entropy of each method (rows) at each degree (columns)."""
    summary = means(rows)
    degrees = sorted({degree for _, degree in summary})
    methods = list(dict.fromkeys(method for method, _ in summary))
    result = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 2))
    result.add_column("method", no_wrap=True)
    for degree in degrees:
        result.add_column(f"P={degree}", justify="right", no_wrap=True)
    for title, digits in (("perplexity", 2), ("entropy", 3)):
        unit = " (nats)" if title == "entropy" else ""
        result.add_row(f"[bold]{title}{unit}", end_section=False)
        for method in methods:
            cells = [summary.get((method, degree)) for degree in degrees]
            values = ["" if c is None else f"{getattr(c, title):.{digits}f}" for c in cells]
            name = "full attention" if method == FULL else method
            result.add_row(f"  {name}", *values, style="dim" if method == FULL else None)
        if title == "perplexity":
            result.add_row()
    return result


def json_lines(rows: Sequence[Row], model: str) -> bytes:
    """One JSON object per row, with everything needed to know what it is."""
    versions = _versions()
    lines = [
        json.dumps(
            dataclasses.asdict(row)
            | {
                "perplexity": row.perplexity,
                "model": model,
                "settings": method_dict(lm_method(row.method)),
                "versions": versions,
            }
        )
        for row in rows
    ]
    return ("\n".join(lines) + "\n").encode()


def method_dict(method: Method) -> dict[str, Any]:
    """A method as plain values, for JSON."""
    select = method.select
    chosen = None
    if select is not None:
        chosen = dataclasses.asdict(select) | {"aggregate": sorted(select.aggregate)}
    return dataclasses.asdict(method) | {"select": chosen}


def _versions() -> dict[str, str]:
    found = {"python": sys.version.split()[0]}
    for name in ("pce-jax", "jax", "flax", "transformers"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree
            found[name] = "not installed"
    return found
