"""Query passes: with and without entropy, with and without selection."""

from typing import Any

import pce_jax as pce

from .bars import of_ratio
from .flops import decode_bytes, query_flops
from .found import Found, Row
from .methods import KEPT, METHODS
from .setting import Setting, as_one_segment
from .timing import Case, ratio

LIMITS = {
    ("naive", True): ("query-entropy", "query + entropy / query", 1.10),
    ("HT", False): ("query-ht", f"query HT K={KEPT} / naive", 1.10),
    ("per head", False): ("query-per-head", f"query per head K={KEPT} / naive", 1.50),
}
"""Time relative to the naive pass without entropy."""


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs."""
    return _flops(setting) * 2 * len(METHODS) * (1 + setting.repeats)


def _flops(setting: Setting) -> float:
    sizes = setting.sizes
    return query_flops(setting.config, sizes.query.tokens, sizes.query_tokens)


def measure(setting: Setting) -> Found:
    """Read one query with every method; logits are those of its last token."""
    sizes, flops = setting.sizes, _flops(setting)
    tokens = setting.query(sizes.query_tokens)
    segments = setting.cache(sizes.query)
    whole = as_one_segment(segments)

    def case(method: str, stats: bool) -> Case:
        cache = whole if method == "full" else segments

        def run() -> Any:
            out = pce.query(
                setting.model, cache, tokens, METHODS[method], stats=stats, last_only=True
            )
            return out.logits if out.stats is None else (out.logits, out.stats)

        return Case(run, cost=flops)

    cells = [(method, stats) for method in METHODS for stats in (False, True)]
    titles = {cell: f"{cell[0]}, entropy" if cell[1] else cell[0] for cell in cells}
    timed = setting.time({titles[cell]: case(*cell) for cell in cells})
    size = f"{sizes.query}, {sizes.query_tokens} tokens"
    rows = [
        Row(
            part="query",
            size=size,
            name=name,
            sample=each.sample,
            compile_seconds=each.compile_seconds,
            tokens=sizes.query_tokens,
            flops=flops,
            bytes=decode_bytes(setting.config, sizes.query.tokens, setting.itemsize),
        )
        for name, each in timed.items()
    ]
    plain = timed[titles["naive", False]].sample
    judged = setting.judged("query", "query_tokens")
    bars = [
        of_ratio(
            key,
            f"{name}, {sizes.query}",
            ratio(timed[titles[cell]].sample, plain),
            limit,
            judged,
        )
        for cell, (key, name, limit) in LIMITS.items()
    ]
    return Found(rows=tuple(rows), bars=tuple(bars))
