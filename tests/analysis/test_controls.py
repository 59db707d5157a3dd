"""Controls, on literals."""

import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import make, model
from tiny_folder import byte_tokenizer

import pce_jax as pce
from pce_jax import analysis
from pce_jax.models import forward

CONTEXT = pce.from_segments([[1, 2, 3], [4, 5], [6]], sink=[8, 9])  # padded to 3 segments


def test_drop():
    empty = analysis.drop(CONTEXT)
    assert empty.lengths.tolist() == [0, 0, 0] and empty.sink.tolist() == [8, 9]
    case = make(1, [7, 16, 2, 9])
    cache = pce.encode(model(), case.context())
    alone = pce.encode(model(), analysis.drop(case.context()))
    assert alone.query_start == 2
    assert analysis.drop(cache).query_start == cache.query_start == 18
    # Without a sink, what is left is the query by itself.
    bare = pce.encode(model(), analysis.drop(make(1, [7, 16, 2, 9], sink=0).context()))
    found = analysis.analyze_query(model(), bare, case.query)
    np.testing.assert_allclose(found.tail_mass, 1, atol=1e-5)
    read = forward(model(), jnp.asarray(case.query))
    np.testing.assert_allclose(pce.query(model(), bare, case.query).logits, read, atol=1e-4)


@pytest.mark.parametrize(
    ("items", "share", "stay", "query"),
    [
        ([1, 2, 3, 4], 0, [1, 2, 3, 4], [9]),
        ([1, 2, 3, 4], 0.25, [1, 2, 3], [4, 9]),
        ([1, 2, 3, 4], 0.6, [1, 2], [3, 4, 9]),
        ([1, 2, 3, 4, 5], 0.5, [1, 2], [3, 4, 5, 9]),
        ([[1, 2], [3], [4, 5]], 0.34, [[1, 2], [3]], [4, 5, 9]),
        (np.array([1, 2]), 0.5, [1], [2, 9]),
    ],
)
def test_move_to_query(items, share, stay, query):
    assert analysis.move_to_query(items, [9], share) == (stay, query)


def test_a_moved_share_reads_the_same_under_full_attention():
    case = make(2, [12])
    tokens, full = case.segments[0], pce.METHODS["full"]
    stay, query = analysis.move_to_query(tokens, case.query, 0.5)
    whole, short = pce.split(tokens, 1), pce.split(stay, 1)
    moved = pce.query(model(), pce.encode(model(), short, full), query, full).logits
    plain = pce.query(model(), pce.encode(model(), whole, full), case.query, full).logits
    np.testing.assert_allclose(moved[-5:], plain, atol=1e-4)


@pytest.mark.parametrize(
    ("count", "degree", "times", "expected"),
    [
        (8, 2, 1, [[1, 2, 3, 4], [5, 6, 7, 8]]),
        (8, 2, 2, [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]]),
        (7, 2, 2, [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7]]),
        (5, 2, 3, [[1, 2, 3], [2, 3, 4], [3, 4, 5]]),
        (5, 1, 2, [[1, 2, 3, 4, 5]]),
        (3, 3, 1, [[1], [2], [3]]),
    ],
)
def test_overlapping(count, degree, times, expected):
    assert analysis.overlapping(range(1, count + 1), degree, times) == expected


@pytest.mark.parametrize("count", range(1, 30))
def test_once_overlapping_is_split(count):
    for degree in range(1, count + 1):
        found = analysis.overlapping(range(count), degree, 1)
        assert found == analysis.unpack(pce.split(range(count), degree))


def test_cut_behind_separators():
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("\none\ntwo\n\nthree")
    pieces = analysis.cut_behind(tokens, analysis.separators(tokenizer, tokens))
    assert [tokenizer.decode(piece) for piece in pieces] == ["\n", "one\n", "two\n\n", "three"]
    assert analysis.cut_behind([1, 2], ends=()) == [[1, 2]]
    assert analysis.separators(tokenizer, tokens, "q") == set()
    two = pce.group(pieces, 2)
    assert [tokenizer.decode(piece) for piece in two] == ["\none\n", "two\n\nthree"]


def test_same_sizes():
    pieces = [[1, 2, 0, 0], [3, 0], [4]]
    found = {seed: analysis.same_sizes(pieces, seed) for seed in range(8)}
    for cut in found.values():
        assert [t for piece in cut for t in piece] == [1, 2, 0, 0, 3, 0, 4]
        assert sorted(map(len, cut)) == [1, 2, 4]
    assert len({str(cut) for cut in found.values()}) > 1
    assert analysis.same_sizes(pieces, 3) == found[3]


def test_shuffle():
    found = [analysis.unpack(analysis.shuffle(CONTEXT, seed)) for seed in range(8)]
    assert all(sorted(pieces) == [[1, 2, 3], [4, 5], [6]] for pieces in found)
    assert len({str(pieces) for pieces in found}) > 1
    assert analysis.shuffle(CONTEXT, 0).sink.tolist() == [8, 9]
    assert analysis.shuffle(CONTEXT, 0).segments.shape == CONTEXT.segments.shape


def test_the_order_of_segments_changes_nothing():
    case = make(3, [16, 16, 16, 16])
    outs = []
    for context in (case.context(), analysis.shuffle(case.context(), 1)):
        outs.append(pce.query(model(), pce.encode(model(), context), case.query).logits)
    np.testing.assert_allclose(outs[0], outs[1], atol=1e-4)


def test_repeat_sink():
    assert analysis.repeat_sink(CONTEXT, 3).sink.tolist() == [8, 9, 8, 9, 8, 9]
    assert analysis.repeat_sink(CONTEXT, 1).sink.tolist() == [8, 9]
    assert analysis.repeat_sink(CONTEXT, 2).segments is CONTEXT.segments


@pytest.mark.parametrize(
    ("bad", "says"),
    [
        (lambda: analysis.move_to_query([1, 2], [9], 1.5), "from 0 to 1, got 1.5"),
        (lambda: analysis.move_to_query([1, 2], [9], 0.9), "nothing left to encode"),
        (lambda: analysis.overlapping([1, 2], 3, 1), "from 1 to the context's 2 tokens, got 3"),
        (lambda: analysis.overlapping([1, 2, 3, 4], 2, 3), "from 1 to 2 times, got 3"),
        (lambda: analysis.cut_behind([], {0}), "nothing to cut"),
        (lambda: analysis.repeat_sink(CONTEXT, 0), "at least once, got 0"),
        (lambda: analysis.repeat_sink(pce.from_segments([[1]]), 2), "no sink to repeat"),
    ],
)
def test_bad_settings(bad, says):
    with pytest.raises(pce.PceError, match=says):
        bad()
