"""Generation equals reading everything again, and its outputs are what they say."""

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest
from core.cases import Case, expect, make, model

import pce_jax as pce
from pce_jax.errors import LayoutError, MethodError

LAYERED = pce.Method(select=pce.Select(aggregate=frozenset({"layer", "head", "token"})))
CASE = make(11, [7, 16, 2, 9])
NEW = 6


def cache_of(case: Case = CASE) -> pce.ContextCache:
    return pce.encode(model(), case.context())


@pytest.fixture(scope="module")
def cache() -> pce.ContextCache:
    return cache_of()


def greedy_by_oracle(case: Case, method: pce.Method, new: int) -> tuple[list[int], list[float]]:
    """Read the whole prefix again for each token; and each step's mean entropy."""
    dense = expect(case, method)
    answer = [int(dense.logits[-1].argmax())]
    while len(answer) < new:
        dense = expect(case, method, answer=answer)
        answer.append(int(dense.logits[-1].argmax()))
    steps = [dense.total[..., : len(case.query)].mean()]
    after = range(len(case.query), len(case.query) + new - 1)
    return answer, steps + [dense.total[..., i].mean() for i in after]


@pytest.mark.smoke
@pytest.mark.parametrize("sink", [0, 2], ids=["no sink", "sink"])
def test_greedy_generation_equals_reading_all_again_each_time(sink: int):
    case = make(11, [7, 16, 2, 9], sink=sink)
    out = pce.generate(model(), cache_of(case), case.query, max_new_tokens=NEW, stats=True)
    answer, entropy = greedy_by_oracle(case, pce.Method(), NEW)
    assert out.sequences() == [answer]
    assert out.entropy is not None
    np.testing.assert_allclose(out.entropy[0], entropy, atol=1e-4)


@pytest.mark.parametrize("method", [pce.METHODS["sel"], LAYERED], ids=["sel", "layered"])
def test_every_step_selects_for_its_own_token(method: pce.Method):
    out = pce.generate(model(), cache_of(), CASE.query, method, max_new_tokens=NEW, stats=True)
    answer, entropy = greedy_by_oracle(CASE, method, NEW)
    assert out.sequences() == [answer]
    assert out.entropy is not None
    np.testing.assert_allclose(out.entropy[0], entropy, atol=1e-4)


@pytest.mark.parametrize("name", ["naive", "sel"])
def test_a_row_does_not_depend_on_its_neighbours(name: str, cache: pce.ContextCache):
    queries = [CASE.query, [3], list(range(8))]
    method = pce.METHODS[name]
    together = pce.generate(model(), cache, queries, method, max_new_tokens=NEW).sequences()
    assert len(together) == 3
    for query, row in zip(queries, together, strict=True):
        alone = pce.generate(model(), cache, query, method, max_new_tokens=NEW)
        assert alone.sequences() == [row]


def test_what_a_row_draws_does_not_depend_on_its_neighbours(cache: pce.ContextCache):
    def draw(queries: list[list[int]]) -> list[int]:
        warm = pce.Sampling(temperature=3.0)
        out = pce.generate(model(), cache, queries, max_new_tokens=NEW, sampling=warm)
        return out.sequences()[0]

    assert draw([CASE.query]) == draw([CASE.query, [3, 4]])


def test_a_stop_token_ends_its_row_and_is_not_part_of_it(cache: pce.ContextCache):
    free = pce.generate(model(), cache, CASE.query, max_new_tokens=NEW).sequences()[0]
    stop = free[3]
    length = free.index(stop)
    out = pce.generate(
        model(), cache, CASE.query, max_new_tokens=NEW, stop_tokens=(stop,), stats=True
    )
    assert out.sequences() == [free[:length]]
    assert out.lengths.tolist() == [length]
    assert out.tokens.shape == (1, length + 1)  # nothing is computed after all rows have stopped
    assert out.tokens[0].tolist() == free[: length + 1]
    assert out.entropy is not None and np.isfinite(out.entropy).all()


def test_rows_that_stopped_wait_for_the_others(cache: pce.ContextCache):
    queries = [CASE.query, [3, 4]]
    free = pce.generate(model(), cache, queries, max_new_tokens=NEW).sequences()
    stop = next(t for t in free[0] if t not in free[1])
    length = free[0].index(stop)
    out = pce.generate(model(), cache, queries, max_new_tokens=NEW, stop_tokens=[stop], stats=True)
    assert out.sequences() == [free[0][:length], free[1]]
    assert out.entropy is not None
    assert np.isfinite(out.entropy[0]).sum() == length + 1  # the step that drew the stop counts
    assert np.isfinite(out.entropy[1]).all()


def test_stop_tokens_are_the_models_own_unless_given(cache: pce.ContextCache):
    free = pce.generate(model(), cache, CASE.query, max_new_tokens=NEW).sequences()[0]
    ends = dataclasses.replace(model().config, eos_token_ids=(free[2],))
    ending = jax.tree.map(lambda x: x, model())
    ending.config = ends
    length = free.index(free[2])
    assert pce.generate(ending, cache, CASE.query, max_new_tokens=NEW).lengths.tolist() == [length]
    out = pce.generate(ending, cache, CASE.query, max_new_tokens=NEW, stop_tokens=())
    assert out.sequences() == [free]


def test_the_callback_gets_each_step_and_all_that_is_returned(cache: pce.ContextCache):
    queries = [CASE.query, [3, 4]]
    steps: list[list[list[int]]] = []
    free = pce.generate(model(), cache, queries, max_new_tokens=NEW).sequences()
    stop = free[0][2]
    out = pce.generate(
        model(), cache, queries, max_new_tokens=NEW, stop_tokens=(stop,), on_tokens=steps.append
    )
    assert all(len(tokens) <= 1 for step in steps for tokens in step)
    assert [[t for step in steps for t in step[row]] for row in (0, 1)] == out.sequences()


def test_the_callback_may_end_generation(cache: pce.ContextCache):
    free = pce.generate(model(), cache, CASE.query, max_new_tokens=NEW).sequences()[0]
    seen: list[int] = []

    def enough(tokens: list[list[int]]) -> bool:
        seen.extend(tokens[0])
        return len(seen) == 3

    out = pce.generate(model(), cache, CASE.query, max_new_tokens=NEW, on_tokens=enough)
    assert out.sequences() == [free[:3]] == [seen]


@pytest.mark.parametrize("new", [1, 2])
def test_max_new_tokens_bounds_what_is_generated(new: int, cache: pce.ContextCache):
    out = pce.generate(model(), cache, CASE.query, max_new_tokens=new)
    assert out.tokens.shape == (1, new)
    assert out.lengths.tolist() == [new]
    assert out.entropy is None


def test_a_seed_draws_the_same_and_another_seed_draws_otherwise(cache: pce.ContextCache):
    sampling = pce.Sampling(temperature=3.0)

    def draw(seed: int) -> list[list[int]]:
        return pce.generate(
            model(), cache, [CASE.query] * 2, max_new_tokens=NEW, sampling=sampling, seed=seed
        ).sequences()

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)
    assert draw(1)[0] != draw(1)[1]  # equal queries in a batch draw on their own


def test_queries_may_be_a_list_lists_or_arrays(cache: pce.ContextCache):
    query = CASE.query
    expected = pce.generate(model(), cache, query, max_new_tokens=2).sequences()
    forms: list[Any] = [
        np.array(query),
        [query],
        np.array([query]),
        [np.array(query)],
        tuple(query),
    ]
    for same in forms:
        assert pce.generate(model(), cache, same, max_new_tokens=2).sequences() == expected


# What does not fit


@pytest.mark.parametrize(
    ("query", "new", "message"),
    [
        ([1], 0, "max_new_tokens must be at least 1, got 0"),
        ([], 1, r"a query is empty: give at least one token to each\."),
        ([[1], []], 1, r"a query is empty: give at least one token to each\."),
        ([1, 2], 494, r"the query ends at position 513, and the model has 512\."),
    ],
)
def test_generate_says_what_is_wrong(query: list, new: int, message: str, cache: pce.ContextCache):
    with pytest.raises(LayoutError, match=message):
        pce.generate(model(), cache, query, max_new_tokens=new)


def test_a_seed_of_more_than_64_bits_is_refused(cache: pce.ContextCache):
    with pytest.raises(MethodError, match="the seed must fit 64 bits, got 9999"):
        pce.generate(model(), cache, [1], seed=10**30 - 1)


def test_query_and_score_refuse_what_does_not_fit(cache: pce.ContextCache):
    window = r"the query ends at position 513, and the model has 512\. Use a shorter query"
    long = np.zeros(495, np.int32)
    with pytest.raises(LayoutError, match=window):
        pce.query(model(), cache, long)
    pce.score(model(), cache, long)  # the last token is only predicted, and needs no position
    with pytest.raises(LayoutError, match=window):
        pce.score(model(), cache, np.zeros(496, np.int32))
    with pytest.raises(LayoutError, match="length 4 is above the number of tokens given, 3"):
        pce.query(model(), cache, long[:3], length=4)
    for read in (pce.query, pce.score):
        with pytest.raises(LayoutError, match="no tokens: the text is empty"):
            read(model(), cache, [])
        with pytest.raises(LayoutError, match=r"one sequence .* have the shape \(2, 3\)"):
            read(model(), cache, np.ones((2, 3), np.int32))
    tail = pce.empty_tail(model(), 4)
    with pytest.raises(LayoutError, match="the tail holds 4 tokens, has 0 and was given 5 more"):
        pce.query(model(), cache, long[:5], tail=tail)
    tail = pce.query(model(), cache, long[:3], tail=tail).tail
    with pytest.raises(LayoutError, match="the tail holds 4 tokens, has 3 and was given 2 more"):
        pce.query(model(), cache, long[:2], tail=tail)


def test_a_tail_that_is_too_small_is_refused_under_jit_too(cache: pce.ContextCache):
    tail = pce.empty_tail(model(), 4)
    with pytest.raises(LayoutError, match="the tail holds 4 tokens, 5 were given"):
        jax.eval_shape(lambda t: pce.query(model(), cache, np.zeros(5, np.int32), tail=t), tail)


def test_encode_refuses_what_does_not_fit():
    def context(lengths: list[int], sink: int = 0) -> pce.SegmentedContext:
        return pce.from_segments([[1] * n for n in lengths], [1] * sink)

    with pytest.raises(LayoutError, match=r"the sink has 512 tokens, which leaves no room"):
        pce.encode(model(), context([1], 512))
    with pytest.raises(LayoutError, match=r"takes 12 sink \+ 500 positions.*more segments"):
        pce.encode(model(), context([500, 3], 12))
    for method in (pce.METHODS["full"], pce.Method(positions=pce.Positions(sequential=True))):
        with pytest.raises(LayoutError, match=r"takes 0 sink \+ 512 positions.*a shorter context"):
            pce.encode(model(), context([256, 256]), method)


def test_a_method_with_a_sink_wants_a_context_with_one():
    with pytest.raises(MethodError, match="the method has a sink but the context was laid out"):
        pce.encode(model(), pce.split([1, 2, 3], 2), pce.METHODS["sink"])
