"""Caches that take less memory: how much less, and how little that changes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from core.cases import make, model
from tiny_models import tiny_config

import pce_jax as pce
from pce_jax.cache import widened
from pce_jax.encode import _encode
from pce_jax.errors import LayoutError
from pce_jax.models import init

CASE = make(5, [16, 9, 3, 12])
STORES = {"bfloat16": (2, 2**-8), "int8": (4, 1 / 254)}
"""How many times smaller keys and values are, and their rounding, as a share of the largest."""

each_store = pytest.mark.parametrize("store", STORES)


@pytest.fixture(scope="module")
def cache() -> pce.ContextCache:
    return pce.encode(model(), CASE.context())


@each_store
def test_what_is_stored_is_smaller_and_close(cache, store):
    smaller, rounding = STORES[store]
    small = pce.compress(cache, store)
    assert small.segments.k.nbytes * smaller == cache.segments.k.nbytes
    assert small.sink is cache.sink
    wide = widened(small.segments, jnp.dtype(jnp.float32))
    for mine, original in zip((wide.k, wide.v), (cache.segments.k, cache.segments.v), strict=True):
        largest = np.abs(original).max(axis=-1, keepdims=True)
        assert np.all(np.abs(mine - original) <= rounding * largest * 1.001)


@each_store
@pytest.mark.parametrize("select", [None, pce.Select(tau=0.9)], ids=["all", "soft"])
def test_queries_read_it_like_the_original(cache, store, select):
    method = pce.Method(select=select)  # hard selection may tip over, and then it is far off
    query = CASE.padded_query()
    plain = pce.query(model(), cache, query, method, length=5, stats=True)
    small = pce.query(model(), pce.compress(cache, store), query, method, length=5, stats=True)
    assert plain.stats is not None and small.stats is not None
    np.testing.assert_allclose(small.logits[:5], plain.logits[:5], atol=0.15)
    np.testing.assert_allclose(small.stats.mean(), plain.stats.mean(), atol=0.02)


@pytest.mark.parametrize(("store", "at_once"), [("bfloat16", None), ("int8", 3)])
def test_encoding_into_a_smaller_cache_is_compressing_it_afterwards(cache, store, at_once):
    made = pce.encode(model(), CASE.context(), store=store, at_once=at_once).segments
    afterwards = pce.compress(cache, store).segments
    assert (made.k.dtype, made.v.dtype) == (afterwards.k.dtype, afterwards.v.dtype)
    for mine, other in zip(
        *(jax.tree.leaves(widened(kv, jnp.dtype(jnp.float32))) for kv in (made, afterwards)),
        strict=True,
    ):
        np.testing.assert_allclose(mine, other, atol=2 * STORES[store][1] * np.abs(other).max())


def test_an_empty_slot_stays_zero():
    kv = pce.KV(jnp.zeros((1, 1, 1, 2, 4)), jnp.zeros((1, 1, 1, 2, 4)))
    whole = pce.ContextCache(kv, kv, jnp.zeros(1, jnp.int32), jnp.zeros(()))
    small = pce.compress(whole, "int8").segments
    assert not np.any(widened(small, jnp.dtype(jnp.float32)).k)


def test_many_contexts_and_generation(cache):
    small = pce.compress(cache, "int8")
    assert pce.generate(model(), small, [1, 2], max_new_tokens=3).tokens.shape == (1, 3)
    contexts = pce.stack([CASE.segments, CASE.segments[:2]])
    many = pce.encode_many(model(), contexts)
    texts = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    nll = pce.score_many(model(), many, texts).nll
    compressed = pce.encode_many(model(), contexts, store="int8", at_once=3)
    np.testing.assert_allclose(pce.score_many(model(), compressed, texts).nll, nll, rtol=0.02)


def test_what_cannot_be_stored_is_refused(cache):
    with pytest.raises(LayoutError, match="Known: bfloat16, int8"):
        pce.compress(cache, "int4")  # type: ignore[bad-argument-type]
    with pytest.raises(LayoutError, match="Known: bfloat16, int8"):
        pce.encode(model(), CASE.context(), store="int4")  # type: ignore[bad-argument-type]
    with pytest.raises(LayoutError, match="int8 already"):
        pce.compress(pce.compress(cache, "int8"), "int8")


# Segments in turns


@pytest.mark.parametrize("at_once", [1, 3])
def test_segments_in_turns_are_segments_all_at_once(cache, at_once):
    turns = pce.encode(model(), CASE.context(), at_once=at_once)
    for mine, whole in zip(jax.tree.leaves(turns), jax.tree.leaves(cache), strict=True):
        np.testing.assert_allclose(mine, whole, atol=2e-5)


def test_turns_take_less_memory():
    wide = init(tiny_config(intermediate_size=1024), jax.random.key(0))
    long = pce.from_segments([[1] * 256] * 16)

    def temporaries(at_once: int) -> int:
        compiled: Any = _encode.lower(wide, long, pce.Method(), at_once).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporaries(2) < temporaries(16) / 3


def test_a_turn_has_a_segment():
    with pytest.raises(pce.PceError, match="at_once must be at least 1"):
        pce.encode(model(), CASE.context(), at_once=0)
    with pytest.raises(pce.PceError, match="at_once must be at least 1"):
        pce.encode_many(model(), pce.stack([CASE.segments]), at_once=0)
