import itertools

import jax
import jax.numpy as jnp
import pytest

from pce_jax.bench.timing import Case, Sample, interleaved, ratio


class Clock:
    """Goes on only while something is run."""

    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now

    def taking(self, seconds):
        values = iter(seconds)

        def run():
            self.now += next(values)

        return run


def test_median_and_spread():
    sample = Sample((3.0, 1.0, 2.0, 10.0))
    assert (sample.median, sample.low, sample.high) == (2.5, 1.0, 10.0)
    assert sample.scaled(0.5) == Sample((1.5, 0.5, 1.0, 5.0))


def test_ratio_is_of_medians_and_its_spread_of_neighbours():
    found = ratio(Sample((2.0, 9.0, 4.0)), Sample((1.0, 3.0, 8.0)))
    assert found.value == 4.0 / 3.0
    assert (found.low, found.high) == (0.5, 3.0)


def test_cases_take_turns_and_the_first_call_does_not_count():
    clock, steps = Clock(), []
    cases = {
        "a": Case(clock.taking([100, 1, 5, 3]), cost=7),
        "b": Case(clock.taking([200, 2, 2, 8])),
    }
    found = interleaved(cases, 3, step=lambda *told: steps.append(told), clock=clock)
    assert steps == [("a", 7), ("b", 0)] * 4
    assert found["a"].sample == Sample((1, 5, 3))
    assert found["b"].sample.median == 2
    assert found["a"].compile_seconds == 0


def test_what_is_prepared_is_not_timed():
    clock, numbers = Clock(), itertools.count()

    def prepare():
        clock.now += 50
        return next(numbers)

    got = []

    def run(given):
        clock.now += 2
        got.append(given)

    found = interleaved({"a": Case(run, prepare)}, 2, clock=clock)
    assert got == [0, 1, 2]
    assert found["a"].sample == Sample((2, 2))


def test_waits_for_the_result_and_tells_what_compiling_took():
    class Result:
        waited = 0

        def block_until_ready(self):
            Result.waited += 1

    program = jax.jit(lambda x: jnp.tanh(x) @ x)
    interleaved({"a": Case(Result)}, 2)
    assert Result.waited == 3
    found = interleaved({"b": Case(lambda: program(jnp.ones((8, 8))))}, 1)
    assert found["b"].compile_seconds > 0


@pytest.mark.parametrize("cost", [0.0, 1.5])
def test_steps_tell_costs(cost):
    told = []
    interleaved({"a": Case(lambda: None, cost=cost)}, 1, step=lambda n, c: told.append(c))
    assert told == [cost, cost]
