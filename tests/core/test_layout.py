"""From tokens to padded segments."""

from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pce_jax as pce
from pce_jax.errors import LayoutError

quick = settings(deadline=None, derandomize=True, database=None)


class Letters:
    """A tokenizer: one token a letter."""

    def encode(self, text: str, **options: Any) -> list[int]:
        assert options["add_special_tokens"] is False
        return [ord(letter) for letter in text]


def real(context: pce.SegmentedContext) -> list[list[int]]:
    rows = zip(context.segments, context.lengths, strict=True)
    return [row[:n].tolist() for row, n in rows if n]


# Buckets


def test_buckets_are_powers_of_two_and_three_quarters_of_them():
    assert sorted({pce.bucket(n) for n in range(1, 200)}) == [16, 24, 32, 48, 64, 96, 128, 192, 256]
    assert [pce.bucket(n, smallest=1) for n in range(1, 10)] == [1, 2, 3, 4, 6, 6, 8, 8, 12]


def test_padding_waste_is_the_share_of_slots_without_a_token():
    context = pce.from_segments([[1] * 12] * 5)  # 6 segments of 16
    assert pce.padding_waste(context) == pytest.approx(1 - 60 / 96)
    assert pce.padding_waste(pce.stack([[[1] * 3, [1]], [[1] * 4]])) == pytest.approx(1 - 8 / 16)


@quick
@given(st.integers(1, 2**20))
def test_a_bucket_holds_its_size_and_is_its_own_bucket(size: int):
    bucket = pce.bucket(size)
    assert size <= bucket <= max(16, size * 3 // 2)
    assert pce.bucket(bucket) == bucket


def test_pad_tokens_pads_with_anything_and_says_how_many_are_real():
    padded, length = pce.pad_tokens([5, 6, 7])
    assert padded.dtype == np.int32
    assert padded.shape == (16,)
    assert length == 3
    assert padded[:3].tolist() == [5, 6, 7]


def test_pad_tokens_refuses_nothing():
    with pytest.raises(LayoutError, match=r"no tokens: the text is empty\. Give at least one"):
        pce.pad_tokens([])


# Splitting a stream


def test_split_cuts_chunks_of_the_quotient_rounded_up():
    assert real(pce.split(range(10), 4)) == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9]]
    assert real(pce.split(range(767), 5))[-1] == list(range(616, 767))


def test_split_fills_fewer_segments_when_rounding_uses_the_tokens_earlier():
    context = pce.split(range(5), 4)
    assert real(context) == [[0, 1], [2, 3], [4]]
    assert context.lengths.tolist() == [2, 2, 1]


@quick
@given(st.lists(st.integers(0, 99), min_size=1, max_size=70), st.data())
def test_split_loses_no_token_and_no_order(tokens: list[int], data: st.DataObject):
    degree = data.draw(st.integers(1, len(tokens)))
    context = pce.split(tokens, degree, sink=[7, 8])
    segments = real(context)
    assert [t for segment in segments for t in segment] == tokens
    assert context.sink.tolist() == [7, 8]
    size = -(-len(tokens) // degree)
    assert {len(segment) for segment in segments[:-1]} <= {size}
    assert 1 <= len(segments[-1]) <= size


@pytest.mark.parametrize(
    ("tokens", "degree", "message"),
    [
        ([], 1, "the context is empty: there is nothing to split. Give at least one token."),
        ([1, 2], 3, "degree 3 is above the context's 2 tokens: every segment needs at least one"),
        ([1, 2], 0, r"degree must be at least 1 \(1 is full attention\), got 0"),
        ([1, 2], -1, r"degree must be at least 1 \(1 is full attention\), got -1"),
    ],
)
def test_split_says_what_is_wrong(tokens: list[int], degree: int, message: str):
    with pytest.raises(LayoutError, match=message):
        pce.split(tokens, degree)


# Dealing items


def test_group_deals_whole_items_in_order_larger_groups_first():
    items = [[1], [2, 2], [3], [4, 4, 4], [5]]
    assert pce.group(items, 3) == [[1, 2, 2], [3, 4, 4, 4], [5]]
    assert pce.group(items, 2) == [[1, 2, 2, 3], [4, 4, 4, 5]]
    assert pce.group(items, 1) == [[1, 2, 2, 3, 4, 4, 4, 5]]


def test_group_makes_no_more_segments_than_there_are_items():
    assert pce.group([[1], [2]], 64) == [[1], [2]]


@quick
@given(st.integers(1, 40), st.integers(1, 50))
def test_group_sizes_differ_by_at_most_one_item(items: int, degree: int):
    groups = pce.group([[i] for i in range(items)], degree)
    sizes = [len(g) for g in groups]
    assert [t for g in groups for t in g] == list(range(items))
    assert len(groups) == min(items, degree)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] - sizes[-1] <= 1


def test_group_says_what_is_wrong():
    with pytest.raises(LayoutError, match="there are no documents: give at least one"):
        pce.group([], 2)
    with pytest.raises(LayoutError, match="degree must be at least 1"):
        pce.group([[1]], 0)


# Packing texts


def test_pack_makes_a_segment_of_each_document():
    context = pce.pack(Letters(), ["ab", "c"], sink="\n")
    assert real(context) == [[97, 98], [99]]
    assert context.sink.tolist() == [10]


def test_pack_deals_documents_to_a_degree():
    assert real(pce.pack(Letters(), ["a", "bb", "c"], degree=2)) == [[97, 98, 98], [99]]


def test_pack_has_no_sink_unless_asked():
    assert pce.pack(Letters(), ["a"]).sink.shape == (0,)


@pytest.mark.parametrize(
    ("documents", "degree", "message"),
    [
        ([], None, "there are no documents: give at least one"),
        (["a", "", "b", ""], None, r"document 2, 4 of 4 is empty: leave it out\."),
        (["a"], 0, "degree must be at least 1"),
        ("one text", None, "documents is one text: give a list of texts"),
    ],
)
def test_pack_says_what_is_wrong(documents: list[str] | str, degree: int | None, message: str):
    with pytest.raises(LayoutError, match=message):
        pce.pack(Letters(), documents, degree=degree)


# Padding and joining


def test_segments_are_padded_on_both_axes():
    context = pce.from_segments([[1] * 17, [2], [3], [4], [5]])
    assert context.segments.shape == (6, 24)
    assert context.lengths.tolist() == [17, 1, 1, 1, 1, 0]
    assert {a.dtype for a in jax.tree.leaves(context)} == {np.dtype(np.int32)}


def test_items_and_segments_may_be_arrays():
    rows: Any = np.arange(6).reshape(3, 2)
    assert pce.group(rows, degree=2) == [[0, 1, 2, 3], [4, 5]]
    assert real(pce.from_segments(rows)) == rows.tolist()


def test_from_segments_refuses_none():
    with pytest.raises(LayoutError, match="there are no segments: give at least one"):
        pce.from_segments([])


def test_join_puts_the_tokens_in_a_row_whatever_the_padding_holds():
    context = pce.SegmentedContext(
        np.array([9], np.int32),
        np.array([[1, 2, 77], [77, 77, 77], [3, 77, 77], [4, 5, 6]], np.int32),
        np.array([2, 0, 1, 3], np.int32),
    )
    joined = pce.join(context)
    assert joined.segments.shape == (1, 12)
    assert joined.lengths.tolist() == [6]
    assert joined.segments[0, :6].tolist() == [1, 2, 3, 4, 5, 6]
    assert joined.sink.tolist() == [9]
    traced = jax.jit(pce.join)(context)
    np.testing.assert_array_equal(traced.segments, joined.segments)
