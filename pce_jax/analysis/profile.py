"""What the pictures of an analysis show, small enough to keep beside an evaluation."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .study import Measured, curve, values

CURVES = {
    "entropy": "attention entropy (nats)",
    "logit": "mean |logit|",
    "k_norm": "L2 norm of the key",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Profile:
    """One context and query read by a method at a degree.

    Attributes:
        method: Name of the method.
        degree: Number of segments asked for.
        full: Whether that was full attention.
        segments: Tokens of each segment.
        heads: Attention entropy of the query in nats, `[layers][heads]`: mean over its tokens.
        curves: By name (`CURVES`), a value for each token of the context and then the query: mean
            over layers and heads.
    """

    method: str
    degree: int
    full: bool
    segments: tuple[int, ...]
    heads: tuple[tuple[float, ...], ...]
    curves: Mapping[str, tuple[float, ...]]

    @property
    def title(self) -> str:
        """For pictures."""
        return "full attention" if self.full else f"{self.method}, P={self.degree}"

    def to_dict(self) -> dict[str, Any]:
        """As JSON values; `from_dict` reads them."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "Profile":
        """The inverse of `to_dict`.

        Raises:
            KeyError, TypeError: A field is missing or something else.
        """
        return cls(
            method=str(values["method"]),
            degree=int(values["degree"]),
            full=bool(values["full"]),
            segments=tuple(map(int, values["segments"])),
            heads=tuple(tuple(map(float, row)) for row in values["heads"]),
            curves={name: tuple(map(float, values["curves"][name])) for name in CURVES},
        )


def profile(measured: Measured) -> Profile:
    """What is drawn of a cell."""
    cell = measured.cell
    return Profile(
        method=cell.name,
        degree=cell.degree,
        full=cell.method.full or (cell.degree == 1 and not cell.sink),
        segments=tuple(map(len, cell.segments)),
        heads=tuple(map(_plain, values(measured.query)["entropy"].mean(axis=2))),
        curves={name: _plain(curve(measured, name)) for name in CURVES},
    )


def _plain(row: np.ndarray) -> tuple[float, ...]:
    return tuple(float(f"{float(value):.6g}") for value in row)
