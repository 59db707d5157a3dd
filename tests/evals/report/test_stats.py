import math

import numpy as np
import pytest

from pce_jax.evals.report.stats import (
    Bootstrap,
    Sample,
    conditional,
    correlation,
    difference,
    gap_closed,
    mean,
    pearson,
    perplexity,
    slope,
)

BOOT = Bootstrap(repeats=500, seed=1)
RNG = np.random.default_rng(0)


def accuracy(*scores):
    return Sample(np.array(scores, float), np.ones(len(scores)))


def test_perplexity_pools_tokens_and_not_texts():
    # 8 nats over 2 tokens and 2 nats over 8: one nat a token, where a mean of texts gives 2.125.
    assert perplexity(np.array([8.0, 2.0]), np.array([2.0, 8.0])) == pytest.approx(math.e)


def test_pearson_by_hand_and_against_numpy():
    # Centred: x -1 0 1, y -1 1 0, so R = 1 / sqrt(2 * 2).
    assert pearson(np.array([1.0, 2, 3]), np.array([1.0, 3, 2])) == pytest.approx(0.5)
    x, y = RNG.normal(size=(2, 20))
    assert pearson(x, y) == pytest.approx(np.corrcoef(x, y)[0, 1])
    assert pearson(x, -3 * x) == -1


@pytest.mark.parametrize("x", [[0.1 + 0.2, 0.3, 0.3], [0.0, 0, 0], [2.0]])
def test_pearson_of_a_constant_is_nothing(x):
    assert pearson(np.array(x), np.arange(len(x), dtype=float)) is None


def test_mean_and_its_interval():
    scores = np.repeat([0.0, 1.0], [40, 60])
    found = mean(Sample(scores, np.ones(100)), Bootstrap(4000, 0))
    assert (found.value, found.count, found.why) == (0.6, 100, "")
    spread = 1.96 * math.sqrt(0.6 * 0.4 / 100)  # of a binomial, about normal
    assert found.low == pytest.approx(0.6 - spread, abs=0.015)
    assert found.high == pytest.approx(0.6 + spread, abs=0.015)


def test_bootstrap_is_seeded():
    scores = Sample(RNG.normal(size=30), np.ones(30))
    assert mean(scores, Bootstrap(200, 3)) == mean(scores, Bootstrap(200, 3))
    assert mean(scores, Bootstrap(200, 3)) != mean(scores, Bootstrap(200, 4))
    draws = BOOT.draws(7)
    assert draws.shape == (500, 7) and (draws.sum(1) == 7).all()


def test_resampling_weighs_by_tokens():
    sample = Sample(np.array([8.0, 2.0]), np.array([2.0, 8.0]))
    found = mean(sample, BOOT)
    # Twice the first text, twice the second, or both.
    assert (found.low, found.value, found.high) == (0.25, 1.0, 4.0)


def test_one_instance_has_no_interval():
    found = mean(accuracy(1), BOOT)
    assert (found.value, found.low, found.high) == (1, None, None)
    assert found.why == "one instance: no interval"


def test_difference_is_paired():
    base = RNG.normal(size=50) * 10
    ones = np.ones(50)
    found = difference(Sample(base + 1, ones), Sample(base, ones), BOOT)
    assert found.value == pytest.approx(1)
    assert found.low == pytest.approx(1) and found.high == pytest.approx(1)  # noise is shared
    assert found.excludes_zero
    swapped = difference(Sample(base[::-1] + 1, ones), Sample(base, ones), BOOT)
    assert not swapped.excludes_zero
    with pytest.raises(ValueError, match="same instances"):
        difference(accuracy(1, 0), accuracy(1), BOOT)


def test_gap_closed_by_hand():
    full, naive, method = accuracy(*[1] * 8), accuracy(*[0] * 8), accuracy(1, 1, 1, 1, 1, 1, 0, 0)
    found = gap_closed(method, naive, full, BOOT, higher_is_better=True)
    assert found.value == 0.75
    assert found.low is not None and found.high is not None
    assert 0.25 < found.low < 0.75 < found.high <= 1
    assert gap_closed(naive, naive, full, BOOT, higher_is_better=True).value == 0
    worse = accuracy(*[-1] * 8)
    assert gap_closed(worse, naive, full, BOOT, higher_is_better=True).value == -1


def test_gap_closed_in_log_perplexity():
    # Published: 6.92 naive, 5.78 with a sink, 5.35 in full, at degree 8.
    texts = {
        name: Sample(100 * np.log(ppl) + np.arange(5.0), np.full(5, 100.0))
        for name, ppl in (("naive", 6.92), ("sink", 5.78), ("full", 5.35))
    }
    found = gap_closed(texts["sink"], texts["naive"], texts["full"], BOOT, higher_is_better=False)
    assert found.value == pytest.approx(math.log(6.92 / 5.78) / math.log(6.92 / 5.35))
    assert found.value == pytest.approx(0.6995, abs=1e-4)


@pytest.mark.parametrize(
    ("naive", "why"),
    [
        ([1, 1, 1, 0], "naive is no worse than full attention"),
        ([1, 1, 0, 0], "naive is not worse than full attention by more than chance"),
    ],
)
def test_no_gap_to_close(naive, why):
    full = accuracy(1, 1, 1, 0)
    found = gap_closed(full, accuracy(*naive), full, BOOT, higher_is_better=True)
    assert (found.value, found.low, found.why) == (None, None, why)


def test_conditional_accuracy():
    score, full = np.array([1.0, 0, 0.5, 1, 1]), np.array([1.0, 1, 1, 0.5, 0])
    found = conditional(score, full, BOOT)
    assert (found.value, found.count) == (0.5, 3)
    nothing = conditional(score, np.zeros(5), BOOT)
    assert (nothing.value, nothing.count) == (None, 0)
    assert nothing.why == "full attention gets no instance right"


def test_correlation_is_over_cell_means():
    entropy, score = RNG.normal(size=(2, 6, 30)).cumsum(1)
    found = correlation(entropy, Sample(score, np.ones((6, 30))), BOOT)
    assert found.value == pytest.approx(np.corrcoef(entropy.mean(1), score.mean(1))[0, 1])
    assert found.low is not None and found.high is not None
    assert -1 <= found.low <= found.value <= found.high <= 1


def test_correlation_transforms_means():
    entropy = np.arange(12.0).reshape(4, 3)
    nll = Sample(entropy * 2 + RNG.normal(size=(4, 3)), np.full((4, 3), 10.0))
    found = correlation(entropy, nll, BOOT, np.exp)
    ppl = np.exp(nll.total.sum(1) / 30)
    assert found.value == pytest.approx(np.corrcoef(entropy.mean(1), ppl)[0, 1])


def test_correlation_that_cannot_be():
    entropy = np.arange(9.0).reshape(3, 3)
    ones = np.ones((3, 3))
    assert correlation(entropy, Sample(ones, ones), BOOT).why == "score is the same in all cells"
    assert correlation(ones, Sample(entropy, ones), BOOT).why == "entropy is the same in all cells"
    few = correlation(entropy[:2], Sample(entropy[:2], ones[:2]), BOOT)
    assert few.value is None and few.why == "2 of the 3 cells that R needs"


def test_resamples_without_a_correlation_are_counted():
    entropy = np.arange(9.0).reshape(3, 3)
    score = np.zeros((3, 3))
    score[0, 0] = 1  # gone from (2/3)^3 of the resamples
    found = correlation(entropy, Sample(score, np.ones((3, 3))), Bootstrap(1000, 0))
    assert found.value is not None and found.low is not None and found.high is not None
    lost = int(found.why.split()[2])
    assert found.why == f"undefined in {lost} of 1000 resamples"
    assert lost == pytest.approx(1000 * 8 / 27, abs=60)


def test_slope_per_doubling():
    entropy = np.array([[3.0, 3.2], [3.4, 3.6], [3.8, 4.0]])
    found = slope(np.array([1.0, 2, 4]), entropy, BOOT)
    assert found.value == pytest.approx(0.4)
    assert slope(np.array([2.0]), entropy[:1], BOOT).why == "one degree"
