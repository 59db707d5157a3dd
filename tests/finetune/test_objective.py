"""The loss and its slopes against a dense model in float64, and its finite differences."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import TINY, Case, expect, make, model, weights

import pce_jax as pce
from pce_jax.adapters import Adapters, from_text_sink, log_temperature
from pce_jax.finetune import (
    Example,
    Terms,
    Weights,
    objective,
)
from pce_jax.models import Llama, init_lora, with_lora
from pce_jax.models.llama import parameter_shapes

CASE = make(7, [9, 16, 3, 12], query=7, sink=0)
START = 3
NAIVE = pce.Method()
FULL = pce.METHODS["full"]
TERMS = ("ce", "kl", "excess", "entropy", "entropy_full")


def example(case: Case = CASE, start: int = START) -> Example:
    tokens = jnp.asarray(case.padded_query())
    return Example(case.context(), tokens, jnp.asarray(len(case.query)), jnp.asarray(start))


def llama(parameters: dict[str, np.ndarray]) -> Llama:
    return Llama(TINY, {name: jnp.asarray(x, jnp.float32) for name, x in parameters.items()})


def moved(by: float, seed: int = 0) -> dict[str, np.ndarray]:
    """The weights, some way along a random direction."""
    draw = np.random.default_rng(seed)
    return {n: np.float64(w) + by * 0.1 * draw.normal(size=w.shape) for n, w in weights().items()}


def by_hand(
    student: dict[str, np.ndarray],
    teacher: dict[str, np.ndarray],
    method: pce.Method = NAIVE,
    case: Case = CASE,
    margin: float = 0.0,
    two_sided: bool = False,
) -> dict[str, float]:
    mine = expect(case, method, parameters=student)
    theirs = expect(dataclasses.replace(case, sink=[]), FULL, parameters=teacher)
    log_q, log_p = (
        x.logits - np.log(np.exp(x.logits).sum(-1, keepdims=True)) for x in (mine, theirs)
    )
    reads = range(START - 1, len(case.query) - 1)
    above = mine.total - theirs.total
    excess = np.maximum((np.abs(above) if two_sided else above) - margin, 0)
    return {
        "ce": -sum(log_q[t, case.query[t + 1]] for t in reads),
        "kl": sum(np.sum(np.exp(log_p[t]) * (log_p[t] - log_q[t])) for t in reads),
        "excess": sum(excess[:, :, t].mean() for t in reads),
        "entropy": sum(mine.total[:, :, t].mean() for t in reads),
        "entropy_full": sum(theirs.total[:, :, t].mean() for t in reads),
    }


def assert_terms(found: Terms, expected: dict[str, float], atol: float = 2e-4) -> None:
    for name in TERMS:
        np.testing.assert_allclose(getattr(found, name), expected[name], atol=atol, err_msg=name)


run = jax.jit(objective, static_argnames=("method", "two_sided"))


@pytest.mark.parametrize(("margin", "two_sided"), [(0.0, False), (0.05, False), (0.05, True)])
def test_terms_are_those_of_the_dense_formula(margin: float, two_sided: bool):
    teacher = moved(0.3, seed=9)
    options: dict[str, Any] = {"margin": margin, "two_sided": two_sided}
    found = run(model(), Adapters(), llama(teacher), example(), NAIVE, **options)
    assert found.targets == len(CASE.query) - START
    assert_terms(found, by_hand(weights(), teacher, **options))


def test_a_sink_is_the_students_alone():
    case = dataclasses.replace(CASE, sink=[5, 6])
    method = pce.Method(sink="x")
    found = run(model(), Adapters(), model(), example(case), method)
    assert_terms(found, by_hand(weights(), weights(), method, case))


def test_full_attention_is_its_own_teacher():
    found = run(model(), Adapters(), model(), example(), FULL)
    assert_terms(found, by_hand(weights(), weights(), FULL))
    np.testing.assert_allclose([found.kl, found.excess], 0, atol=1e-6)


def test_full_attention_is_held_to_its_entropy_from_both_sides():
    found = run(llama(moved(1.0)), Adapters(), model(), example(), FULL)
    expected = by_hand(moved(1.0), weights(), FULL, two_sided=True)
    np.testing.assert_allclose(found.excess, expected["excess"], rtol=1e-4)
    assert expected["excess"] > by_hand(moved(1.0), weights(), FULL)["excess"] + 1e-3


def test_without_a_teacher_there_is_likelihood_alone():
    found = run(model(), Adapters(), None, example(), NAIVE)
    known = run(model(), Adapters(), model(), example(), NAIVE)
    np.testing.assert_allclose(found.ce, known.ce, rtol=1e-6)
    assert found.kl == found.excess == 0


@pytest.mark.parametrize("term", ["ce", "kl", "excess"])
def test_slopes_are_finite_differences_in_float64(term: str):
    teacher, step = moved(0.3, seed=9), 1e-4
    there, back = (by_hand(moved(s, 1), teacher)[term] for s in (step, -step))
    along = jax.tree.map(jnp.subtract, llama(moved(1.0, 1)), llama(moved(0.0, 1)))

    def f(model: Llama) -> jax.Array:
        return getattr(objective(model, Adapters(), llama(teacher), example(), NAIVE), term)

    slope = jax.jit(lambda: jax.jvp(f, (model(),), (along,))[1])()
    np.testing.assert_allclose(slope, (there - back) / (2 * step), rtol=2e-3, atol=1e-4)


def test_the_teacher_has_no_slope():
    weights = Weights(ce=1.0, kl=1.0, entropy=1.0)

    def loss(teacher: Llama) -> jax.Array:
        return objective(model(), Adapters(), teacher, example(), NAIVE).loss(weights)

    slopes = jax.jit(jax.grad(loss))(model())
    assert all(np.all(np.asarray(x) == 0) for x in jax.tree.leaves(slopes))


def test_a_batch_is_the_sum_of_its_examples():
    many = [example(), example(make(8, [16, 2, 5, 5], query=5, sink=0), start=1)]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *many)
    both = jax.jit(jax.vmap(lambda one: objective(model(), Adapters(), model(), one, NAIVE)))(
        stacked
    )
    for number, one in enumerate(many):
        alone = run(model(), Adapters(), model(), one, NAIVE)
        for name in ("targets", *TERMS):
            mine, other = getattr(both, name)[number], getattr(alone, name)
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5, err_msg=name)


# Adapters


def test_adapters_change_nothing_at_first():
    lora = init_lora(TINY, jax.random.key(0), rank=2, alpha=4)
    fresh = Adapters(lora=lora, log_temperature=log_temperature(TINY))
    assert fresh.size == sum(x.size for x in jax.tree.leaves(lora)) + 3 * 4
    found, plain = (
        run(model(), adapters, model(), example(), NAIVE) for adapters in (fresh, Adapters())
    )
    for name in TERMS:
        assert getattr(found, name) == getattr(plain, name), name


def test_a_sink_made_from_text_is_that_text_at_first():
    sink = from_text_sink(model(), [5, 6])
    assert sink.k.shape == (3, 2, 2, 8)
    case = dataclasses.replace(CASE, sink=[5, 6])
    found = run(model(), Adapters(sink=sink), model(), example(), NAIVE)
    assert_terms(found, by_hand(weights(), weights(), pce.Method(sink="x"), case))


def test_every_adapter_has_a_slope_and_lowers_the_loss():
    base = Adapters(
        lora=init_lora(TINY, jax.random.key(0), rank=2),
        log_temperature=log_temperature(TINY),
        sink=from_text_sink(model(), [5]),
    )
    weights = Weights(kl=1.0, entropy=1.0)

    @jax.jit
    def step(adapters: Adapters) -> tuple[jax.Array, Adapters]:
        def loss(adapters: Adapters) -> jax.Array:
            return objective(model(), adapters, model(), example(), NAIVE).loss(weights)

        value, slopes = jax.value_and_grad(loss)(adapters)
        return value, jax.tree.map(lambda x, slope: x - 3e-3 * slope, adapters, slopes)

    first, better = step(base)
    for part in ("log_temperature", "sink"):
        for old, new in zip(
            *(jax.tree.leaves(getattr(x, part)) for x in (base, better)), strict=True
        ):
            assert np.all(np.asarray(old) != np.asarray(new)), part
    assert better.lora is not None
    assert all(np.any(np.asarray(b) != 0) for b in better.lora.b.values())
    assert step(better)[0] < first


def test_in_full_attention_only_lora_counts():
    adapters = Adapters(
        log_temperature=log_temperature(TINY) + 1.0, sink=from_text_sink(model(), [5])
    )
    found, plain = (run(model(), x, model(), example(), FULL) for x in (adapters, Adapters()))
    for name in TERMS:
        assert getattr(found, name) == getattr(plain, name), name


def test_dropout_draws_anew_by_key_and_not_without():
    lora = init_lora(TINY, jax.random.key(0), rank=2, dropout=0.5)
    lora = dataclasses.replace(lora, b=jax.tree.map(jnp.ones_like, lora.b))
    keys = [None, None, jax.random.key(1), jax.random.key(1), jax.random.key(2)]
    ce = [
        float(run(model(), Adapters(lora=lora), None, example(), NAIVE, dropout=key).ce)
        for key in keys
    ]
    assert ce[0] == ce[1] and ce[2] == ce[3]
    assert len({ce[0], ce[2], ce[4]}) == 3


def test_parameters_of_an_adapted_model_are_shared():
    lora = init_lora(TINY, jax.random.key(0), rank=2)
    adapted = with_lora(model(), lora)
    assert adapted.blocks.q_proj[...] is model().blocks.q_proj[...]
    assert with_lora(adapted, None).blocks.lora is None
    assert set(parameter_shapes(TINY)) == set(parameter_shapes(adapted.config))
