"""Position schemes against literal tables and exact fractions."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import place

import pce_jax as pce
from pce_jax.errors import MethodError

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)
NAMES: list[Any] = [
    (s, a) for s in ("max", "mean", "harmonic") for a in ("left", "right", "spread")
]


@functools.partial(jax.jit, static_argnums=(0, 2))
def _of_segments(scheme: pce.Positions, lengths: jax.Array, tokens: int, start: Any):
    return scheme.of_segments(lengths, tokens, start)


def placed(scheme: pce.Positions, lengths: list[int], start: int) -> tuple[list, float]:
    places, query_start = _of_segments(scheme, jnp.asarray(lengths, jnp.int32), max(lengths), start)
    assert places.dtype == query_start.dtype == jnp.float32
    return [row[:n].tolist() for row, n in zip(np.asarray(places), lengths, strict=True)], float(
        query_start
    )


TABLES = {  # lengths 3, 5, 4 behind a sink of 2; spans: 5, 4, 180/47 = 3.83
    ("max", "left"): ([2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 5], 7),
    ("max", "right"): ([4, 5, 6], [2, 3, 4, 5, 6], [3, 4, 5, 6], 7),
    ("max", "spread"): ([2, 3, 5], [2, 3, 4, 5, 6], [2, 3, 4, 5], 7),
    ("mean", "left"): ([2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 5], 6),
    ("mean", "right"): ([3, 4, 5], [1, 2, 3, 4, 5], [2, 3, 4, 5], 6),
    ("mean", "spread"): ([2, 3, 4], [2, 2, 3, 4, 5], [2, 3, 4, 5], 6),
    ("harmonic", "left"): ([2, 3, 4], [2, 3, 4, 5, 6], [2, 3, 4, 5], 5),
    ("harmonic", "right"): ([2, 3, 4], [0, 1, 2, 3, 4], [1, 2, 3, 4], 5),
    ("harmonic", "spread"): ([2, 3, 4], [2, 2, 3, 4, 5], [2, 2, 3, 4], 5),
}


@pytest.mark.smoke
@pytest.mark.parametrize(("span", "align"), NAMES)
def test_literal_tables(span, align):
    *rows, query_start = TABLES[span, align]
    assert placed(pce.Positions(span=span, align=align), [3, 5, 4], 2) == (rows, query_start)


def test_the_published_example_of_a_short_segment_next_to_a_longer_one():
    assert placed(pce.Positions(), [3, 5], 0) == ([[0, 1, 3], [0, 1, 2, 3, 4]], 5)


def test_fractions_are_kept_when_asked():
    (short, _), query_start = placed(pce.Positions(fractional=True), [3, 5], 2)
    np.testing.assert_allclose(short, [2, 2 + 5 / 3, 2 + 10 / 3], rtol=1e-6)
    (_, _), query_start = placed(pce.Positions(span="mean", fractional=True), [3, 4], 2)
    assert query_start == 5.5


def test_sequential_positions_count_on():
    scheme = pce.Positions(sequential=True)
    assert placed(scheme, [3, 0, 2], 4) == ([[4, 5, 6], [], [7, 8]], 9)


def test_negative_positions_are_truncated_towards_zero():
    # span 3.33: the longest segment, aligned right, starts at 3.33 - 6 = -2.67
    scheme = pce.Positions(span="mean", align="right")
    assert placed(scheme, [2, 2, 6], 0)[0][2] == [-2, -1, 0, 0, 1, 2]


def test_empty_segments_take_no_part():
    for span, align in NAMES:
        scheme = pce.Positions(span=span, align=align)
        with_empty = placed(scheme, [3, 0, 5, 0], 2)
        assert with_empty[0][0:3:2], with_empty[1] == placed(scheme, [3, 5], 2)


def test_nothing_at_all_has_finite_positions():
    for span, align in NAMES:
        scheme = pce.Positions(span=span, align=align)
        places, query_start = scheme.of_segments(jnp.zeros(2, jnp.int32), 4, 3)
        assert np.isfinite(places).all()
        assert query_start == 3


@pytest.mark.parametrize(("span", "align"), NAMES)
@quick
@given(lengths=st.lists(st.integers(1, 40), min_size=4, max_size=4), start=st.integers(0, 20))
def test_short_segments_are_exact(span, align, lengths: list[int], start: int):
    lengths = [*lengths, 40]  # one padded shape
    scheme = pce.Positions(span=span, align=align)
    assert placed(scheme, lengths, start) == place(lengths, start, span=span, align=align)


LONG = [
    [131072, 131071, 65537, 3],
    [131071, 99991, 77, 1],
    [100003, 100002, 100001, 100000],
    [49999, 131072, 12345, 54321],
]


@pytest.mark.parametrize("span", ["max", "mean"])
@pytest.mark.parametrize("align", ["left", "right", "spread"])
@pytest.mark.parametrize("lengths", LONG, ids=lambda lengths: str(lengths[0]))
def test_long_segments_are_exact_where_float32_rounds(span, align, lengths: list[int]):
    scheme = pce.Positions(span=span, align=align)
    rows, query_start = placed(scheme, lengths, 14)
    start, numerator, denominator = 14, *{"max": (max(lengths), 1), "mean": (sum(lengths), 4)}[span]
    assert query_start == start + numerator // denominator
    for row, n in zip(rows, lengths, strict=True):
        i = np.arange(n, dtype=np.int64)
        exact = {
            "left": start + i,
            "right": np.trunc((start + i - n) + numerator / denominator),
            "spread": start + i * numerator // (denominator * n),
        }[align]
        np.testing.assert_array_equal(row, exact)


def test_float32_alone_would_be_off_by_one():
    """Why spread positions take care: the plain product is wrong for some token."""
    n, span = 99991, 131071
    plain = np.arange(n, dtype=np.float32) * (np.float32(span) / np.float32(n))
    assert (np.trunc(plain) != np.arange(n, dtype=np.int64) * span // n).any()


@pytest.mark.parametrize("align", ["left", "right", "spread"])
@pytest.mark.parametrize("count", [1, 3, 4, 7, 49])
def test_equal_segments_have_plain_positions_in_every_scheme(align, count: int):
    for length in (3, 41, 49, 1000):
        for span in ("max", "mean", "harmonic"):
            rows, query_start = placed(pce.Positions(span=span, align=align), [length] * count, 1)
            assert query_start == 1 + length, (span, length)
            assert rows == [list(range(1, 1 + length))] * count, (span, length)


def test_unknown_names_are_refused():
    with pytest.raises(MethodError, match=r"span 'min' is unknown\. Known: max, mean, harmonic"):
        pce.Positions(span="min")  # pyrefly: ignore
    with pytest.raises(MethodError, match=r"align 'middle' is unknown\. Known: left, right"):
        pce.Positions(align="middle")  # pyrefly: ignore
