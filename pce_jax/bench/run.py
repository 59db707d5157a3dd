"""The whole benchmark: part after part, with how far it is."""

from collections.abc import Callable, Generator, Sequence
from types import ModuleType

from . import compiled, decode, encode, huggingface, memory, query, roofline, train
from .found import Found
from .setting import Setting

PARTS: dict[str, ModuleType] = {
    "huggingface": huggingface,
    "encode": encode,
    "query": query,
    "decode": decode,
    "train": train,
    "memory": memory,
    "compile": compiled,
}
"""In the order in which they are measured."""

ROOFLINE_COST = 1e11


def total(setting: Setting, parts: Sequence[str]) -> float:
    """Roughly what all of it costs, in FLOPs."""
    return 2 * ROOFLINE_COST + sum(PARTS[name].cost(setting) for name in parts)


def measure(
    make: Callable[[Callable[[str, float], object]], Setting],
    parts: Sequence[str],
    report: Callable[[float, float, str], object],
) -> Generator[tuple[str, Found | roofline.Roofline]]:
    """Measure the device, then part after part, and the device again: its best is what counts.

    Args:
        make: From the function that is told each step to the setting.
        parts: Which ones, of `PARTS`.
        report: Told the cost of what is done, that of everything, and what is done now.

    Yields:
        The name of each part with what it found, as soon as it is done; `roofline` first and last.
    """
    done = spent = 0.0  # spent: by the step that runs now

    def step(what: str, cost: float) -> None:
        nonlocal done, spent
        done, spent = done + spent, cost
        report(min(done, everything), everything, what)

    setting = make(step)
    everything = total(setting, parts)
    yield "roofline", _roofline(setting)
    after = ROOFLINE_COST
    for name in PARTS:
        if name not in parts:
            continue
        done, spent = after, 0.0
        step(name, 0.0)
        yield name, PARTS[name].measure(setting)
        after += PARTS[name].cost(setting)
        if name == "decode":  # the last that reads them
            setting.caches.clear()
    yield "roofline", _roofline(setting)


def _roofline(setting: Setting) -> roofline.Roofline:
    sizes, dtype = setting.sizes, setting.model.dtype
    clocks = {"step": setting.step, "clock": setting.clock}
    return roofline.measure(dtype, sizes.matrix, sizes.copied, setting.repeats, **clocks)
