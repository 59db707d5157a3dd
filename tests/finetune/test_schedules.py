"""How learning rates and weights of the loss move."""

from typing import Any

import numpy as np
import optax
import pytest

from pce_jax.errors import FinetuneError
from pce_jax.finetune.schedules import Schedule, schedule

STEPS = 50


def values(one: Schedule) -> list[float]:
    at = one.at(STEPS)
    return [at(step) for step in range(STEPS + 1)]


def test_cosine_with_warm_up_is_that_of_optax():
    mine = values(Schedule(peak=2.0, warmup=10, decay="cosine", end=0.1))
    theirs: Any = optax.warmup_cosine_decay_schedule(0.0, 2.0, 10, STEPS, end_value=0.2)
    np.testing.assert_allclose(mine, [theirs(step) for step in range(STEPS + 1)], rtol=1e-6)


def test_linear_with_warm_up_is_a_hat():
    mine = values(Schedule(peak=2.0, warmup=10, decay="linear"))
    hat = np.interp(range(STEPS + 1), [0, 10, STEPS], [0, 2, 0])
    np.testing.assert_allclose(mine, hat, atol=1e-6)


def test_a_number_stays_what_it_is():
    assert set(values(schedule(0.5))) == {0.5}
    assert values(Schedule(peak=0.5, warmup=2))[:4] == [0.0, 0.25, 0.5, 0.5]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"warmup": STEPS}, "warmup must lie between 0 and the number of steps, 50"),
        ({"warmup": -1}, "warmup must lie"),
        ({"decay": "cosine", "end": 1.5}, "from 0 to 1; it is 1.5"),
    ],
)
def test_settings_without_a_meaning_are_refused(fields, problem):
    with pytest.raises(FinetuneError, match=problem):
        Schedule(peak=1.0, **fields).over(STEPS)
