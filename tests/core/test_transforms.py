"""The functions under jit, vmap and grad, and what makes them compile again."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import SLOTS, make, model

import pce_jax as pce
from pce_jax.encode import _encode
from pce_jax.query import _query

LENGTHS = [[7, 16, 2, 9], [1, 0, 3, 16], [5, 5, 5, 5]]
CASES = [make(i, lengths) for i, lengths in enumerate(LENGTHS)]
SEL = pce.METHODS["sel"]


def programs(jitted: Any) -> int:
    """How many have been compiled."""
    return jitted._cache_size()


def answer(parameters, context: pce.SegmentedContext, tokens, length) -> pce.QueryOutput:
    cache = pce.encode(parameters, context, SEL)
    return pce.query(parameters, cache, tokens, SEL, length=length, stats=True)


def assert_close(a, b) -> None:
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=2e-5), a, b)


def test_everything_runs_inside_one_jit():
    case = CASES[0]
    inputs = (model(), case.context(), case.padded_query(), 5)
    assert_close(jax.jit(answer)(*inputs), answer(*inputs))


def test_contexts_of_one_shape_run_side_by_side_under_vmap():
    contexts = jax.tree.map(lambda *x: jnp.stack(x), *[case.context() for case in CASES])
    queries = jnp.stack([case.padded_query() for case in CASES])
    lengths = jnp.array([5, 5, 5])
    batch = jax.jit(jax.vmap(answer, in_axes=(None, 0, 0, 0)))(model(), contexts, queries, lengths)
    for number, case in enumerate(CASES):
        alone = answer(model(), case.context(), case.padded_query(), 5)
        assert_close(jax.tree.map(lambda x, number=number: x[number], batch), alone)


def test_means_of_queries_side_by_side_are_those_of_each():
    cache = pce.encode(model(), CASES[0].context())
    tokens = jnp.array([[1, 2, 3, 4], [5, 6, 7, 8]])

    def read(tokens: jax.Array, length) -> tuple[pce.QueryOutput, pce.ScoreOutput]:
        out = pce.query(model(), cache, tokens, length=length, stats=True)
        return out, pce.score(model(), cache, tokens, length=length)

    def numbers(out: pce.QueryOutput, scored: pce.ScoreOutput) -> list:
        assert out.stats is not None
        return [out.stats.mean(), out.stats.by_layer(), scored.sum()]

    batch = numbers(*jax.vmap(read)(tokens, jnp.array([4, 2])))
    for row, length in enumerate((4, 2)):
        assert_close([x[row] for x in batch], numbers(*read(tokens[row], length)))


@pytest.mark.slow
def test_gradients_under_vmap_equal_those_one_by_one():
    def loss(parameters, context, tokens) -> jax.Array:
        cache = pce.encode(parameters, context, SEL)
        out = pce.score(parameters, cache, tokens, SEL, length=5, stats=True)
        assert out.stats is not None
        return out.sum() + out.stats.mean()

    gradient = jax.jit(jax.grad(loss))
    contexts = jax.tree.map(lambda *x: jnp.stack(x), *[case.context() for case in CASES[:2]])
    queries = jnp.stack([case.padded_query() for case in CASES[:2]])
    batch = jax.jit(jax.vmap(jax.grad(loss), in_axes=(None, 0, 0)))(model(), contexts, queries)
    for number, case in enumerate(CASES[:2]):
        alone = gradient(model(), case.context(), case.padded_query())
        for x, y in zip(jax.tree.leaves(batch), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(x[number], y, atol=1e-4)


@pytest.mark.smoke
def test_documents_of_one_bucket_compile_once():
    def lengths(*sizes: int) -> pce.SegmentedContext:
        return pce.from_segments([[1] * n for n in sizes], [1, 2])

    def read(context: pce.SegmentedContext, query: list[int]) -> None:
        tokens, length = pce.pad_tokens(query)
        cache = pce.encode(model(), context, SEL)
        pce.query(model(), cache, tokens, SEL, length=length)

    read(lengths(20, 24, 17, 18), [1, 2, 3])
    before = programs(_encode), programs(_query)
    read(lengths(24, 1, 1, 2), [1])
    read(lengths(17, 18, 19, 20), [4] * 16)
    assert (programs(_encode), programs(_query)) == before
    read(lengths(25, 1, 1, 1), [1])
    assert (programs(_encode), programs(_query)) == (before[0] + 1, before[1] + 1)


def test_equal_methods_share_a_program():
    cache = pce.encode(model(), CASES[0].context(), pce.Method(select=pce.Select(top_k=3)))
    before = programs(_encode)
    again = pce.Method(select=pce.Select(top_k=3, aggregate=frozenset(["token", "head"])))
    pce.encode(model(), CASES[1].context(), again)
    assert programs(_encode) == before
    assert cache.lengths.tolist() == LENGTHS[0]


def test_a_method_is_a_static_argument():
    assert jax.jit(lambda x, method: x * method.select.top_k, static_argnums=1)(2, SEL) == 4
    assert len({pce.Method(), pce.Method(), SEL, pce.METHODS["sel"]}) == 2


def test_values_are_pytrees_of_arrays():
    case = CASES[0]
    cache = pce.encode(model(), case.context())
    out = pce.query(model(), cache, case.padded_query(), length=5, stats=True)
    score = pce.score(model(), cache, case.padded_query(), length=5, stats=True)
    for tree in (case.context(), cache, out, score, out.tail, out.stats):
        leaves, structure = jax.tree.flatten(tree)
        assert all(isinstance(leaf, jax.Array | np.ndarray) for leaf in leaves)
        again = jax.tree.unflatten(structure, leaves)
        assert type(again) is type(tree)
        assert jax.tree.structure(again) == structure
    assert len(jax.tree.leaves(cache)) == 6


def test_a_cache_from_numpy_does_as_well():
    case = CASES[0]
    cache = pce.encode(model(), case.context())
    stored = jax.tree.map(np.asarray, cache)
    fresh, old = (pce.query(model(), c, case.padded_query(), length=5) for c in (cache, stored))
    np.testing.assert_array_equal(fresh.logits, old.logits)


def test_a_bfloat16_model_keeps_statistics_in_float32():
    case = CASES[0]
    rough = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model())
    cache = pce.encode(rough, case.context(), SEL)
    out = pce.query(rough, cache, case.padded_query(), SEL, length=5, stats=True)
    assert out.stats is not None
    assert cache.segments.k.dtype == out.tail.kv.v.dtype == jnp.bfloat16
    assert out.logits.dtype == out.stats.entropy.total.dtype == jnp.float32
    exact = answer(model(), case.context(), case.padded_query(), 5)
    assert exact.stats is not None
    assert np.abs(out.stats.mean() - exact.stats.mean()) < 0.1
    assert np.isfinite(out.logits).all()
    assert out.logits.shape == (SLOTS, 61)
