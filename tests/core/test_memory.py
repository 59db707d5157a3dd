"""No array of heads x query x context: what XLA sets aside, as it reports it."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from core.cases import TINY, model

import pce_jax as pce
from pce_jax.attention import chunked
from pce_jax.query_pass import read

HEADS, CONTEXT, CHUNK = TINY.num_heads, 8 * 4096, 2**20
METHODS = {"naive": pce.Method(), "sel": pce.METHODS["sel"]}


def abstract_cache() -> pce.ContextCache:
    shape = (TINY.num_layers, TINY.num_kv_heads, 8, CONTEXT // 8, TINY.head_dim)

    def make() -> pce.ContextCache:
        segments = jnp.zeros(shape)
        sink = jnp.zeros((*shape[:2], 2, TINY.head_dim))
        lengths = jnp.zeros(8, jnp.int32)
        return pce.ContextCache(
            pce.KV(sink, sink), pce.KV(segments, segments), lengths, jnp.zeros(())
        )

    return jax.eval_shape(make)


def temporaries(compiled: Any) -> int:
    return compiled.memory_analysis().temp_size_in_bytes


@functools.cache
def peak(name: str, queries: int, chunk: int, backward: bool) -> int:
    """Bytes of temporaries in a query pass with entropy."""

    def measure(cache: pce.ContextCache, tokens: jax.Array) -> jax.Array:
        tail = pce.empty_tail(model(), queries)
        length = jnp.asarray(queries)
        hidden, _, stats = read(model(), cache, tail, tokens, length, METHODS[name], stats=True)
        assert stats is not None
        return stats.mean() + jnp.sum(hidden)

    def slopes(cache: pce.ContextCache, tokens: jax.Array) -> pce.KV:
        def loss(segments: pce.KV) -> jax.Array:
            return measure(dataclasses.replace(cache, segments=segments), tokens)

        return jax.grad(loss)(cache.segments)

    f = slopes if backward else measure
    tokens = jax.ShapeDtypeStruct((queries,), jnp.int32)
    before, chunked.CHUNK_BYTES = chunked.CHUNK_BYTES, chunk
    try:
        compiled = jax.jit(lambda *inputs: f(*inputs)).lower(abstract_cache(), tokens).compile()
    finally:
        chunked.CHUNK_BYTES = before
    return temporaries(compiled)


@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
@pytest.mark.parametrize("name", METHODS)
def test_memory_is_bounded_by_the_chunk_and_not_by_the_query(name: str, backward: bool):
    queries = 512
    whole = 4 * HEADS * queries * CONTEXT  # 256 MiB
    cache = 4 * 2 * TINY.num_layers * TINY.num_kv_heads * CONTEXT * TINY.head_dim  # 12 MiB
    small = peak(name, queries, CHUNK, backward)
    print(f"{name}, backward {backward}: {small / 2**20:.1f} MiB of {whole / 2**20:.0f}")
    assert small < whole / 8 + 3 * cache * backward
    longer = peak(name, 2 * queries, CHUNK, backward)
    assert longer - small < whole / 32
    if not backward:
        assert peak(name, queries, 16 * CHUNK, backward) > small + 8 * CHUNK


def test_queries_side_by_side_share_one_cache():
    """Under vmap the context's keys and values stay one copy."""
    rows = 16

    def one(cache: pce.ContextCache, tokens: jax.Array) -> jax.Array:
        return pce.query(model(), cache, tokens, last_only=True).logits

    many = jax.jit(jax.vmap(one, in_axes=(None, 0)))
    tokens = jax.ShapeDtypeStruct((rows, 1), jnp.int32)
    compiled = many.lower(abstract_cache(), tokens).compile()
    cache_bytes = sum(4 * leaf.size for leaf in jax.tree.leaves(abstract_cache()) if leaf.ndim == 5)
    logits = 4 * HEADS * rows * CONTEXT  # of one layer
    assert temporaries(compiled) < 2 * cache_bytes + 4 * logits
    assert 2 * cache_bytes + 4 * logits < rows * cache_bytes / 2
