"""Entropy and likelihood can be trained: their gradients are right and never NaN."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import Case, expect, make, model, weights
from tiny_models import arrays_of

import pce_jax as pce
from pce_jax import attention
from pce_jax.attention import Group, by_rows, mix

ROWS, HEADS, KV_HEADS, DIM = 6, 4, 2, 8
SIZES = (3, 4 * 5, 6)  # sink, four segments of five, tail
LENGTHS = np.array([5, 2, 0, 4])
FILLED = (np.arange(5) < LENGTHS[:, None]).reshape(-1)
SLOTS = np.arange(SIZES[2])


def arrays(scale: float = 1.0) -> tuple[jax.Array, list[jax.Array], list[jax.Array]]:
    draw = np.random.default_rng(0)
    q = jnp.asarray(draw.normal(size=(ROWS, HEADS, DIM)) * scale, jnp.float32)
    k, v = (
        [jnp.asarray(draw.normal(size=(KV_HEADS, n, DIM)), jnp.float32) for n in SIZES]
        for _ in range(2)
    )
    return q, k, v


def reweighed(masses: list[jax.Array], factors: Any) -> list[jax.Array]:
    return [jnp.ones_like(masses[0]), factors, jnp.ones_like(masses[2])]


def ours(q: jax.Array, k: list, v: list, factors: Any) -> dict[str, jax.Array]:
    groups = [
        Group(pce.KV(k[0], v[0]), lambda _: jnp.ones(SIZES[0], bool)),
        Group(pce.KV(k[1], v[1]), lambda _: jnp.asarray(FILLED), 4),
        Group(pce.KV(k[2], v[2]), lambda row: row >= SLOTS),
    ]
    reweigh = None if factors is None else functools.partial(reweighed, factors=factors)
    out, entropy = by_rows(
        lambda q, row: mix(q, groups, row, reweigh), (q, jnp.arange(ROWS)), sum(SIZES), HEADS
    )
    return {"out": out, "total": entropy.total, "between": entropy.between}


def plain(q: jax.Array, k: list, v: list, factors: Any) -> dict[str, jax.Array]:
    """One softmax over all keys, -sum p log p over those that are seen."""
    keys, values = jnp.concatenate(k, axis=1), jnp.concatenate(v, axis=1)
    keys, values = (jnp.repeat(x, HEADS // KV_HEADS, axis=0) for x in (keys, values))
    logits = jnp.einsum("thd,hsd->ths", q, keys) * DIM**-0.5
    group = jnp.array([0] * 3 + [1 + i // 5 for i in range(20)] + [5] * 6)
    seen = jnp.concatenate(
        [
            jnp.ones((ROWS, SIZES[0]), bool),
            jnp.broadcast_to(FILLED, (ROWS, 20)),
            jnp.arange(ROWS)[:, None] >= SLOTS,
        ],
        axis=1,
    )[:, None]
    p = jax.nn.softmax(logits, axis=-1, where=seen)
    if factors is not None:
        p = p * jnp.concatenate([jnp.ones(1), factors, jnp.ones(1)])[group]
        p = p / jnp.sum(p, axis=-1, keepdims=True)
    masses = jnp.stack([jnp.sum(p * (group == g), axis=-1) for g in range(6)], axis=-1)

    def entropy(p: jax.Array) -> jax.Array:
        return -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1.0)), axis=-1)

    out = jnp.einsum("ths,hsd->thd", p, values)
    return {"out": out, "total": entropy(p), "between": entropy(masses)}


FACTORS = {
    "all": None,
    "two of four": np.array([1.0, 0.0, 0.0, 1.0], np.float32),
    "soft": np.array([0.3, 2.0, 0.0, 1.7], np.float32),
}


@pytest.mark.parametrize("rows", [1, 4, 100], ids=lambda n: f"{n} rows a chunk")
@pytest.mark.parametrize("kept", FACTORS)
def test_values_and_gradients_are_those_of_the_plain_formula(
    kept: str, rows: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(attention, "CHUNK_BYTES", 4 * sum(SIZES) * HEADS * rows)
    inputs = arrays(2.0)
    draw = np.random.default_rng(1)
    weigh = {
        "out": draw.normal(size=(ROWS, HEADS, DIM)),
        "total": draw.normal(size=(ROWS, HEADS)),
        "between": draw.normal(size=(ROWS, HEADS)),
    }

    def graded(f):
        def loss(inputs):
            results = f(*inputs, FACTORS[kept])
            return sum(jnp.sum(results[n] * w) for n, w in weigh.items()), results

        return jax.jit(jax.grad(loss, has_aux=True))(inputs)

    (mine, results), (theirs, expected) = graded(ours), graded(plain)
    for name in weigh:
        np.testing.assert_allclose(results[name], expected[name], atol=2e-6, err_msg=name)
    for a, b in zip(jax.tree.leaves(mine), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(a, b, atol=2e-5)
    np.testing.assert_array_equal(mine[1][1][:, ~FILLED], 0.0)  # nobody sees an empty slot


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_gradients_are_finite_however_sharp_the_attention(scale: float):
    select = pce.Select(tau=0.3)

    def loss(inputs):
        q, k, v = inputs
        groups = [
            Group(pce.KV(k[0], v[0]), lambda _: jnp.ones(SIZES[0], bool)),
            Group(pce.KV(k[1], v[1]), lambda _: jnp.asarray(FILLED), 4),
            Group(pce.KV(k[2], v[2]), lambda row: row >= SLOTS),
        ]
        target = jnp.array([[0.5, 0.3, 0.0, 0.2]] * HEADS)

        def soft(masses: list[jax.Array]) -> list[jax.Array]:
            return reweighed(masses, select.factors(target, masses[1]))

        def row(q: jax.Array, row: jax.Array) -> jax.Array:
            sharp, soft_ = mix(q, groups, row), mix(q, groups, row, soft)
            parts = [sharp, soft_, sharp[1].within]
            return jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(parts)]).sum()

        return jnp.sum(jax.vmap(row)(q, jnp.arange(ROWS)))

    value, gradients = jax.jit(jax.value_and_grad(loss))(arrays(scale))
    assert np.isfinite(value)
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(gradients))


# The whole model

HARD = pce.Method(select=pce.Select(top_k=2))
LAYERED = pce.Method(select=pce.Select(aggregate=frozenset({"layer", "head"})))
SOFT = pce.Method(select=pce.Select(tau=0.3))
RAGGED = make(21, [7, 0, 16, 2])


def measured(parameters, case: Case, method: pce.Method) -> dict[str, jax.Array]:
    cache = pce.encode(parameters, case.context(), method)
    tokens, length = case.padded_query(), len(case.query)
    out = pce.score(parameters, cache, tokens, method, length=length, stats=True)
    assert out.stats is not None
    between = jnp.sum(out.stats.entropy.between) / (3 * 4 * length)
    return {"total": out.stats.mean(), "between": between, "nll": out.sum()}


@pytest.mark.parametrize(
    "method", [pce.Method(), HARD, LAYERED], ids=["naive", "hard selection", "layers together"]
)
def test_gradients_are_the_slopes_of_the_oracle(method: pce.Method):
    """Autodiff in float32 against central differences of the dense pass in float64."""
    draw = np.random.default_rng(5)
    direction = {name: draw.normal(size=a.shape) * np.std(a) for name, a in weights().items()}

    def along(step: float) -> dict[str, float]:
        moved = {name: a + step * direction[name] for name, a in weights().items()}
        dense = expect(RAGGED, method, parameters=moved)
        return {
            "total": dense.total.mean(),
            "between": dense.between.mean(),
            "nll": dense.nll(RAGGED.query).sum(),
        }

    step = 1e-6
    ahead, behind = along(step), along(-step)
    jacobian = jax.jit(jax.jacrev(lambda p: measured(p, RAGGED, method)))(model())
    for name in ahead:
        gradients = arrays_of(jacobian[name])
        slope = sum(np.sum(gradients[n] * d) for n, d in direction.items())
        expected = (ahead[name] - behind[name]) / (2 * step)
        np.testing.assert_allclose(slope, expected, rtol=2e-3, atol=2e-4, err_msg=name)
        assert all(np.isfinite(g).all() for g in gradients.values())


def test_every_parameter_has_a_finite_gradient():
    def loss(parameters) -> jax.Array:
        return sum(measured(parameters, RAGGED, SOFT).values(), start=jnp.zeros(()))

    gradients = arrays_of(jax.jit(jax.grad(loss))(model()))
    for name, gradient in gradients.items():
        assert np.isfinite(gradient).all(), name
        assert np.abs(gradient).max() > 1e-6, name


def test_an_empty_context_has_finite_gradients_too():
    empty = Case([12, 13], [[], [], [], []], [14, 15, 16])

    def loss(parameters) -> jax.Array:
        return sum(measured(parameters, empty, SOFT).values(), start=jnp.zeros(()))

    gradients = arrays_of(jax.jit(jax.grad(loss))(model()))
    assert all(np.isfinite(gradient).all() for gradient in gradients.values())
