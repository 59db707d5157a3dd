"""Who sees whom, as pictures: change one token and look at which others notice."""

import dataclasses

import numpy as np
import pytest
from core.cases import Case, model

import pce_jax as pce

CASE = Case([1, 2], [[3, 4, 5], [6, 7], [], [8]], [9, 10, 11])

PARALLEL = """
x.|...|..|.|...
xx|...|..|.|...
xx|x..|..|.|...
xx|xx.|..|.|...
xx|xxx|..|.|...
xx|...|x.|.|...
xx|...|xx|.|...
xx|...|..|x|...
xx|xxx|xx|x|x..
xx|xxx|xx|x|xx.
xx|xxx|xx|x|xxx
"""
FULL = """
x.|...|..|.|...
xx|...|..|.|...
xx|x..|..|.|...
xx|xx.|..|.|...
xx|xxx|..|.|...
xx|xxx|x.|.|...
xx|xxx|xx|.|...
xx|xxx|xx|x|...
xx|xxx|xx|x|x..
xx|xxx|xx|x|xx.
xx|xxx|xx|x|xxx
"""


def values(case: Case, method: pce.Method, filler: int = 0) -> np.ndarray:
    """Last layer's values of every real token, `[tokens, features]`: they know all it has seen."""
    cache = pce.encode(model(), case.context(filler), method)
    tokens = case.padded_query(filler)
    out = pce.query(model(), cache, tokens, method, length=len(case.query), stats=True)
    parts = [cache.sink.v[-1].swapaxes(0, 1)]
    lengths = np.asarray(cache.lengths)
    for number, length in enumerate(lengths):
        parts.append(cache.segments.v[-1][:, number, :length].swapaxes(0, 1))
    parts.append(out.tail.kv.v[-1][:, : len(case.query)].swapaxes(0, 1))
    return np.concatenate([np.asarray(p).reshape(len(p), 16) for p in parts])


def picture(case: Case, method: pce.Method) -> str:
    before = values(case, method)
    columns = []
    rows = [case.sink, *case.segments, case.query]
    for number, row in enumerate(rows):
        for i in range(len(row)):
            changed = [list(r) for r in rows]
            changed[number][i] += 20
            after = values(Case(changed[0], changed[1:-1], changed[-1]), method)
            columns.append((before != after).any(axis=1))
        columns.append(None)
    text = ""
    for token in range(len(before)):
        line = "".join("|" if c is None else "x" if c[token] else "." for c in columns[:-1])
        text += line.replace("||", "|") + "\n"
    return text


@pytest.mark.smoke
@pytest.mark.parametrize(
    ("name", "expected"), [("naive", PARALLEL), ("full", FULL)], ids=["naive", "full"]
)
def test_picture_of_what_each_token_sees(name: str, expected: str):
    assert picture(CASE, pce.METHODS[name]).split() == expected.split()


def test_selection_hides_segments_from_the_query_only():
    case = Case([1, 2], [[3, 4, 5], [6, 7], [12], [8]], [9, 10, 11])
    plain, chosen = (values(case, pce.METHODS[name]) for name in ("naive", "sel"))
    queries = len(case.query)
    np.testing.assert_array_equal(plain[:-queries], chosen[:-queries])
    assert np.abs(plain[-queries:] - chosen[-queries:]).max() > 1e-3


def test_a_segment_that_is_not_chosen_leaves_no_trace():
    case = Case([1, 2], [[3, 4, 5], [6, 7], [12], [8]], [9, 10, 11])
    method = pce.Method(select=pce.Select(top_k=1, aggregate=frozenset({"layer", "head", "token"})))
    cache = pce.encode(model(), case.context(), method)
    louder = []
    for number in range(-1, 4):  # other values for one segment; -1: for none
        v = cache.segments.v * (1 + 0.1 * (np.arange(4) == number)[:, None, None])
        changed = dataclasses.replace(cache, segments=pce.KV(cache.segments.k, v))
        louder.append(pce.query(model(), changed, case.padded_query(), method, length=3).logits[:3])
    heard = [bool((logits != louder[0]).any()) for logits in louder[1:]]
    assert sorted(heard) == [False, False, False, True]


def test_what_padding_holds_is_seen_by_nobody():
    for name in ("naive", "full", "sel"):
        method = pce.METHODS[name]
        np.testing.assert_array_equal(values(CASE, method, 0), values(CASE, method, 7))
