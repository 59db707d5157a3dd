"""Memory of compiled programs, above weights, tokens and encoded contexts."""

import contextlib
import ctypes
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

import pce_jax as pce

from .bars import Bar
from .found import Fact, Found
from .methods import METHODS
from .setting import Setting

LIMIT_MB = 200.0
MB = 1e6


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs: compiling some programs."""
    return 2e11 * (3 + len(METHODS))


def measure(setting: Setting) -> Found:
    """Compile encoding and queries for the context, and ask XLA what they need besides arguments.

    A query's logits are those of all its tokens. Where Linux tells how much memory the process had
    at most, a query with entropy is run to compare.
    """
    sizes = setting.sizes
    context = setting.context(sizes.memory)
    tokens = setting.query(sizes.query_tokens)
    cache = jax.eval_shape(pce.encode, setting.model, context)
    facts: list[Fact] = []
    peak, grown = 0.0, None

    def encoding(method: pce.Method) -> Callable[..., Any]:
        return lambda model, context: pce.encode(model, context, method)

    def querying(method: pce.Method) -> Callable[..., Any]:
        return lambda model, cache, tokens: pce.query(model, cache, tokens, method, stats=True)

    programs: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
        "encode": (encoding(METHODS["naive"]), (setting.model, context)),
        "encode, full": (encoding(METHODS["full"]), (setting.model, context)),
    }
    for name in ("naive", "HT", "per head"):
        arguments = (setting.model, cache, tokens)
        programs[f"query + entropy, {name}"] = (querying(METHODS[name]), arguments)
    for name, (function, arguments) in programs.items():
        setting.step(f"compiling {name}", 2e11)
        compiled = jax.jit(function).lower(*arguments).compile()
        working, results = _needed(compiled)
        if name == "query + entropy, naive":
            peak = working + results
            grown = growth(setting, compiled, cache, tokens)
        title = f"{name}, {sizes.memory}"
        facts.append(Fact(part="memory", name=f"{title}: scratch", value=working / MB, unit="MB"))
        facts.append(Fact(part="memory", name=f"{title}: results", value=results / MB, unit="MB"))
    if grown is not None:
        name = f"query + entropy, naive, {sizes.memory}: growth"
        facts.append(Fact(part="memory", name=name, value=grown / MB, unit="MB"))
    bar = Bar(
        key="memory-query-entropy",
        name=f"memory of query + entropy, {sizes.memory}",
        value=peak / MB,
        limit=LIMIT_MB,
        unit="MB",
        judged=setting.judged("memory", "query_tokens"),
    )
    return Found(facts=tuple(facts), bars=(bar,))


def _needed(compiled: jax.stages.Compiled) -> tuple[float, float]:
    """Bytes of scratch and of results that are not arguments too."""
    found = compiled.memory_analysis()
    if found is None:  # a backend that does not tell
        return float("nan"), float("nan")
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    return float(found.temp_size_in_bytes), float(results)


def growth(
    setting: Setting, compiled: jax.stages.Compiled, cache: Any, tokens: jax.Array
) -> float | None:
    """By how many bytes the process grows while a program runs over an empty context.

    Returns:
        `None` where the system does not tell, or the program runs elsewhere.
    """
    if jax.default_backend() != "cpu":
        return None
    empty = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), cache)
    # Lengths of 0 would leave nothing to see.
    slots = empty.segments.k.shape[-2]
    empty = dataclasses.replace(empty, lengths=jnp.full_like(empty.lengths, slots))
    jax.block_until_ready(empty)
    jax.block_until_ready(compiled(setting.model, empty, tokens))
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)  # what was freed, so that it counts when it is used again
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # forget the peak
        before = _status("VmRSS")
        jax.block_until_ready(compiled(setting.model, empty, tokens))
        return _status("VmHWM") - before
    except (OSError, KeyError, ValueError):
        return None


def _status(key: str) -> float:
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return float(fields[key].split()[0]) * 1024
