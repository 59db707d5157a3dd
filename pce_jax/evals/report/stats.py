"""Statistics on arrays, with bootstrap intervals over instances: knows no rows, files or tasks.

What cannot be computed is an `Estimate` without a value that says why, never NaN.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float

LEVEL = 0.95
"""Of all intervals."""
MIN_CELLS = 3  # any two points lie on a line
RIGHT = 1 - 1e-9  # a score from here on is a right answer


class Sample(NamedTuple):
    """Instances of one cell, whose mean is `sum(total) / sum(weight)`.

    Attributes:
        total: Score of each instance, or its negative log-likelihood in nats.
        weight: Ones, or its scored tokens; above 0.
    """

    total: Float[np.ndarray, "*cells instances"]
    weight: Float[np.ndarray, "*cells instances"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Estimate:
    """A value with its interval.

    Attributes:
        value: The value, `None` if there is none.
        low: Lower end of the interval, `None` if there is none.
        high: Its upper end.
        count: Instances that it rests on.
        why: Why the value or its interval is missing or limited.
    """

    value: float | None
    low: float | None = None
    high: float | None = None
    count: int
    why: str = ""

    @property
    def excludes_zero(self) -> bool:
        """Whether there is an interval and 0 is outside."""
        return self.low is not None and self.high is not None and (self.low > 0 or self.high < 0)

    def map(self, function: Callable[[float], float]) -> "Estimate":
        """The estimate of an increasing function of what this one estimates."""
        ends = {
            name: None if end is None else float(function(end))
            for name, end in (("value", self.value), ("low", self.low), ("high", self.high))
        }
        return dataclasses.replace(self, **ends)


@dataclasses.dataclass(frozen=True)
class Bootstrap:
    """Resampling of instances with replacement, the same whenever asked for.

    Attributes:
        repeats: Resamples.
        seed: Of the generator.
    """

    repeats: int = 2000
    seed: int = 0

    def draws(self, instances: int) -> Float[np.ndarray, "repeats instances"]:
        """How often each resample has each instance."""
        return _draws(self.repeats, self.seed, instances)


@functools.lru_cache(maxsize=4)
def _draws(repeats: int, seed: int, instances: int) -> Float[np.ndarray, "repeats instances"]:
    generator = np.random.default_rng(seed)
    draws = generator.multinomial(instances, np.full(instances, 1 / instances), size=repeats)
    result = draws.astype(np.float64)
    result.setflags(write=False)
    return result


def pooled(sample: Sample) -> Float[np.ndarray, "*cells"]:
    """Mean over all weight: accuracy, or nats per token."""
    return np.sum(sample.total, -1) / np.sum(sample.weight, -1)


def perplexity(nll: Float[np.ndarray, " n"], scored: Float[np.ndarray, " n"]) -> float:
    """Exponential of the mean negative log-likelihood of a token, pooled over all texts."""
    return float(np.exp(pooled(Sample(nll, scored))))


def mean(sample: Sample, bootstrap: Bootstrap) -> Estimate:
    """`pooled` with an interval."""
    return _estimate(float(pooled(sample)), sample, lambda draws: _means(sample, draws), bootstrap)


def difference(a: Sample, b: Sample, bootstrap: Bootstrap) -> Estimate:
    """`pooled(a) - pooled(b)`, where both have the same instances in the same order."""
    _check_paired(a, b)
    value = float(pooled(a) - pooled(b))
    return _estimate(value, a, lambda draws: _means(a, draws) - _means(b, draws), bootstrap)


def gap_closed(
    method: Sample, naive: Sample, full: Sample, bootstrap: Bootstrap, *, higher_is_better: bool
) -> Estimate:
    """Share of the way from naive to full attention: 0 is no better than naive, 1 is as full.

    There is none where naive does not lose to full attention by more than chance, for then it is
    a ratio of noise.

    Args:
        method: What is measured.
        naive: The same instances read by naive encoding.
        full: The same instances read by full attention.
        bootstrap: Resampling.
        higher_is_better: False for negative log-likelihoods.
    """
    _check_paired(method, naive, full)
    sign = 1 if higher_is_better else -1
    gap = difference(full, naive, bootstrap)
    count = method.total.size
    if gap.value is None or sign * gap.value <= 0:
        return Estimate(value=None, count=count, why="naive is no worse than full attention")
    if gap.low is not None and not gap.excludes_zero:
        why = "naive is not worse than full attention by more than chance"
        return Estimate(value=None, count=count, why=why)

    def shares(draws: Float[np.ndarray, "repeats instances"]) -> Float[np.ndarray, " repeats"]:
        start = _means(naive, draws)
        gaps = sign * (_means(full, draws) - start)
        gains = sign * (_means(method, draws) - start)
        # The gap is above 0 in nearly all resamples; a share of no gap is none.
        return np.divide(gains, gaps, out=np.full(len(gaps), np.nan), where=gaps > 0)

    value = float((pooled(method) - pooled(naive)) / gap.value)
    return _estimate(value, method, shares, bootstrap)


def conditional(
    score: Float[np.ndarray, " n"], full: Float[np.ndarray, " n"], bootstrap: Bootstrap
) -> Estimate:
    """Mean score on the instances that full attention gets right (a score of 1)."""
    right: Bool[np.ndarray, " n"] = full >= RIGHT
    if not right.any():
        return Estimate(value=None, count=0, why="full attention gets no instance right")
    chosen = score[right]
    return mean(Sample(chosen, np.ones(chosen.size)), bootstrap)


def pearson(x: Float[np.ndarray, " n"], y: Float[np.ndarray, " n"]) -> float | None:
    """Pearson's R, or `None` where one of the two is constant or there are fewer than 2 points."""
    value = float(_pearson(np.asarray(x, float), np.asarray(y, float)))
    return None if np.isnan(value) else value


def correlation(
    entropy: Float[np.ndarray, "cells instances"],
    score: Sample,
    bootstrap: Bootstrap,
    transform: Callable[[np.ndarray], np.ndarray] = lambda mean: mean,
) -> Estimate:
    """Pearson's R over cells between mean entropy and mean score.

    The interval comes from resampling instances, the same ones in every cell: degrees and methods
    are chosen, instances are drawn.

    Args:
        entropy: Of each instance in each cell.
        score: Likewise.
        bootstrap: Resampling.
        transform: Applied to the cells' mean scores: `np.exp` for perplexity.
    """
    cells, count = entropy.shape
    if cells < MIN_CELLS:
        return Estimate(
            value=None, count=count, why=f"{cells} of the {MIN_CELLS} cells that R needs"
        )
    x, y = entropy.mean(-1), transform(pooled(score))
    value = pearson(x, y)
    if value is None:
        what = "entropy" if _constant(x) else "score"
        return Estimate(value=None, count=count, why=f"{what} is the same in all cells")

    def resampled(draws: Float[np.ndarray, "repeats instances"]) -> Float[np.ndarray, " repeats"]:
        x = draws @ entropy.T / count
        y = transform((draws @ score.total.T) / (draws @ score.weight.T))
        return _pearson(x, y)

    return _estimate(value, Sample(entropy[0], score.weight[0]), resampled, bootstrap)


def slope(
    degrees: Float[np.ndarray, " cells"],
    entropy: Float[np.ndarray, "cells instances"],
    bootstrap: Bootstrap,
) -> Estimate:
    """Least-squares change of mean entropy with every doubling of the degree."""
    count = entropy.shape[1]
    x = np.log2(degrees)
    x = x - x.mean()
    if len(degrees) < 2:
        return Estimate(value=None, count=count, why="one degree")
    weights = x / np.sum(x**2)
    value = float(weights @ entropy.mean(-1))

    def resampled(draws: Float[np.ndarray, "repeats instances"]) -> Float[np.ndarray, " repeats"]:
        return (draws @ entropy.T / count) @ weights

    return _estimate(value, Sample(entropy[0], entropy[0]), resampled, bootstrap)


def _means(
    sample: Sample, draws: Float[np.ndarray, "repeats instances"]
) -> Float[np.ndarray, " repeats"]:
    return (draws @ sample.total) / (draws @ sample.weight)


def _estimate(
    value: float,
    sample: Sample,
    resampled: Callable[[np.ndarray], np.ndarray],
    bootstrap: Bootstrap,
) -> Estimate:
    """A value with the percentile interval of what it is on resamples."""
    count = sample.total.size
    if count < 2:
        return Estimate(value=value, count=count, why="one instance: no interval")
    found = resampled(bootstrap.draws(count))
    kept = found[np.isfinite(found)]
    if not kept.size:
        return Estimate(value=value, count=count, why="undefined in every resample: no interval")
    low, high = np.quantile(kept, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    lost = found.size - kept.size
    why = f"undefined in {lost} of {found.size} resamples" if lost else ""
    return Estimate(value=value, low=float(low), high=float(high), count=count, why=why)


def _pearson(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """R over the last axis; NaN where it is undefined."""
    undefined = _constant(x) | _constant(y)
    x = x - x.mean(-1, keepdims=True)
    y = y - y.mean(-1, keepdims=True)
    scale = np.sqrt(np.sum(x * x, -1) * np.sum(y * y, -1))
    ratio = np.sum(x * y, -1) / np.where(undefined, 1, scale)
    return np.where(undefined, np.nan, np.clip(ratio, -1, 1))


def _constant(x: np.ndarray) -> np.ndarray:
    """Whether values along the last axis differ by no more than rounding."""
    return np.ptp(x, axis=-1) <= 1e-12 * np.max(np.abs(x), axis=-1)


def _check_paired(*samples: Sample) -> None:
    sizes = [sample.total.size for sample in samples]
    if len(set(sizes)) > 1:
        raise ValueError(f"samples to compare must hold the same instances, got {sizes} of them")
