"""What accelerators are held to: shares of what the device itself can do."""

import jax

from pce_jax.models import LlamaConfig

from .bars import Bar, of_ratio, same_shapes
from .found import Found, Row
from .roofline import Roofline
from .timing import ratio

MATMUL_SHARE = 0.55
"""Operations per second of encoding, relative to those of a large matrix product."""

COPY_SHARE = 0.70
"""Bytes per second of a decode step, relative to those of a copy."""

ENTROPY = 1.15
"""Time of a query pass with entropy relative to one without."""


def is_reference(config: LlamaConfig, dtype: str) -> bool:
    """Whether this is what the limits are set for: a GPU, Llama 3.1 8B's shapes, bfloat16."""
    return (
        jax.default_backend() == "gpu"
        and dtype == "bfloat16"
        and same_shapes(config, "llama-3.1-8b")
    )


def bars(found: Found, roofline: Roofline, judged: bool) -> tuple[Bar, ...]:
    """The bars of what was measured.

    Args:
        found: By the other parts.
        roofline: Of the device.
        judged: Whether device, model and sizes are what the limits are set for.
    """
    made: list[Bar] = []
    if row := _row(found, "encode", "in segments"):
        share = row.flops / row.sample.median / roofline.flops
        made.append(_share("encode-peak", f"encode FLOP/s / matmul, {row.size}", share, judged))
    if row := _row(found, "decode", "naive"):
        share = row.bytes / row.sample.median / roofline.bytes
        name = f"decode bytes/s / copy, {row.size}"
        made.append(_share("decode-copy", name, share, judged, COPY_SHARE))
    with_, without = _row(found, "query", "naive, entropy"), _row(found, "query", "naive")
    if with_ and without:
        name = f"query + entropy / query, {with_.size}"
        cost = ratio(with_.sample, without.sample)
        made.append(of_ratio("query-entropy-accelerator", name, cost, ENTROPY, judged))
    return tuple(made)


def _share(key: str, name: str, value: float, judged: bool, limit: float = MATMUL_SHARE) -> Bar:
    return Bar(key=key, name=name, value=value, limit=limit, at_least=True, judged=judged)


def _row(found: Found, part: str, name: str) -> Row | None:
    """The first of that name: the first size of a part is its reference."""
    return next((row for row in found.rows if (row.part, row.name) == (part, name)), None)
