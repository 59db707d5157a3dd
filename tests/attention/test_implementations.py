"""What every implementation of attention must do; each is held against the plain formula."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.cases import DIM, HEADS, LENGTHS, QUERIES, SEGMENTS, Arrays, arrays, groups, plain

import pce_jax as pce
from pce_jax.attention import (
    Attended,
    Keys,
    attend,
    attention,
    chunked,
    one_group,
    pallas_gpu,
    pallas_tpu,
)
from pce_jax.attention import by_token as tokens

IMPLEMENTATIONS: dict[str, Callable[..., Attended]] = {
    "einsum": functools.partial(attend, implementation="einsum"),
    "chunked": functools.partial(attend, implementation="chunked"),
    "pallas_tpu": functools.partial(pallas_tpu.attend, interpret=True),
    "pallas_gpu": functools.partial(pallas_gpu.attend, interpret=True),
}
each_implementation = pytest.mark.parametrize(
    "implementation", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS
)


@pytest.fixture(params=[1, 4], ids=lambda rows: f"{rows} query tokens a chunk")
def chunks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    size = sum(keys.size for keys in groups(arrays()))
    monkeypatch.setattr(chunked, "CHUNK_BYTES", 4 * size * HEADS * request.param)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several blocks of rows and of keys, of which the last are cut short."""
    for name, value in {"ROWS": 4, "LANES": 4, "AREA": 8}.items():
        monkeypatch.setattr(pallas_tpu, name, value)
    for name, value in {"LEAST": 2, "BYTES": 8}.items():
        monkeypatch.setattr(pallas_gpu, name, value)


def named(found: Attended) -> Arrays:
    assert found.entropy is not None
    entropy = {"total": found.entropy.total, "between": found.entropy.between}
    return {"out": found.out, "lse": found.lse} | entropy


def graded(f: Callable[[Arrays], Arrays], x: Arrays) -> tuple[Arrays, Arrays]:
    """Results, and the slopes of a random sum of them."""
    return grader(f)(x)


def grader(f: Callable[[Arrays], Arrays]) -> Callable[[Arrays], tuple[Arrays, Arrays]]:
    draw = np.random.default_rng(1)
    weights = {
        "out": draw.normal(size=(HEADS, QUERIES, DIM)),
        **{name: draw.normal(size=(HEADS, QUERIES)) for name in ("lse", "total", "between")},
    }

    def loss(x: Arrays) -> tuple[jax.Array, Arrays]:
        found = f(x)
        parts = (jnp.sum(found[name] * w) for name, w in weights.items() if name in found)
        return sum(parts, start=jnp.zeros(())), {n: found[n] for n in weights if n in found}

    both = jax.jit(jax.grad(loss, has_aux=True))
    return lambda x: both(x)[::-1]


def assert_same(mine: tuple[Arrays, Arrays], theirs: tuple[Arrays, Arrays]) -> None:
    for name, value in mine[0].items():
        np.testing.assert_allclose(value, theirs[0][name], atol=3e-6, err_msg=name)
    for name, slope in mine[1].items():
        np.testing.assert_allclose(slope, theirs[1][name], atol=3e-5, err_msg=name)


def jitted(
    implementation: Callable[..., Attended],
    keys: Callable[[Arrays], list[Keys]] = groups,
    **options: Any,
) -> Callable[[Arrays], Attended]:
    return jax.jit(lambda x: implementation(x["q"], keys(x), **options))


def entropies(implementation: Callable[..., Attended], x: Arrays) -> Arrays:
    return named(implementation(x["q"], groups(x), entropy=True))


@pytest.mark.usefixtures("chunks")
def test_chunks_change_nothing():
    x = arrays(2.0)
    ours = functools.partial(entropies, IMPLEMENTATIONS["chunked"])
    assert_same(graded(ours, x), graded(plain, x))


@pytest.mark.usefixtures("small_blocks")
@each_implementation
def test_values_entropy_and_slopes_are_those_of_the_plain_formula(implementation):
    x = arrays(2.0)
    mine = graded(functools.partial(entropies, implementation), x)
    assert_same(mine, graded(plain, x))
    hidden = np.arange(5) >= LENGTHS[:, None]
    assert np.all(np.asarray(mine[1]["segments"])[:, :, hidden] == 0)  # nobody sees an empty slot


@each_implementation
def test_without_entropy_the_rest_is_the_same(implementation):
    x = arrays()
    with_it = jitted(implementation, entropy=True)(x)
    without = jitted(implementation, entropy=False)(x)
    assert without.entropy is None
    np.testing.assert_allclose(without.out, with_it.out, atol=1e-6)
    np.testing.assert_allclose(without.lse, with_it.lse, atol=1e-6)


@each_implementation
def test_slopes_are_finite_however_sharp_the_attention(implementation):
    both = grader(functools.partial(entropies, implementation))
    for scale in (1e-3, 30.0, 1e4):
        for part in both(arrays(scale)):
            assert all(np.isfinite(x).all() for x in part.values()), scale


@each_implementation
def test_an_empty_sink_changes_nothing(implementation):
    x = arrays()
    empty = one_group(pce.KV(x["sink"][0, :, :0], x["sink"][1, :, :0]))
    without = jitted(implementation, lambda x: groups(x)[1:], entropy=True)(x)
    with_it = jitted(implementation, lambda x: [empty, *groups(x)[1:]], entropy=True)(x)
    for a, b in zip(jax.tree.leaves(with_it), jax.tree.leaves(without), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@each_implementation
def test_the_queries_own_keys_are_causal_in_bands(implementation, monkeypatch):
    monkeypatch.setattr(chunked, "BAND", 2)
    x = arrays()

    def own(start: Any) -> Callable[[Arrays], list[Keys]]:
        tail = pce.KV(*x["tail"][:, :, :QUERIES])
        return lambda x: [groups(x)[0], one_group(tail, start)]

    triangular = jitted(implementation, own(0), entropy=True)(x)
    causal = jitted(implementation, own(jnp.asarray(0)), entropy=True)(x)
    for a, b in zip(jax.tree.leaves(triangular), jax.tree.leaves(causal), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)


@each_implementation
def test_it_runs_side_by_side_over_keys_that_are_shared(implementation):
    x = arrays()
    q = jnp.stack([x["q"], 2 * x["q"]])
    run = jitted(implementation, lambda _: groups(x), entropy=True, lanes=2)
    both = jax.jit(jax.vmap(run))({"q": q})
    for number in range(2):
        alone = run({"q": q[number]})
        for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[number], b, atol=1e-6)


# Selection

AGGREGATES = [(), ("head",), ("token",), ("head", "token")]


def chosen(x: Arrays, select: pce.Select) -> Any:
    """Factors on the segments, from the plain formula's probabilities."""
    p = np.asarray(plain(x)["p"])[..., 3:23].reshape(HEADS, QUERIES, SEGMENTS, 5)
    scores = np.sort(p, axis=-1)[..., -select.score_top :].sum(axis=-1).swapaxes(0, 1)
    choice = select.choose(jnp.asarray(scores), jnp.asarray(LENGTHS), jnp.ones(QUERIES, bool))
    return select.factors(choice.swapaxes(0, 1), jnp.asarray(p.sum(axis=-1)))


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda dims: "+".join(dims) or "each")
@pytest.mark.parametrize(
    "changes",
    [{"top_k": 2}, pytest.param({"tau": 0.3}, marks=pytest.mark.slow)],
    ids=["hard", "soft"],
)
def test_selection_reweighs_the_plain_probabilities(aggregate, changes):
    select = pce.Select(score_top=2, aggregate=frozenset(aggregate), **changes)
    selection = pce.attention.Selection(select, jnp.ones(QUERIES, bool))

    def ours(x: Arrays) -> Arrays:
        q = x["q"].swapaxes(0, 1)
        out, entropy = attention(q, groups(x), selection, entropy=True)
        assert entropy is not None
        found = {"total": entropy.total, "between": entropy.between}
        return {"out": out.swapaxes(0, 1)} | found

    x = arrays(2.0)
    mine = graded(ours, x)
    factors = jax.lax.stop_gradient(chosen(x, select))

    def theirs(x: Arrays) -> Arrays:
        found = plain(x, factors)
        return {name: found[name] for name in mine[0]}

    results, slopes = graded(theirs, x)
    if "tau" in changes:  # there the factors have a slope too
        slopes = {}
        mine = (mine[0], {})
    assert_same(mine, (results, slopes))


def test_selection_that_keeps_nothing_leaves_zeros_and_no_nan():
    """All attention goes to a segment that is not chosen: what is kept underflows."""
    select = pce.Select(top_k=1)
    valid = jnp.arange(QUERIES) < 1  # the first query token alone decides
    x = arrays()
    x["segments"] = x["segments"].at[0, :, 0, 0].set(100.0)  # one key, huge
    x["q"] = x["q"].at[:, 0].set(-10.0).at[:, 1:].set(10.0)
    selection = pce.attention.Selection(select, valid)

    def loss(x: Arrays) -> tuple[jax.Array, Any]:
        found = attention(x["q"].swapaxes(0, 1), groups(x), selection, entropy=True)
        return sum((jnp.sum(leaf) for leaf in jax.tree.leaves(found)), start=jnp.zeros(())), found

    slopes, (out, entropy) = jax.jit(jax.grad(loss, has_aux=True))(x)
    assert np.all(np.asarray(out)[1:] == 0)
    assert entropy is not None and np.all(np.asarray(entropy.total)[:, 1:] == 0)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((slopes, out, entropy)))


@pytest.mark.parametrize("aggregate", AGGREGATES, ids=lambda dims: "+".join(dims) or "each")
def test_token_by_token_attention_agrees(aggregate):
    select = pce.Select(top_k=2, score_top=2, aggregate=frozenset(aggregate))
    selection = pce.attention.Selection(select, jnp.ones(QUERIES, bool))
    x = arrays(2.0)
    q = x["q"].swapaxes(0, 1)
    for how in (None, selection):
        out, entropy = attention(q, groups(x), how, entropy=True)
        expected, kept = tokens.attention(tokens.mix, q, groups(x), how)
        np.testing.assert_allclose(out, expected, atol=2e-6)
        assert entropy is not None
        np.testing.assert_allclose(entropy.total, kept.total.swapaxes(0, 1), atol=3e-6)
        np.testing.assert_allclose(entropy.between, kept.between.swapaxes(0, 1), atol=3e-6)


def test_what_is_gathered_may_be_less_than_asked_for():
    """Three segments are filled; to keep nine is to keep them all."""
    select = pce.Select(top_k=9)
    selection = pce.attention.Selection(select, jnp.ones(QUERIES, bool))
    x = arrays()
    out, _ = attention(x["q"].swapaxes(0, 1), groups(x), selection)
    np.testing.assert_allclose(out.swapaxes(0, 1), plain(x)["out"], atol=2e-6)


def test_keys_say_what_is_seen():
    x = arrays()
    _, segments, tail = groups(x)
    np.testing.assert_array_equal(segments.visible(jnp.arange(2))[0].sum(axis=1), LENGTHS)
    np.testing.assert_array_equal(tail.visible(jnp.arange(3)).sum(axis=(1, 2)), [3, 4, 5])
    whole = Keys(segments.kv)
    np.testing.assert_array_equal(whole.counts, [5, 5, 5, 5])
