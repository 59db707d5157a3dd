"""What was measured on held-out text, before and after, and what it says of the gap."""

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pce_jax.errors import FinetuneError

from .folder import SUMMARY, write_json


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of each of some held-out texts: sums over its target tokens.

    Attributes:
        targets: How many there are.
        ce: Negative log-likelihood, in nats.
        entropy: Attention entropy, mean over layers and heads, in nats.
    """

    targets: tuple[float, ...]
    ce: tuple[float, ...]
    entropy: tuple[float, ...]

    @property
    def log_ppl(self) -> float:
        """Of a token, in nats: the logarithm of the perplexity."""
        return sum(self.ce) / sum(self.targets)

    @property
    def spread(self) -> float:
        """Standard error of `log_ppl` over texts; 0 for a single one."""
        count = len(self.ce)
        if count < 2:
            return 0.0
        rest = np.asarray(self.ce) - self.log_ppl * np.asarray(self.targets)  # a ratio of sums
        return float(np.sqrt(np.var(rest, ddof=1) / count) / np.mean(self.targets))

    @property
    def mean_entropy(self) -> float:
        """Of a token, in nats."""
        return sum(self.entropy) / sum(self.targets)

    def first(self, count: int | None) -> "Measured":
        """Those of the first texts alone."""
        return Measured(
            **{field.name: getattr(self, field.name)[:count] for field in dataclasses.fields(self)}
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the means, and what they are of."""
        return {
            "log_ppl": self.log_ppl,
            "spread": self.spread,
            "entropy": self.mean_entropy,
            "texts": len(self.ce),
            "each": {name: list(values) for name, values in dataclasses.asdict(self).items()},
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Measured":
        """The inverse of `to_json`."""
        return Measured(**{name: tuple(each) for name, each in values["each"].items()})


Found = dict[int, Measured]
"""By degree; 1 is full attention."""


def found_to_json(found: Found) -> dict[str, Any]:
    """As JSON values."""
    return {str(degree): one.to_json() for degree, one in found.items()}


def found_from_json(values: Mapping[str, Any]) -> Found:
    """The inverse of `found_to_json`."""
    return {int(degree): Measured.from_json(one) for degree, one in values.items()}


def write_summary(folder: Path, summary: Mapping[str, Mapping[str, Found]]) -> None:
    """Write before and after.

    Args:
        folder: Of the run.
        summary: By task, `base` and `tuned`.

    Raises:
        FinetuneError: It cannot be written.
    """
    values = {
        task: {who: found_to_json(found) for who, found in both.items()}
        for task, both in summary.items()
    }
    write_json(folder / SUMMARY, values)


def read_summary(folder: Path) -> dict[str, dict[str, Found]]:
    """What `write_summary` has written.

    Args:
        folder: Of the run.

    Raises:
        FinetuneError: The run is not finished, or the file cannot be read.
    """
    path = folder / SUMMARY
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return {
            task: {who: found_from_json(found) for who, found in both.items()}
            for task, both in values.items()
        }
    except FileNotFoundError as error:
        raise FinetuneError(
            f"{folder} is not finished: there is no {SUMMARY}. Run `pce-jax finetune` to its end."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FinetuneError(f"{path} cannot be read: {error}.") from error


def gap(base: Mapping[int, Measured], tuned: Mapping[int, Measured], degree: int) -> float:
    """What parallel reading costs, in nats a token, against the better of the full readings.

    Args:
        base: By degree, of the weights from before; 1 is full attention.
        tuned: By degree, of what was trained.
        degree: Where.
    """
    return tuned[degree].log_ppl - min(base[1].log_ppl, tuned[1].log_ppl)


def closed(base: Mapping[int, Measured], tuned: Mapping[int, Measured], degree: int) -> float:
    """The share of the base's gap that training has closed; 1 is all of it."""
    return 1 - gap(base, tuned, degree) / gap(base, base, degree)
