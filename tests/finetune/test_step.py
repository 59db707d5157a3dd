"""A training step: what microbatches add up to, what it changes and what it leaves."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from core.cases import TINY, make, model
from finetune.test_objective import example

import pce_jax as pce
from pce_jax.adapters import Adapters, log_temperature
from pce_jax.finetune import Example, Weights
from pce_jax.finetune.objective import objective
from pce_jax.finetune.step import Trained, TrainState, begin, decayed, train_step
from pce_jax.models import Remat, init_lora, with_remat

NAIVE = pce.Method()
WEIGHTS = Weights(ce=1.0, kl=0.5, entropy=0.3)
EXAMPLES = [
    example(make(seed, lengths, query=query, sink=0), start=1)
    for seed, lengths, query in ((1, [9, 16, 3, 12], 7), (2, [16] * 4, 3), (3, [4, 4, 0, 9], 5))
]
NOTHING = example(make(4, [5, 5], query=0, sink=0))


def batch(rows: list[list[Example]]) -> Example:
    stacked = [jax.tree.map(lambda *x: jnp.stack(x), *row) for row in rows]
    return jax.tree.map(lambda *x: jnp.stack(x), *stacked)


def step(trained: Trained, rows: list[list[Example]], optimizer: Any) -> tuple[TrainState, Any]:
    state = begin(jax.tree.map(jnp.copy, trained), optimizer)  # a step uses its state up
    return train_step(
        *(state, model(), batch(rows), WEIGHTS, jax.random.key(0)),
        optimizer=optimizer,
        method=NAIVE,
    )


@functools.cache
def adapters(dropout: float = 0.0) -> Trained:
    lora = init_lora(TINY, jax.random.key(0), rank=2, dropout=dropout)
    return Trained(None, Adapters(lora=lora, log_temperature=log_temperature(TINY)))


@functools.cache
def sgd() -> optax.GradientTransformation:
    return optax.sgd(0.1)


def test_microbatches_add_up_to_one_large_batch():
    whole, report = step(adapters(), [EXAMPLES], sgd())
    parts, other = step(adapters(), [EXAMPLES[:2], [EXAMPLES[2], NOTHING]], sgd())
    np.testing.assert_allclose(other.loss, report.loss, rtol=1e-6)
    np.testing.assert_allclose(other.slope_norm, report.slope_norm, rtol=1e-5)
    assert other.terms.targets == report.terms.targets == 6 + 2 + 4
    for mine, one in zip(*map(jax.tree.leaves, (parts.trained, whole.trained)), strict=True):
        np.testing.assert_allclose(mine, one, atol=1e-6)
    assert whole.step == 1
    assert step(whole.trained, [EXAMPLES], sgd())[1].loss < report.loss


def test_all_weights_in_float32_masters():
    full = Trained(jax.tree.map(lambda x: x.astype(jnp.float32), model()), Adapters())
    small = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model())
    assert full.student(small).dtype == jnp.bfloat16
    state, _ = step(full, [EXAMPLES[:1]], optax.adamw(1e-3, mask=decayed))
    assert state.trained.model is not None
    for new, old in zip(*map(jax.tree.leaves, (state.trained.model, model())), strict=True):
        assert new.dtype == jnp.float32 and np.any(np.asarray(new) != np.asarray(old))


@pytest.mark.slow
def test_dropout_goes_by_the_number_of_the_step():
    def loss(number: int) -> float:
        trained = adapters(0.5)
        moved = jax.tree.map(lambda x: x + 0.1, trained)
        state = begin(moved, sgd())
        state = TrainState(jnp.asarray(number, jnp.int32), state.trained, state.optimizer)
        arguments = (state, model(), batch([EXAMPLES[:1]]), WEIGHTS, jax.random.key(0))
        return float(train_step(*arguments, optimizer=sgd(), method=NAIVE)[1].loss)

    assert loss(3) == loss(3) != loss(4)


def test_weight_decay_leaves_norms_temperatures_and_sinks():
    sink = pce.KV(jnp.ones((3, 2, 1, 8)), jnp.ones((3, 2, 1, 8)))
    lora = init_lora(TINY, jax.random.key(0), rank=2)
    mask = decayed(Trained(model(), Adapters(lora, log_temperature(TINY), sink)))
    assert mask.model is not None
    flags = {jax.tree_util.keystr(p): f for p, f in jax.tree_util.tree_leaves_with_path(mask.model)}
    assert [flag for path, flag in flags.items() if "norm" in path] == [False] * 3
    assert all(flag for path, flag in flags.items() if "norm" not in path)
    assert not mask.adapters.log_temperature
    assert jax.tree.leaves(mask.adapters.sink) == [False, False]
    assert all(jax.tree.leaves(mask.adapters.lora))


@pytest.mark.slow
def test_computing_again_keeps_less_and_changes_no_slope():
    def slopes(remat: Remat) -> tuple[Any, int]:
        base = with_remat(model(), remat)

        def loss(trained: Trained) -> jax.Array:
            return objective(base, trained.adapters, base, EXAMPLES[0], NAIVE).loss(WEIGHTS)

        kept = jax.eval_shape(lambda trained: jax.vjp(loss, trained)[1], adapters())
        size = sum(x.size for x in jax.tree.leaves(kept))
        return jax.jit(jax.grad(loss))(adapters()), size

    expected, most = slopes("none")
    sizes = [most]
    for remat in ("products", "all"):
        found, size = slopes(remat)
        sizes.append(size)
        for mine, one in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_allclose(mine, one, atol=1e-6)
    assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) == 3
