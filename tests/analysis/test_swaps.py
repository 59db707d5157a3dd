"""Oracle swaps: what they leave alone, and what they make equal to full attention."""

import dataclasses

import jax
import numpy as np
import pytest
from core.cases import Case, cases, few, make, model, run
from hypothesis import given

import pce_jax as pce
from pce_jax.analysis import full_like, swap

FULL, NAIVE, SEL = (pce.METHODS[name] for name in ("full", "naive", "sel"))


def logits(cache: pce.ContextCache, case: Case, method: pce.Method = NAIVE) -> np.ndarray:
    tokens, count = case.padded_query(), len(case.query)
    return np.asarray(pce.query(model(), cache, tokens, method, length=count, stats=True).logits)[
        :count
    ]


@pytest.mark.parametrize("keys", [False, True])
@pytest.mark.parametrize("values", [False, True])
def test_with_itself_is_the_identity(keys: bool, values: bool):
    cache = pce.encode(model(), make(1, [7, 16, 2, 9]).context())
    same = swap(cache, cache, keys=keys, values=values)
    jax.tree.map(np.testing.assert_array_equal, same, cache)


@few
@given(cases(sink=None))
def test_keys_and_values_swapped_are_full_attention(case: Case):
    context = case.context()
    cache, full = pce.encode(model(), context), full_like(model(), context)
    swapped = swap(cache, full)
    jax.tree.map(np.testing.assert_array_equal, swapped, full)
    expected = np.asarray(run(case, FULL).logits)[: len(case.query)]
    np.testing.assert_allclose(logits(swapped, case), expected, atol=1e-4)


@few
@given(cases())
def test_one_segment_has_nothing_to_swap(case: Case):
    case = dataclasses.replace(case.joined(), segments=[case.joined().segments[0][:16], [], [], []])
    context = case.context()
    cache, full = pce.encode(model(), context), full_like(model(), context)
    plain = logits(cache, case)
    for keys, values in ((True, False), (False, True), (True, True)):
        swapped = swap(cache, full, keys=keys, values=values)
        np.testing.assert_allclose(logits(swapped, case), plain, atol=1e-4)


def test_what_each_swap_takes():
    context = make(2, [16, 7, 2, 9]).context()
    cache, full = pce.encode(model(), context), full_like(model(), context)
    keys, values = swap(cache, full, values=False), swap(cache, full, keys=False)
    for part in ("sink", "segments"):
        mine, theirs = getattr(cache, part), getattr(full, part)
        assert getattr(keys, part).k is theirs.k and getattr(keys, part).v is mine.v
        assert getattr(values, part).k is mine.k and getattr(values, part).v is theirs.v
    assert keys.query_start == full.query_start == 2 + 34
    assert values.query_start == cache.query_start == 2 + 16
    # The first segment has read the same either way.
    np.testing.assert_allclose(full.segments.k[:, :, 0], cache.segments.k[:, :, 0], atol=1e-5)
    np.testing.assert_allclose(full.segments.v[:, :, 0], cache.segments.v[:, :, 0], atol=1e-5)
    assert np.abs(full.segments.v[1:, :, 1] - cache.segments.v[1:, :, 1]).max() > 0.01


def test_swaps_go_with_selection():
    case = make(3, [7, 16, 2, 9])
    context = case.context()
    cache, full = pce.encode(model(), context, SEL), full_like(model(), context, SEL)
    found = [logits(swap(cache, full, values=False), case, method) for method in (SEL, NAIVE)]
    assert np.isfinite(found).all() and np.abs(found[0] - found[1]).max() > 1e-3


def test_caches_of_other_contexts_are_refused():
    cache = pce.encode(model(), make(1, [7, 16, 2, 9]).context())
    other = pce.encode(model(), make(1, [7, 16, 2, 9], sink=0).context())
    with pytest.raises(pce.PceError, match=r"sink \(3, 2, 2, 8\) here and \(3, 2, 0, 8\) there"):
        swap(cache, other)
