"""Decode steps: one row, and several over one shared context."""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from pce_jax import Sampling, bucket
from pce_jax.decode_loop import Row as Rows
from pce_jax.decode_loop import Rules, go_on, start
from pce_jax.method import Method

from .bars import of_ratio
from .flops import decode_bytes, query_flops
from .found import Found, Row
from .methods import KEPT, METHODS
from .setting import Setting, as_one_segment
from .timing import Case, Timed, ratio

LIMIT = 1.00
"""Time of a step with selection HT relative to a naive one."""

QUERY = 16  # tokens in front of what is generated


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs; reading memory counts too."""
    cases = [_cost(setting, rows) * (1 + _repeats(setting, rows)) for rows in setting.sizes.rows]
    return sum(cases) * len(METHODS)


def _repeats(setting: Setting, rows: int) -> int:
    return setting.fewer_repeats if rows > 1 else setting.repeats


def _cost(setting: Setting, rows: int) -> float:
    context = setting.sizes.decode.tokens
    computed = query_flops(setting.config, context, 1) * rows
    read = decode_bytes(setting.config, context, setting.itemsize)
    return setting.sizes.steps * (2 * computed + 10 * read)


def measure(setting: Setting) -> Found:
    """Generate with every method, for every number of rows."""
    found = Found()
    for rows in setting.sizes.rows:
        found += _one(setting, rows)
    return found


def _one(setting: Setting, rows: int) -> Found:
    sizes, config = setting.sizes, setting.config
    segments = setting.cache(sizes.decode)
    whole = as_one_segment(segments)
    cases = {
        name: decode_case(setting, whole if name == "full" else segments, method, rows)
        for name, method in METHODS.items()
    }
    timed = {
        name: Timed(each.sample.scaled(1 / sizes.steps), each.compile_seconds)
        for name, each in setting.time(cases, _repeats(setting, rows)).items()
    }
    size = f"{sizes.decode}, {rows} row{'s' * (rows > 1)}"
    kept = {"HT": min(KEPT / sizes.decode.degree, 1.0)}
    table = [
        Row(
            part="decode",
            size=size,
            name=name,
            sample=each.sample,
            compile_seconds=each.compile_seconds,
            tokens=rows,
            flops=rows * query_flops(config, sizes.decode.tokens, 1),
            bytes=decode_bytes(config, sizes.decode.tokens, setting.itemsize, kept.get(name, 1.0)),
        )
        for name, each in timed.items()
    ]
    if rows > 1:
        return Found(rows=tuple(table))
    step = ratio(timed["HT"].sample, timed["naive"].sample)
    name = f"decode HT K={KEPT} / naive, {sizes.decode}"
    judged = setting.judged("decode")
    return Found(rows=tuple(table), bars=(of_ratio("decode-ht", name, step, LIMIT, judged),))


def decode_case(setting: Setting, cache: Any, method: Method, rows: int) -> Case:
    """Generate `steps` tokens in each of `rows` rows, in one call; the query is not timed."""
    steps, rules = setting.sizes.steps, Rules(method, Sampling(), stats=False)
    tokens = jnp.broadcast_to(setting.query(QUERY), (rows, QUERY))
    lengths = jnp.full(rows, QUERY, jnp.int32)
    keys = jax.random.split(jax.random.key(0), rows)
    stops = jnp.zeros(0, jnp.int32)  # nothing ends a row
    capacity = bucket(QUERY + steps + 1)
    first = functools.partial(
        start, setting.model, cache, tokens, lengths, keys, stops, rules, capacity
    )

    def run(begun: Rows) -> Any:
        limit = jnp.asarray(steps, jnp.int32)
        return go_on(setting.model, cache, begun, stops, limit, rules, steps)

    return Case(run, prepare=first, cost=_cost(setting, rows))
