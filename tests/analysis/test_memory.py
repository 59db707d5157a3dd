"""No array of heads x tokens x keys, whatever is measured."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from core.cases import TINY, model
from core.test_memory import CHUNK, CONTEXT, HEADS, abstract_cache, temporaries

import pce_jax as pce
from pce_jax.analysis import analyze_query, analyze_segments
from pce_jax.attention import chunked


def compiled(f, *inputs, chunk: int = CHUNK) -> int:
    """Bytes of temporaries."""
    before, chunked.CHUNK_BYTES = chunked.CHUNK_BYTES, chunk
    try:
        return temporaries(jax.jit(lambda *inputs: f(*inputs)).lower(*inputs).compile())
    finally:
        chunked.CHUNK_BYTES = before


@functools.cache
def of_query(name: str, queries: int) -> int:
    method = pce.METHODS[name]
    tokens = jax.ShapeDtypeStruct((queries,), jnp.int32)
    return compiled(
        lambda cache, tokens: analyze_query(model(), cache, tokens, method),
        abstract_cache(),
        tokens,
    )


def test_of_a_query():
    queries, name = 512, "sel"
    whole = 4 * HEADS * queries * CONTEXT
    small = of_query(name, queries)
    print(f"{name}: {small / 2**20:.1f} MiB of {whole / 2**20:.0f}")
    assert small < whole / 8
    assert of_query(name, 2 * queries) - small < whole / 32


def test_of_a_context():
    tokens, segments = 1024, 4

    def measure(ids: jax.Array, lengths: jax.Array):
        context = pce.SegmentedContext(np.zeros(2, np.int32), ids, lengths)
        return analyze_segments(model(), context)

    inputs = [jax.ShapeDtypeStruct(s, jnp.int32) for s in ((segments, tokens), (segments,))]
    whole = 4 * HEADS * segments * tokens**2
    cache = 4 * 2 * TINY.num_layers * TINY.num_kv_heads * segments * tokens * TINY.head_dim
    found = compiled(measure, *inputs)
    print(f"{found / 2**20:.1f} MiB of {whole / 2**20:.0f}, cache {cache / 2**20:.1f}")
    assert found < whole / 4
