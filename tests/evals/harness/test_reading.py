"""From prompts to segments: no token is lost, moved or doubled."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pce_jax.evals.harness.reading import Cut, item_ends

BOS = 0
TOKENS = st.lists(st.integers(0, 9), min_size=1, max_size=30)


@given(
    prompt=TOKENS,
    scored=st.lists(st.integers(0, 9), max_size=4),
    degree=st.integers(1, 9),
    query_tokens=st.integers(1, 12),
    ends=st.none() | st.lists(st.integers(-3, 35)).map(sorted),
)
def test_what_is_read_is_the_prompt(prompt, scored, degree, query_tokens, ends):
    cut = Cut(degree=degree, sink=(), shared=BOS, query_tokens=query_tokens)
    reading = cut.read(prompt, scored, ends)
    in_order = [*reading.sink, *sum(reading.segments, ()), *reading.query]
    assert in_order == [*prompt, *scored]
    assert len(reading.query) > len(scored) == reading.scored
    assert 1 <= len(reading.segments) <= degree


def test_a_beginning_of_sequence_token_joins_the_shared_sink_in_front():
    reading = Cut(degree=2, sink=(7, 8), shared=BOS).read([BOS, 1, 2, 3, 4, 5])
    assert reading.sink == (BOS, 7, 8)
    assert reading.segments == ((1, 2), (3, 4))
    assert reading.query == (5,)


def test_a_prompt_of_one_token_is_a_query_without_a_context():
    reading = Cut(degree=4, shared=BOS).read([BOS], [1, 2])
    assert (reading.sink, reading.segments, reading.query) == ((), ((),), (BOS, 1, 2))


def test_items_stay_whole_and_the_last_one_is_the_query():
    reading = Cut(degree=2).read([1, 1, 2, 3, 3, 3, 4], ends=[2, 3, 6])
    assert reading.segments == ((1, 1, 2), (3, 3, 3))
    assert reading.query == (4,)


def test_an_end_behind_the_last_token_starts_no_empty_query():
    assert Cut(degree=2).read([1, 1, 2, 2], ends=[2, 4]).query == (2, 2)


def test_one_item_is_cut_anywhere():
    assert Cut(degree=2).read([1, 2, 3, 4, 5], ends=[4]).segments == ((1, 2), (3, 4))


@pytest.mark.parametrize(
    ("text", "starts", "ends"),
    [
        ("ab|cd|e", [0, 2, 3, 5, 6], [2, 4]),
        ("ab|cd", [0, 1, 4], [2]),  # a token that is "b|c" belongs to what stands in front
        ("ab||cd", [0, 2, 3, 4], [2, 3]),
        ("abcd", [0, 2], []),
        ("ab|", [0, 2], [2]),
    ],
)
def test_items_end_behind_separators(text, starts, ends):
    assert item_ends(text, "|", starts) == ends


def test_item_ends_count_from_where_a_prompt_was_cut_off():
    assert item_ends("ab|cd|e", "|", [0, 2, 3, 5, 6], shift=3) == [-1, 1]
