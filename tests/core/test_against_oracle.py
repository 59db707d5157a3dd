"""The library equals one dense masked pass: every position scheme, every kind of selection."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from core.cases import Case, cases, check, expect, few, make, model, run
from hypothesis import given
from hypothesis import strategies as st

import pce_jax as pce

SPANS: Any = ("max", "mean", "harmonic")
ALIGNS: Any = ("left", "right", "spread")
SCHEMES = [
    pce.Positions(span=span, align=align, fractional=fractional)
    for span in SPANS
    for align in ALIGNS
    for fractional in (False, True)
] + [pce.Positions(sequential=True)]

SUBSETS: list[Any] = [
    frozenset(dims)
    for n in range(4)
    for dims in itertools.combinations(("head", "token", "layer"), n)
]
SELECTIONS = [
    *(pce.Select(top_k=2, aggregate=dims) for dims in SUBSETS),
    *(pce.Select(tau=0.3, aggregate=dims) for dims in SUBSETS[:3] + SUBSETS[-1:]),
    *(
        pce.Select(
            top_k=1, score_top=score, aggregate_top=both, aggregate=frozenset({"head", "token"})
        )
        for score, both in ((0, 0), (1, 0), (0, 1), (1, 1))
    ),
    pce.Select(top_k=3, score_top=1, aggregate=frozenset()),
    pce.Select(tau=0.7, score_top=0, aggregate_top=0),
    pce.Select(top_k=1, aggregate_top=0, aggregate=frozenset({"layer", "token"})),
]


def scheme_name(scheme: pce.Positions) -> str:
    if scheme.sequential:
        return "sequential"
    return f"{scheme.span}-{scheme.align}{'-fractional' * scheme.fractional}"


def selection_name(select: pce.Select) -> str:
    kept = f"tau{select.tau}" if select.tau else f"top{select.top_k}"
    dims = "+".join(sorted(select.aggregate)) or "none"
    return f"{kept}-{dims}-{select.score_top}-{select.aggregate_top}"


@pytest.mark.smoke
@few
@given(cases(sink=None))
def test_naive_encoding_is_one_dense_masked_pass(case: Case):
    check(run(case, pce.Method()), expect(case, pce.Method()))


@pytest.mark.parametrize("scheme", SCHEMES, ids=scheme_name)
@few
@given(case=cases())
def test_every_position_scheme(case: Case, scheme: pce.Positions):
    method = pce.Method(positions=scheme)
    check(run(case, method), expect(case, method))


@pytest.mark.parametrize("select", SELECTIONS, ids=selection_name)
@few
@given(case=cases())
def test_every_selection(case: Case, select: pce.Select):
    method = pce.Method(select=select)
    check(run(case, method), expect(case, method))


@pytest.mark.smoke
@few
@given(cases(sink=0, shortest=1))
def test_selection_without_a_sink(case: Case):
    method = pce.METHODS["sel"]
    check(run(case, method), expect(case, method))


@few
@given(cases(sink=None))
def test_full_attention_reads_the_segments_as_one(case: Case):
    method = pce.METHODS["full"]
    check(run(case, method), expect(case, method))


def test_sequential_positions_are_not_full_attention_but_share_its_positions():
    case = make(1, [7, 16, 2, 9])
    sequential = pce.Method(positions=pce.Positions(sequential=True))
    full = pce.METHODS["full"]
    caches = [pce.encode(model(), case.context(), method) for method in (sequential, full)]
    assert caches[0].query_start == caches[1].query_start == 2 + 34
    assert np.abs(run(case, sequential).logits - run(case, full).logits).max() > 0.01


@few
@given(cases(sink=None), st.sampled_from([frozenset(), frozenset({"head", "token"})]))
def test_top_k_of_all_segments_is_no_selection(case: Case, aggregate: frozenset):
    for select in (pce.Select(top_k=4, aggregate=aggregate), pce.Select(top_k=9)):
        chosen = run(case, pce.Method(select=select))
        plain = run(case, pce.Method())
        np.testing.assert_allclose(chosen.logits, plain.logits, atol=1e-5)
        assert chosen.stats is not None and plain.stats is not None
        np.testing.assert_allclose(chosen.stats.entropy.total, plain.stats.entropy.total, atol=1e-5)


@few
@given(cases(sink=None))
def test_a_single_filled_segment_is_never_selected_from(case: Case):
    case = dataclasses.replace(case, segments=[[], max(case.segments, key=len), [], []])
    plain = run(case, pce.Method())
    for select in (pce.Select(top_k=1), pce.Select(tau=0.3)):
        chosen = run(case, pce.Method(select=select))
        np.testing.assert_allclose(chosen.logits, plain.logits, atol=1e-5)


@few
@given(cases(sink=None))
def test_scores_are_likelihoods_of_the_oracle(case: Case):
    method = pce.METHODS["sel"]
    cache = pce.encode(model(), case.context(), method)
    out = pce.score(model(), cache, case.padded_query(), method, length=len(case.query), stats=True)
    dense = expect(case, method)
    nll = dense.nll(case.query)
    np.testing.assert_allclose(out.nll[1 : len(case.query)], nll, atol=1e-4)
    np.testing.assert_allclose(out.sum(), nll.sum(), atol=3e-4)
    assert not out.nll[0] and not np.any(out.nll[len(case.query) :])
    assert out.stats is not None
    np.testing.assert_allclose(out.stats.by_layer(), dense.total.mean((1, 2)), atol=1e-4)
    np.testing.assert_allclose(out.stats.mean(), dense.total.mean(), atol=1e-4)
