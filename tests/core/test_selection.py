"""Choosing segments, on scores written out by hand."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pce_jax as pce
from pce_jax.errors import MethodError

NONE: frozenset = frozenset()
ALL = np.ones(2, bool)


def choose(select: pce.Select, scores: Any, lengths: list[int], valid=ALL) -> np.ndarray:
    return np.asarray(select.choose(jnp.array(scores), jnp.array(lengths), jnp.asarray(valid)))


# Scores


def test_a_score_is_the_sum_of_the_five_largest_probabilities():
    p = jnp.array([[0.01, 0.2, 0.02, 0.03, 0.1, 0.04, 0.05], [0.3, 0, 0, 0, 0, 0, 0]])
    lengths = jnp.array([7, 1])
    scores = pce.Select().scores(jnp.log(p), jnp.zeros(()), lengths)
    np.testing.assert_allclose(scores, [0.42, 0.3], rtol=1e-6)


def test_score_top_may_be_one_many_or_the_mean_over_real_tokens():
    p, lengths = jnp.array([[0.1, 0.3, 0.2, 0.0], [0.4, 0.0, 0.0, 0.0]]), jnp.array([3, 1])
    for top, expected in ((1, [0.3, 0.4]), (9, [0.6, 0.4]), (0, [0.2, 0.4])):
        scores = pce.Select(score_top=top).scores(jnp.log(p), jnp.zeros(()), lengths)
        np.testing.assert_allclose(scores, expected, rtol=1e-6)


@settings(deadline=None, max_examples=40)
@given(
    values=st.lists(st.integers(-3, 3), min_size=1, max_size=12),  # many of them equal
    top=st.integers(1, 12),
)
def test_equal_probabilities_count_as_often_as_they_occur(values, top):
    logits = jnp.asarray([values], jnp.float32)
    scores = pce.Select(score_top=top).scores(logits, jnp.ones(()), jnp.array([len(values)]))
    expected = np.sum(np.exp(np.sort(values)[::-1][:top] - 1.0))
    np.testing.assert_allclose(scores, [expected], rtol=1e-6)


# The choice; scores are [tokens, heads, segments]

SCORES = [
    [[0.5, 0.1, 0.2], [0.1, 0.2, 0.3]],  # token 1: heads 1, 2
    [[0.2, 0.3, 0.1], [0.3, 0.2, 0.1]],  # token 2
]

DISTINCT = [
    [[0.5, 0.1, 0.2], [0.2, 0.2, 0.3]],
    [[0.2, 0.4, 0.1], [0.2, 0.3, 0.1]],
]


@pytest.mark.smoke
def test_without_aggregation_each_head_and_token_chooses():
    choice = choose(pce.Select(top_k=1, aggregate=NONE), SCORES, [4, 4, 4])
    np.testing.assert_array_equal(choice, [[[1, 0, 0], [0, 0, 1]], [[0, 1, 0], [1, 0, 0]]])
    choice = choose(pce.Select(top_k=2, aggregate=NONE), SCORES, [4, 4, 4])
    np.testing.assert_array_equal(choice, [[[1, 0, 1], [0, 1, 1]], [[1, 1, 0], [1, 1, 0]]])


def test_heads_choose_together():
    choice = choose(pce.Select(top_k=1, aggregate=frozenset({"head"})), DISTINCT, [4, 4, 4])
    np.testing.assert_array_equal(choice, [[[1, 0, 0]], [[0, 1, 0]]])  # .7 .3 .5 | .4 .7 .2


def test_tokens_choose_together():
    choice = choose(pce.Select(top_k=1, aggregate=frozenset({"token"})), DISTINCT, [4, 4, 4])
    np.testing.assert_array_equal(choice, [[[1, 0, 0], [0, 1, 0]]])  # .7 .5 .3 | .4 .5 .4


def test_heads_and_tokens_choose_together():
    choice = choose(pce.Select(top_k=2), DISTINCT, [4, 4, 4])
    np.testing.assert_array_equal(choice, [[[1, 1, 0]]])  # 1.1 1.0 .7


def test_layers_together_need_a_layer_axis():
    layers = [SCORES, [[[0, 0, 0.9], [0, 0, 0.9]], [[0, 0, 0.9], [0, 0, 0.9]]]]
    alone = choose(pce.Select(top_k=1, aggregate=frozenset({"layer"})), layers, [4, 4, 4])
    assert alone.shape == (1, 2, 2, 3)
    np.testing.assert_array_equal(alone[..., 2], 1)
    whole = pce.Select(top_k=1, aggregate=frozenset({"layer", "token", "head"}))
    assert choose(whole, layers, [4, 4, 4]).tolist() == [[[[0, 0, 1]]]]


def test_aggregation_sums_the_five_largest_and_not_all():
    # Segment 1 leads by its five best of six tokens, segment 2 by the sum of all six.
    scores = np.zeros((6, 1, 2), np.float32)
    scores[:5, 0] = [0.10, 0.09]
    scores[5, 0] = [0.0, 0.09]
    valid = jnp.ones(6, bool)
    for top, best in ((5, 0), (6, 1), (1, 0), (0, 1)):
        select = pce.Select(top_k=1, aggregate=frozenset({"token"}), aggregate_top=top)
        assert choose(select, scores, [4, 4], valid).argmax() == best, top


def test_padding_tokens_have_no_vote():
    scores = [[[0.6, 0.1]], [[0.0, 0.9]]]
    select = pce.Select(top_k=1)
    assert choose(select, scores, [4, 4]).tolist() == [[[0, 1]]]
    assert choose(select, scores, [4, 4], jnp.array([True, False])).tolist() == [[[1, 0]]]


def test_the_mean_is_over_real_tokens():
    scores = jnp.array([[[0.4, 0.2]], [[0.9, 0.9]]])
    select = pce.Select(tau=0.5, aggregate=frozenset({"token"}), aggregate_top=0)
    padded = select.choose(scores, jnp.array([4, 4]), jnp.array([True, False]))
    alone = select.choose(scores[:1], jnp.array([4, 4]), jnp.array([True]))
    np.testing.assert_allclose(padded, alone, rtol=1e-6)


def test_of_equal_scores_the_earlier_segments_win():
    scores = [[[0.2, 0.2, 0.2, 0.2]]]
    one = jnp.ones(1, bool)
    for top_k, expected in ((1, [1, 0, 0, 0]), (2, [1, 1, 0, 0]), (3, [1, 1, 1, 0])):
        select = pce.Select(top_k=top_k)
        assert choose(select, scores, [4] * 4, one).tolist() == [[expected]]


def test_exactly_k_are_kept_whatever_ties_there_are():
    for values in itertools.product((0.0, 0.25, 0.5), repeat=4):
        chosen = choose(pce.Select(top_k=2), [[list(values)]], [3] * 4, jnp.ones(1, bool))
        assert chosen.sum() == 2, values


def test_an_empty_segment_is_never_chosen_even_if_nothing_scores():
    scores = [[[0.0, 0.0, 0.0]]]
    one = jnp.ones(1, bool)
    assert choose(pce.Select(top_k=2), scores, [0, 4, 4], one).tolist() == [[[0, 1, 1]]]
    assert choose(pce.Select(top_k=3), scores, [0, 4, 0], one).tolist() == [[[0, 1, 0]]]
    assert choose(pce.Select(top_k=9), scores, [4, 4, 0], one).tolist() == [[[1, 1, 0]]]


def test_soft_selection_gives_every_segment_a_mass():
    scores = [[[0.4, 0.2, 0.0]]]
    one = jnp.ones(1, bool)
    masses = choose(pce.Select(tau=0.5), scores, [4, 4, 0], one)
    np.testing.assert_allclose(masses, [[[0.8, 0.2, 0.0]]], atol=1e-4)  # squares: .16 and .04
    factors = pce.Select(tau=0.5).factors(jnp.asarray(masses), jnp.array([[[0.5, 0.4, 0.0]]]))
    np.testing.assert_allclose(factors, [[[1.6, 0.5, 0.0]]], atol=1e-3)


def test_the_choice_carries_no_gradient():
    def total(scores: jax.Array) -> jax.Array:
        return jnp.sum(
            pce.Select(tau=0.5).choose(scores, jnp.array([4, 4, 4]), jnp.asarray(ALL))[..., 0]
        )

    np.testing.assert_array_equal(jax.grad(total)(jnp.array(SCORES)), 0.0)


# Settings


def test_select_and_method_are_values():
    assert pce.Select(aggregate=["token", "head"]) == pce.Select()  # pyrefly: ignore
    assert pce.Select(aggregate="head").aggregate == {"head"}  # pyrefly: ignore
    assert hash(pce.METHODS["sink+sel"]) == hash(pce.Method(sink="\n\n", select=pce.Select()))
    assert set(pce.METHODS) == {"full", "naive", "sink", "sel", "sink+sel"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"top_k": 0}, r"top_k must be at least 1, got 0\. Leave select out for none"),
        ({"top_k": -2}, "top_k must be at least 1, got -2"),
        ({"tau": 0.0}, r"tau must lie between 0 and 1, got 0\.0"),
        ({"tau": 1.0}, r"tau must lie between 0 and 1, got 1\.0"),
        ({"score_top": -1}, r"score_top must be at least 0 \(the mean\), got -1"),
        ({"aggregate_top": -1}, r"aggregate_top must be at least 0 \(the mean\), got -1"),
        ({"aggregate": {"seq", "head"}}, r"cannot aggregate over seq\. Known: layer, token, head"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict, message: str):
    with pytest.raises(MethodError, match=message):
        pce.Select(**settings)
