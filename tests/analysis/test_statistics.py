"""Every statistic against a dense float64 pass, and the identities among them."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import SINK, SLOTS, TINY, Case, cases, expect, few, make, model, run
from hypothesis import given
from hypothesis import strategies as st
from oracle import Dense

import pce_jax as pce
from pce_jax.analysis import Statistics, analyze_query, analyze_segments
from pce_jax.analysis.statistics import _analyze_query, _analyze_segments
from pce_jax.attention import chunked as op

EACH = pce.Method(select=pce.Select(top_k=2, aggregate=frozenset()))
LAYERS = pce.Method(select=pce.Select(top_k=1, aggregate=frozenset({"layer", "head"})))
METHODS = {"full": pce.METHODS["full"], "naive": pce.METHODS["naive"], "sel": pce.METHODS["sel"]}
METHODS |= {"each": EACH, "layers": LAYERS}
BY_HEAD = ("logit", "cosine", "q", "q_norm", "output")
BY_KEY_HEAD = ("k", "k_norm", "v")
SHARED = TINY.num_heads // TINY.num_kv_heads

by_method = pytest.mark.parametrize("name", METHODS)


def plain(jitted: Any) -> Callable[..., Any]:
    """The function itself, whose trace depends on the chunk size of the moment."""
    return jitted.__wrapped__


def query_statistics(case: Case, method: pce.Method, filler: int = 0) -> Statistics:
    cache = pce.encode(model(), case.context(filler), method)
    tokens, length = case.padded_query(filler), len(case.query)
    return analyze_query(model(), cache, tokens, method, length=length)


def check(found: Statistics, at: tuple, dense: Dense, rows: slice) -> None:
    """Tokens `at` of the statistics are tokens `rows` of the oracle; but for masses."""

    def close(x: jax.Array, y: np.ndarray) -> None:
        np.testing.assert_allclose(x[(slice(None), slice(None), *at)], y, rtol=1e-4, atol=1e-4)

    close(found.entropy.total, dense.every["total"][:, :, rows])
    close(found.entropy.between, dense.every["between"][:, :, rows])
    for name in BY_HEAD:
        close(getattr(found, name), dense.every[name][:, :, rows])
    for name in BY_KEY_HEAD:
        close(getattr(found, name), dense.every[name][:, ::SHARED, rows])


@by_method
@few
@given(case=cases())
def test_of_a_query(case: Case, name: str):
    check_query(case, METHODS[name])


@few
@given(case=cases(sink=0))
def test_of_a_query_without_a_sink(case: Case):
    check_query(case, pce.Method())


def check_query(case: Case, method: pce.Method) -> None:
    found, dense = query_statistics(case, method), expect(case, method)
    count = len(case.query)
    every = slice(-count, None)
    check(found, (slice(count),), dense, every)
    masses = iter(np.moveaxis(dense.every["masses"][:, :, every], -1, 0))
    if case.sink:
        np.testing.assert_allclose(found.sink_mass[..., :count], next(masses), atol=1e-5)
    segments = case.joined().segments if method.full else case.segments
    for number, segment in enumerate(segments):
        mass = found.segment_mass[..., :count, number]
        np.testing.assert_allclose(mass, next(masses) if segment else 0, atol=1e-5)
    np.testing.assert_allclose(found.tail_mass[..., :count], next(masses), atol=1e-5)
    for leaf in jax.tree.leaves(dataclasses.replace(found, segment_mass=found.sink_mass)):
        assert not np.any(leaf[..., count:])
    assert not np.any(found.segment_mass[..., count:, :])
    check_identities(found, run(case, method), count)


def check_identities(found: Statistics, out: pce.QueryOutput, count: int) -> None:
    assert out.stats is not None  # by another formula, so equal up to rounding
    np.testing.assert_allclose(found.entropy.total, out.stats.entropy.total, atol=2e-5)
    np.testing.assert_allclose(found.entropy.between, out.stats.entropy.between, atol=2e-5)
    parts = found.entropy.between + found.entropy.within
    np.testing.assert_allclose(found.entropy.total, parts, atol=1e-6)
    total = found.sink_mass + found.segment_mass.sum(-1) + found.tail_mass
    np.testing.assert_allclose(total[..., :count], 1, atol=1e-5)
    assert np.all(np.abs(found.cosine) <= 1 + 1e-5)


@pytest.mark.parametrize(("name", "sink"), [("full", SINK), ("naive", SINK), ("naive", 0)])
@few
@given(data=st.data())
def test_of_a_context(data: st.DataObject, name: str, sink: int):
    case, method = data.draw(cases(sink=sink)), METHODS[name]
    found, dense = analyze_segments(model(), case.context(), method), expect(case, method)
    start = len(case.sink)
    assert (found.sink is None) == (not start)
    if found.sink is not None:
        check(found.sink, (slice(start),), dense, slice(start))
        np.testing.assert_allclose(found.sink.segment_mass, 1, atol=1e-5)
    segments = case.joined().segments if method.full else case.segments
    for number, segment in enumerate(segments):
        rows = slice(start, start + len(segment))
        check(found.segments, (number, slice(len(segment))), dense, rows)
        if case.sink:
            mass = found.segments.sink_mass[:, :, number, : len(segment)]
            np.testing.assert_allclose(mass, dense.every["masses"][:, :, rows, 0], atol=1e-5)
        start = rows.stop
    for name in (*BY_HEAD, *BY_KEY_HEAD, "sink_mass"):
        assert not np.any(np.where(found.segments.valid, 0, getattr(found.segments, name)))


def test_masses_of_a_context_sum_to_one():
    found = analyze_segments(model(), make(2, [7, 16, 0, 9]).context()).segments
    total = found.sink_mass + found.segment_mass[..., 0]
    np.testing.assert_allclose(np.where(found.valid, total, 1), 1, atol=1e-5)
    assert not np.any(found.tail_mass)


@few
@given(cases())
def test_padding_changes_nothing(case: Case):
    first, second = (query_statistics(case, METHODS["sel"], filler) for filler in (0, 5))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), first, second)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch):
    case, method = make(4, [7, 16, 2, 9], query=SLOTS), METHODS["sel"]
    context, query = case.context(), jnp.asarray(case.query)
    cache, tail = pce.encode(model(), context), pce.empty_tail(model(), SLOTS)
    whole = analyze_query(model(), cache, query, method), analyze_segments(model(), context)

    def chunked() -> Any:
        of_query = plain(_analyze_query)(model(), cache, tail, query, jnp.asarray(SLOTS), method)
        return of_query, plain(_analyze_segments)(model(), context, pce.Method())[1]

    monkeypatch.setattr(op, "CHUNK_BYTES", 4096)
    found = jax.jit(lambda: chunked())()
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5), whole, found)


def test_works_under_jit_vmap_and_grad():
    case = make(5, [7, 16, 2, 9], query=SLOTS)
    cache = pce.encode(model(), case.context())
    queries = jnp.asarray([case.query, case.query[::-1]])
    many = jax.jit(jax.vmap(lambda tokens: analyze_query(model(), cache, tokens).output))
    one = analyze_query(model(), cache, queries[1]).output
    np.testing.assert_allclose(many(queries)[1], one, atol=1e-5)

    def loss(segments: pce.KV) -> jax.Array:
        inside = dataclasses.replace(cache, segments=segments)
        found = analyze_query(model(), inside, queries[0])
        numbers = [jnp.sum(x) for x in jax.tree.leaves(found) if x.dtype == jnp.float32]
        return jnp.sum(jnp.stack(numbers))

    slopes = jax.grad(loss)(cache.segments)
    assert all(np.isfinite(x).all() and np.any(x) for x in jax.tree.leaves(slopes))


def test_half_precision_measures_in_float32():
    half = jax.eval_shape(lambda: jax.tree.map(lambda x: x.astype(jnp.bfloat16), model()))
    case = make(6, [7, 16, 2, 9], query=SLOTS)

    def measure(half: Any) -> Statistics:
        return analyze_query(half, pce.encode(half, case.context()), case.query, METHODS["sel"])

    found = jax.eval_shape(measure, half)
    assert {x.dtype for x in jax.tree.leaves(found)} == {jnp.dtype("float32"), jnp.dtype("bool")}


def test_a_query_past_the_window_is_refused():
    cache = pce.encode(model(), make(7, [16, 16, 16, 16]).context())
    with pytest.raises(pce.PceError, match="the query ends at position"):
        analyze_query(model(), cache, np.zeros(600, np.int32))
    with pytest.raises(pce.PceError, match="without one"):
        analyze_segments(model(), make(7, [3], sink=0).context(), pce.METHODS["sink"])
