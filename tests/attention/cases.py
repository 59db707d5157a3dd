"""Small attention problems with sink, segments and causal tail, and their plain formula."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pce_jax as pce
from pce_jax.attention import Keys, one_group

QUERIES, HEADS, KV_HEADS, DIM = 6, 4, 2, 8
SINK, SEGMENTS, TOKENS, TAIL, PAST = 3, 4, 5, 8, 2
LENGTHS = np.array([5, 2, 0, 4])

Arrays = dict[str, jax.Array]


def arrays(scale: float = 1.0, seed: int = 0) -> Arrays:
    """Queries with logits of a size that goes with `scale`, keys and values, sharpness of heads."""
    draw = np.random.default_rng(seed)
    shapes = {
        "q": (HEADS, QUERIES, DIM),
        "sink": (2, KV_HEADS, SINK, DIM),
        "segments": (2, KV_HEADS, SEGMENTS, TOKENS, DIM),
        "tail": (2, KV_HEADS, TAIL, DIM),
    }
    found = {name: draw.normal(size=shape) for name, shape in shapes.items()}
    found["q"] *= scale
    found["sharpness"] = draw.uniform(0.7, 1.3, size=HEADS)
    return {name: jnp.asarray(value, jnp.float32) for name, value in found.items()}


def groups(x: Arrays) -> list[Keys]:
    """Sink, segments and a tail in which two tokens stand before the queries."""
    return [
        one_group(pce.KV(*x["sink"])),
        Keys(pce.KV(*x["segments"]), jnp.asarray(LENGTHS), sharpness=x["sharpness"]),
        one_group(pce.KV(*x["tail"]), start=jnp.asarray(PAST)),
    ]


def plain(x: Arrays, factors: Any = None) -> Arrays:
    """One softmax over all keys, -sum p log p over those that are seen.

    Args:
        x: From `arrays`.
        factors: On the probabilities of each segment, `[heads, queries, segments]` or less.
    """
    flat = [x["sink"], x["segments"].reshape(2, KV_HEADS, -1, DIM), x["tail"]]
    k, v = (jnp.repeat(part, HEADS // KV_HEADS, axis=0) for part in jnp.concatenate(flat, axis=2))
    logits = jnp.einsum("htd,hsd->hts", x["q"], k) * DIM**-0.5
    segment = np.repeat([False, True, False], [SINK, SEGMENTS * TOKENS, TAIL])
    logits *= jnp.where(segment, x["sharpness"][:, None, None], 1.0)
    filled = (np.arange(TOKENS) < LENGTHS[:, None]).reshape(-1)
    seen = np.concatenate(
        [
            np.ones((QUERIES, SINK), bool),
            np.broadcast_to(filled, (QUERIES, filled.size)),
            np.arange(TAIL) <= PAST + np.arange(QUERIES)[:, None],
        ],
        axis=1,
    )
    logits = jnp.where(seen, logits, -jnp.inf)
    p = jax.nn.softmax(logits, axis=-1)
    group = np.repeat(np.arange(SEGMENTS + 2), [SINK, *[TOKENS] * SEGMENTS, TAIL])
    if factors is not None:
        ones = jnp.ones((HEADS, QUERIES, 1))
        each = jnp.concatenate([ones, factors * jnp.ones((HEADS, QUERIES, 1)), ones], axis=-1)
        p = p * each[..., group]
        p = p / jnp.maximum(jnp.sum(p, axis=-1, keepdims=True), 1e-5)
    masses = jnp.stack([jnp.sum(p * (group == g), axis=-1) for g in range(SEGMENTS + 2)], axis=-1)
    return {
        "out": jnp.einsum("hts,hsd->htd", p, v),
        "lse": jax.nn.logsumexp(logits, axis=-1),
        "total": _entropy(p),
        "between": _entropy(masses),
        "p": p,
    }


def _entropy(p: jax.Array) -> jax.Array:
    return -jnp.sum(p * jnp.log(jnp.where(p > 0, p, 1.0)), axis=-1)
