"""Entropy and likelihood can be trained: their gradients are right and never NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import Case, expect, make, model, weights
from tiny_models import arrays_of

import pce_jax as pce

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
