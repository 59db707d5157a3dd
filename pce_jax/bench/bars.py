"""Bars: how fast and small it has to be, and whether it is."""

import dataclasses
from typing import Any

from pce_jax.models import SHAPES, LlamaConfig

from .timing import Ratio

REFERENCE_CORES = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bar:
    """One number with a limit.

    Attributes:
        key: A short name that stays.
        name: What is compared, in words.
        value: What was measured.
        limit: What it must not be above (or below).
        at_least: It must not be below.
        unit: Of value and limit; nothing for a ratio.
        low: Smallest ratio of neighbours in time, if it is one.
        high: The largest.
        judged: Whether this run is one that the limit was set for.
    """

    key: str
    name: str
    value: float
    limit: float
    at_least: bool = False
    unit: str = ""
    low: float | None = None
    high: float | None = None
    judged: bool = True

    @property
    def met(self) -> bool:
        """Whether the limit is kept, judged or not; never by what is no number."""
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        """`pass` or `miss`, or nothing where it is not judged."""
        return ("pass" if self.met else "miss") if self.judged else ""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return dataclasses.asdict(self) | {"met": self.met, "verdict": self.verdict}


def of_ratio(key: str, name: str, found: Ratio, limit: float, judged: bool) -> Bar:
    """A bar on how long one thing takes relative to another."""
    return Bar(
        key=key,
        name=name,
        value=found.value,
        limit=limit,
        low=found.low,
        high=found.high,
        judged=judged,
    )


def is_reference(config: LlamaConfig, dtype: str, platform: str, cores: int) -> bool:
    """Whether this is what the limits on time are set for: SmolLM2-135M, float32, two CPU cores."""
    return (
        same_shapes(config, "smollm2-135m")
        and dtype == "float32"
        and platform == "cpu"
        and cores == REFERENCE_CORES
    )


def same_shapes(config: LlamaConfig, name: str) -> bool:
    """Whether a model has the shapes that are known by a name."""
    fields = ("num_layers", "hidden_size", "intermediate_size", "vocab_size")
    return all(getattr(config, field) == getattr(SHAPES[name], field) for field in fields)
