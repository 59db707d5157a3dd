"""What must not matter does not: padding, order, batches, chunks, and how a query is cut."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import SLOTS, TINY, TOKENS, Case, cases, expect, few, make, model, run
from hypothesis import given
from hypothesis import strategies as st

import pce_jax as pce
from pce_jax.attention import chunked as op
from pce_jax.encode import _encode
from pce_jax.models import forward
from pce_jax.query import _query

LAYERED = pce.Method(select=pce.Select(aggregate=frozenset({"layer", "head", "token"})))
SOFT = pce.Method(select=pce.Select(tau=0.3))
METHODS = {**pce.METHODS, "layered": LAYERED, "soft": SOFT}
every_method = pytest.mark.parametrize("name", ["naive", "full", "sel", "layered", "soft"])


def assert_close(
    left: pce.QueryOutput, right: pce.QueryOutput, real: int, atol: float = 1e-5
) -> None:
    np.testing.assert_allclose(left.logits[:real], right.logits[:real], rtol=0, atol=atol)
    assert left.stats is not None and right.stats is not None
    ours, theirs = left.stats.entropy, right.stats.entropy
    for a, b in ((ours.total, theirs.total), (ours.between, theirs.between)):
        np.testing.assert_allclose(a[..., :real], b[..., :real], rtol=0, atol=atol)


# Full attention


@pytest.mark.smoke
@few
@given(cases(sink=None), st.sampled_from(["full", "naive"]))
def test_one_segment_is_ordinary_causal_attention(case: Case, name: str):
    if name == "naive":  # needs a single segment and no sink to be that
        case = dataclasses.replace(case, sink=[], segments=[max(case.segments, key=len)])
    before = [*case.sink, *(t for segment in case.segments for t in segment)]
    out = run(case, METHODS[name])
    tokens = np.zeros(2 + 4 * TOKENS + SLOTS, np.int32)  # one shape; what is behind is not seen
    sequence = [*before, *case.query]
    tokens[: len(sequence)] = sequence
    plain = jax.jit(forward)(model(), tokens)[len(before) : len(sequence)]
    np.testing.assert_allclose(out.logits[: len(case.query)], plain, rtol=0, atol=5e-5)


# Padding


@every_method
@few
@given(case=cases())
def test_what_padding_holds_never_matters(name: str, case: Case):
    one, other = run(case, METHODS[name], filler=0), run(case, METHODS[name], filler=99)
    real = len(case.query)
    np.testing.assert_array_equal(one.logits[:real], other.logits[:real])
    assert one.stats is not None and other.stats is not None
    jax.tree.map(np.testing.assert_array_equal, one.stats, other.stats)


def test_what_free_tail_slots_hold_never_matters():
    case = make(5, [7, 3, 16, 2])
    method = METHODS["sel"]
    cache = pce.encode(model(), case.context(), method)
    tail = pce.empty_tail(model(), 2 * SLOTS)
    dirty = jax.tree.map(lambda x: x + 3 if x.ndim else x, tail)
    outs = [
        pce.query(model(), cache, case.padded_query(), method, length=5, tail=t, stats=True)
        for t in (tail, dirty)
    ]
    np.testing.assert_array_equal(outs[0].logits[:5], outs[1].logits[:5])
    again = [
        pce.query(model(), cache, case.padded_query(), method, length=5, tail=out.tail, stats=True)
        for out in outs
    ]
    np.testing.assert_array_equal(again[0].logits[:5], again[1].logits[:5])


@every_method
def test_bucket_sizes_never_matter(name: str):
    method = METHODS[name]
    for case in (make(1, [5, 16, 0, 9]), make(2, [1, 1, 1, 1], query=1)):
        tight = run(case, method)
        cache = pce.encode(model(), case.context(filler=4, segments=6, tokens=24), method)
        padded = case.padded_query(4, slots=12)
        loose = pce.query(
            model(), cache, padded, method, length=len(case.query), capacity=40, stats=True
        )
        assert_close(tight, loose, len(case.query))


@pytest.mark.parametrize("name", ["naive", "sel", "layered", "soft"])
def test_an_empty_segment_changes_nothing_wherever_it_stands(name: str):
    filled = [[1, 2, 3], [4, 5, 6, 7, 8, 9, 10], [11]]
    outs = [
        run(Case([12, 13], [*filled[:i], [], *filled[i:]], [14, 15, 16]), METHODS[name])
        for i in range(4)
    ]
    for out in outs[1:]:
        assert_close(outs[0], out, 3)


@every_method
def test_a_context_of_padding_only_is_harmless(name: str):
    case = Case([12, 13], [[], [], [], []], [14, 15, 16])
    out = run(case, METHODS[name])
    plain = jax.jit(forward)(model(), jnp.array([*case.sink, *case.query]))[2:]
    np.testing.assert_allclose(out.logits[:3], plain, rtol=0, atol=5e-5)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(out.stats))


# Segments


@few
@given(st.integers(0, 2**16), st.permutations(range(4)), st.sampled_from(["naive", "sel", "soft"]))
def test_equal_segments_may_be_permuted(seed: int, order: list[int], name: str):
    case = make(seed, [11, 11, 11, 11])
    permuted = dataclasses.replace(case, segments=[case.segments[i] for i in order])
    assert_close(run(case, METHODS[name]), run(permuted, METHODS[name]), len(case.query), atol=5e-5)


@few
@given(cases())
def test_ragged_segments_may_be_permuted_too_under_a_shared_span(case: Case):
    permuted = dataclasses.replace(case, segments=case.segments[::-1])
    assert_close(
        run(case, METHODS["sel"]), run(permuted, METHODS["sel"]), len(case.query), atol=5e-5
    )


@few
@given(cases(shortest=1))
def test_segments_side_by_side_equal_segments_one_by_one(case: Case):
    together = pce.encode(model(), case.context())
    for number, segment in enumerate(case.segments):
        others: list[list[int]] = [[] for _ in case.segments]
        others[number] = segment
        longest = max(case.segments, key=len)
        others[number - 1] = longest if number - 1 != number else others[number]
        alone = pce.encode(model(), dataclasses.replace(case, segments=others).context())
        n = len(segment)
        for a, b in zip(
            jax.tree.leaves(together.segments), jax.tree.leaves(alone.segments), strict=True
        ):
            np.testing.assert_allclose(a[:, :, number, :n], b[:, :, number, :n], atol=1e-5)


# Entropy


@every_method
@few
@given(case=cases())
def test_entropy_lies_between_zero_and_the_log_of_all_keys(name: str, case: Case):
    out = run(case, METHODS[name])
    assert out.stats is not None
    entropy, real = out.stats.entropy, len(case.query)
    total, between, within = (
        np.asarray(x)[..., :real] for x in (entropy.total, entropy.between, entropy.within)
    )
    keys = len(case.sink) + sum(map(len, case.segments)) + np.arange(1, real + 1)
    assert (total >= -1e-6).all() and (total <= np.log(keys) + 1e-5).all()
    assert (between >= -1e-6).all() and (within >= -1e-5).all()
    np.testing.assert_allclose(between + within, total, atol=1e-6)
    np.testing.assert_array_equal(np.asarray(entropy.total)[..., real:], 0.0)


# Queries


@pytest.mark.parametrize("name", ["naive", "full"])
@few
@given(case=cases(), cut=st.integers(1, 4))
def test_a_query_read_in_two_parts_is_one_query(name: str, case: Case, cut: int):
    method = METHODS[name]
    case = dataclasses.replace(case, query=make(cut, [1], query=SLOTS).query)
    whole = run(case, method)
    cache = pce.encode(model(), case.context(), method)
    tail, parts = pce.empty_tail(model(), 2 * SLOTS), []
    for part in (case.query[:cut], case.query[cut:]):
        padded = dataclasses.replace(case, query=part).padded_query()
        out = pce.query(model(), cache, padded, method, length=len(part), tail=tail)
        tail, parts = out.tail, [*parts, out.logits[: len(part)]]
    assert tail.length == SLOTS
    np.testing.assert_allclose(np.concatenate(parts), whole.logits, rtol=0, atol=5e-5)


@few
@given(case=cases(), cut=st.integers(1, 4))
def test_each_part_of_a_query_selects_for_itself(case: Case, cut: int):
    method = METHODS["sel"]
    cache = pce.encode(model(), case.context(), method)
    tail, parts = pce.empty_tail(model(), 2 * SLOTS), []
    last = case.query[-1]
    for part in (case.query, [last]):
        padded = dataclasses.replace(case, query=part).padded_query()
        out = pce.query(model(), cache, padded, method, length=len(part), tail=tail)
        tail, parts = out.tail, [*parts, out.logits[: len(part)]]
    dense = expect(case, method, answer=[last])
    np.testing.assert_allclose(np.concatenate(parts), dense.logits, rtol=0, atol=2e-4)


def test_last_only_is_the_last_row():
    case = make(3, [7, 2, 16, 5])
    cache = pce.encode(model(), case.context())
    tokens = case.padded_query()
    last = pce.query(model(), cache, tokens, length=5, last_only=True)
    np.testing.assert_allclose(
        last.logits, pce.query(model(), cache, tokens, length=5).logits[4], atol=1e-5
    )


@pytest.mark.parametrize("name", ["naive", "sel", "layered"])
def test_queries_side_by_side_equal_single_queries(name: str):
    case = make(4, [7, 2, 16, 5])
    method = METHODS[name]
    cache = pce.encode(model(), case.context(), method)
    queries = [make(i, [1], query=n) for i, n in enumerate((1, 8, 3))]
    tokens = np.stack([q.padded_query() for q in queries])
    lengths = jnp.array([len(q.query) for q in queries])

    def one(tokens: jax.Array, length: jax.Array) -> pce.QueryOutput:
        return pce.query(model(), cache, tokens, method, length=length, stats=True)

    batch = jax.vmap(one)(jnp.asarray(tokens), lengths)
    for number, query in enumerate(queries):
        row = jax.tree.map(lambda x, number=number: x[number], batch)
        assert_close(row, one(jnp.asarray(tokens[number]), lengths[number]), len(query.query))


# Chunks


@every_method
def test_the_size_of_chunks_never_matters(name: str, monkeypatch: pytest.MonkeyPatch):
    case, method = make(6, [7, 2, 16, 5], query=7), METHODS[name]
    whole = run(case, method)
    keys, rows = 2 + 4 * TOKENS + SLOTS, 3
    monkeypatch.setattr(op, "CHUNK_BYTES", 4 * keys * TINY.num_heads * rows)

    @jax.jit  # anew, and around the plain functions: the size is read while tracing
    def chunked(context: pce.SegmentedContext, tokens: jax.Array) -> pce.QueryOutput:
        cache = plain(_encode)(model(), context, method)
        tail, length = pce.empty_tail(model(), SLOTS), jnp.asarray(7)
        return plain(_query)(model(), cache, tail, tokens, length, method, True, False)

    assert_close(chunked(case.context(), case.padded_query()), whole, len(case.query))


def plain(jitted: Any) -> Any:
    return jitted.__wrapped__
