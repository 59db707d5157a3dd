"""How a learning rate or the weight of a loss term moves over the steps."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import optax

from pce_jax.errors import FinetuneError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
    """Up to `peak` in a straight line, and on from there.

    Attributes:
        peak: The largest value.
        warmup: Steps from 0 up to it.
        decay: How it goes on until the last step: `constant`, `linear` or `cosine`.
        end: Share of the peak that is left at the last step.
    """

    peak: float
    warmup: int = 0
    decay: Literal["constant", "linear", "cosine"] = "constant"
    end: float = 0.0

    def over(self, steps: int) -> optax.Schedule:
        """The values of a run.

        Args:
            steps: How many steps it has.

        Raises:
            FinetuneError: A setting has no meaning in such a run.
        """
        if not 0 <= self.warmup < steps:
            raise FinetuneError(
                f"warmup must lie between 0 and the number of steps, {steps} (excluded); it is "
                f"{self.warmup}."
            )
        if not 0 <= self.end <= 1:
            raise FinetuneError(f"end is a share of the peak, from 0 to 1; it is {self.end}.")
        rest = steps - self.warmup
        after = {
            "constant": optax.constant_schedule(self.peak),
            "linear": optax.linear_schedule(self.peak, self.end * self.peak, rest),
            "cosine": optax.cosine_decay_schedule(self.peak, rest, self.end),
        }[self.decay]
        if not self.warmup:
            return after
        rise = optax.linear_schedule(0.0, self.peak, self.warmup)
        return optax.join_schedules([rise, after], [self.warmup])

    def at(self, steps: int) -> Callable[[int], float]:
        """The same as numbers, for a step on the host.

        Args:
            steps: How many steps the run has.

        Raises:
            FinetuneError: As `over`.
        """
        values: Callable[[int], Any] = self.over(steps)
        return lambda step: float(values(step))


def schedule(value: float | Schedule) -> Schedule:
    """A number is a schedule that stays what it is."""
    return value if isinstance(value, Schedule) else Schedule(peak=value)
