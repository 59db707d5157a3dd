"""What can be drawn, and how often, by counting."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pce_jax as pce
from pce_jax.errors import MethodError

P = np.array([0.05, 0.4, 0.1, 0.25, 0.2])
LOGITS = np.log(P)


@functools.partial(jax.jit, static_argnums=(2, 3))
def many(logits: np.ndarray, seed: int, sampling: pce.Sampling, count: int) -> jax.Array:
    keys = jax.random.split(jax.random.key(seed), count)
    return jax.vmap(lambda key: pce.sample(jnp.asarray(logits), key, sampling))(keys)


def frequencies(sampling: pce.Sampling, logits: np.ndarray = LOGITS, count: int = 20_000):
    return np.bincount(np.asarray(many(logits, 0, sampling, count)), minlength=len(logits)) / count


@pytest.mark.smoke
def test_greedy_takes_the_most_likely_and_the_first_of_equals():
    assert frequencies(pce.Sampling(), count=50).tolist() == [0, 1, 0, 0, 0]
    assert pce.sample(jnp.array([1.0, 3.0, 3.0]), jax.random.key(0), pce.Sampling()) == 1


def test_plain_sampling_follows_the_probabilities():
    np.testing.assert_allclose(frequencies(pce.Sampling(temperature=1.0)), P, atol=0.015)


def test_temperature_sharpens_and_flattens():
    for temperature in (0.5, 2.0):
        expected = P ** (1 / temperature) / np.sum(P ** (1 / temperature))
        seen = frequencies(pce.Sampling(temperature=temperature))
        np.testing.assert_allclose(seen, expected, atol=0.015)


def test_a_tiny_temperature_is_greedy():
    assert frequencies(pce.Sampling(temperature=1e-3), count=500)[1] == 1


@pytest.mark.parametrize("top_k", [1, 2, 3, 5, 9])
def test_top_k_draws_among_k(top_k: int):
    kept = np.isin(np.arange(5), np.argsort(-P)[:top_k])
    seen = frequencies(pce.Sampling(temperature=1.0, top_k=top_k))
    np.testing.assert_allclose(seen, P * kept / np.sum(P * kept), atol=0.015)
    assert not seen[~kept].any()


@pytest.mark.parametrize(
    ("top_p", "kept"),
    [
        (0.01, {1}),
        (0.39, {1}),
        (0.41, {1, 3}),
        (0.64, {1, 3}),
        (0.66, {1, 3, 4}),
        (0.86, {1, 2, 3, 4}),
        (0.96, {0, 1, 2, 3, 4}),
        (1.0, {0, 1, 2, 3, 4}),
    ],
)
def test_top_p_draws_among_the_fewest_that_reach_it(top_p: float, kept: set):
    seen = frequencies(pce.Sampling(temperature=1.0, top_p=top_p))
    assert set(np.flatnonzero(seen)) == kept
    mask = np.isin(np.arange(5), list(kept))
    np.testing.assert_allclose(seen, P * mask / np.sum(P * mask), atol=0.015)


def test_top_p_counts_what_temperature_and_top_k_have_left():
    sharp = frequencies(pce.Sampling(temperature=0.5, top_p=0.5))  # squares: .16 of .27 is .59
    assert set(np.flatnonzero(sharp)) == {1}
    both = frequencies(pce.Sampling(temperature=1.0, top_k=2, top_p=0.6))  # .4 of .65 is .62
    assert set(np.flatnonzero(both)) == {1}


def test_the_same_key_draws_the_same_token():
    sampling = pce.Sampling(temperature=1.0, top_k=4, top_p=0.9)
    np.testing.assert_array_equal(many(LOGITS, 1, sampling, 40), many(LOGITS, 1, sampling, 40))
    assert (many(LOGITS, 1, sampling, 40) != many(LOGITS, 2, sampling, 40)).any()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"temperature": -0.1}, r"temperature must be 0 \(greedy\) or at least 1e-6.*got -0\.1"),
        ({"temperature": float("nan")}, "temperature must be .* got nan"),
        ({"temperature": float("inf")}, "temperature must be .* finite; got inf"),
        ({"temperature": 1e-45}, "temperature must be .* got 1e-45"),
        ({"top_k": -1}, r"sampling top_k must be at least 0 \(all tokens\), got -1"),
        ({"top_p": 0.0}, r"top_p must lie in \(0, 1\], got 0\.0"),
        ({"top_p": 1.1}, r"top_p must lie in \(0, 1\], got 1\.1"),
    ],
)
def test_settings_without_a_meaning_are_refused(settings: dict, message: str):
    with pytest.raises(MethodError, match=message):
        pce.Sampling(**settings)
