"""What a part of the benchmark finds: rows of times, facts, and bars."""

import dataclasses
from typing import Any

from .bars import Bar
from .timing import Sample


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """How long one thing took.

    Attributes:
        part: Of the benchmark.
        size: Of the context and what is done over it.
        name: What was timed.
        sample: Seconds of each repeat.
        compile_seconds: Of its program, or `None` where nothing of ours is compiled.
        tokens: Read or generated in that time.
        flops: Operations asked for in that time, or 0 if not counted.
        bytes: That have to be read in that time, or 0 if not counted.
    """

    part: str
    size: str
    name: str
    sample: Sample
    compile_seconds: float | None = None
    tokens: int = 0
    flops: float = 0.0
    bytes: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        """By the median."""
        return self.tokens / self.sample.median

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        seconds = {"median": self.sample.median, "low": self.sample.low, "high": self.sample.high}
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return fields | {
            "sample": list(self.sample.values),
            "seconds": seconds,
            "tokens_per_second": self.tokens_per_second if self.tokens else None,
            "flops_per_second": self.flops / self.sample.median if self.flops else None,
            "bytes_per_second": self.bytes / self.sample.median if self.bytes else None,
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Fact:
    """Something counted and not timed.

    Attributes:
        part: Of the benchmark.
        name: What it is.
        value: How much.
        unit: Of the value; `%` for a share.
        digits: Behind the point, for people.
    """

    part: str
    name: str
    value: float
    unit: str = ""
    digits: int = 0

    def shown(self) -> str:
        """Value and unit for people."""
        number = self.value * 100 if self.unit == "%" else self.value
        return f"{number:.{self.digits}f}{' ' * bool(self.unit)}{self.unit}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Found:
    """What one part found, or several.

    Attributes:
        rows: Times.
        facts: Counts.
        bars: Numbers with a limit.
        notes: What was left out, and why.
    """

    rows: tuple[Row, ...] = ()
    facts: tuple[Fact, ...] = ()
    bars: tuple[Bar, ...] = ()
    notes: tuple[str, ...] = ()

    def __add__(self, other: "Found") -> "Found":
        return Found(
            rows=self.rows + other.rows,
            facts=self.facts + other.facts,
            bars=self.bars + other.bars,
            notes=self.notes + other.notes,
        )
