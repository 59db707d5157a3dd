"""Attention in XLA with bounded memory: query tokens are worked off in chunks.

Logits of a chunk never exceed `CHUNK_BYTES`, in the backward pass too, which computes them again.
Entropy needs no array of probabilities: with x the logits it is lse - sum p x, one more sum over
the exponentials. Its error is a few of float32's roundings of the greatest logit.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .keys import Keys, logits
from .result import Attended, Entropy

CHUNK_BYTES = 2 * 2**20
"""Size in bytes that the float32 logits of one chunk of query tokens may have on a CPU.

So much stays in its caches between the passes over the logits. Accelerators, which have no use for
many small steps, take `ACCELERATOR_CHUNKS` times as much.
"""

ACCELERATOR_CHUNKS = 32

BANDS, BAND = 4, 256
"""Into how many bands causal attention is cut at most, and of how many query tokens at least."""

Out = TypeVar("Out")
Rows = Float[Array, "kv_heads shared queries head_dim"]


def attend(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    *,
    entropy: bool,
    lanes: int = 1,
) -> Attended:
    """See `pce_jax.attention.attend`."""

    def chunk(q: Rows, groups: Sequence[Keys], rows: Array, extra: None) -> Attended:
        xs, es, top = exponentials(q, groups, rows)
        masses = masses_of(es)
        whole = add(jnp.sum(m, axis=-1) for m in masses)
        out = (mixed_values(es, groups) / whole[..., None]).astype(q.dtype)
        found = entropy_of(xs, es, top, masses, whole) if entropy else None
        return Attended(out, top + jnp.log(whole), found)

    return by_chunks(chunk, q, groups, lanes=lanes)


def by_chunks(
    f: Callable[[Rows, Sequence[Keys], Int[Array, " queries"], Any], Out],
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    extra: Any = None,
    lanes: int = 1,
) -> Out:
    """Apply `f` to as many query tokens at a time as the chunk size allows.

    Args:
        f: From queries `[kv_heads, shared, queries, head_dim]`, groups, the numbers of the query
            tokens and what there is of `extra` for them to a pytree of arrays `[kv_heads, shared,
            queries, ...]`.
        q: Rotated queries.
        groups: The keys; `f` gets those that are not empty.
        extra: Arrays `[heads, queries, ...]`; either of the first two axes may be 1, and `f` gets
            the first one split as those of the queries, or as two of 1.
        lanes: How many such calls run side by side under an outer `vmap`.

    Returns:
        What `f` gives, with axes `[heads, queries, ...]`.
    """
    groups = [keys.widened(q.dtype) for keys in groups if keys.size]
    kv_heads, _, _, head_dim = groups[0].kv.k.shape
    rows = q.reshape(kv_heads, -1, q.shape[1], head_dim)
    extra = jax.tree.map(
        lambda x: x.reshape(1 if x.shape[0] == 1 else kv_heads, -1, *x.shape[1:]), extra
    )
    bands = _bands(q.shape[1], groups)
    found = [
        _band(f, rows, [_up_to(keys, end) for keys in groups], extra, start, end, lanes)
        for start, end in itertools.pairwise(bands)
    ]
    whole = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), *found)
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), whole)


def chunk_bytes() -> int:
    """Size that the logits of one chunk may have on the device that JAX computes on."""
    return CHUNK_BYTES * (1 if jax.default_backend() == "cpu" else ACCELERATOR_CHUNKS)


def _bands(queries: int, groups: Sequence[Keys]) -> list[int]:
    """Edges of bands of query tokens: in a causal group each needs only the keys up to its end."""
    count = max(1, min(BANDS, queries // BAND)) if any(keys.triangular for keys in groups) else 1
    return [queries * number // count for number in range(count + 1)]


def _up_to(keys: Keys, end: int) -> Keys:
    if not keys.triangular:
        return keys
    return dataclasses.replace(keys, kv=jax.tree.map(lambda x: x[:, :, :end], keys.kv))


def _band(
    f: Callable[..., Out],
    q: Rows,
    groups: Sequence[Keys],
    extra: Any,
    start: int,
    end: int,
    lanes: int,
) -> Out:
    """`f` over the query tokens from `start` to `end`, in chunks of equal size."""
    each = 4 * q.shape[0] * q.shape[1] * sum(keys.size for keys in groups) * lanes
    size = -(-(end - start) // max(1, -(-(end - start) * each // chunk_bytes())))
    chunks = -(-(end - start) // size)
    if chunks > 1:
        groups = [keys.turn() for keys in groups]

    def cut(x: Array) -> Array:
        """The band in chunks along a new first axis; the last one is filled up with zeros."""
        if x.shape[2] == 1:
            return jnp.broadcast_to(x, (chunks, *x.shape))
        x = x[:, :, start:end]
        padding = [(0, chunks * size - x.shape[2] if axis == 2 else 0) for axis in range(x.ndim)]
        x = jnp.pad(x, padding)
        return jnp.moveaxis(x.reshape(*x.shape[:2], chunks, size, *x.shape[3:]), 2, 0)

    def chunk(part: tuple[Array, Array, Any]) -> Out:
        q, first, extra = part
        return f(q, groups, first + jnp.arange(size), extra)

    firsts = start + size * jnp.arange(chunks)
    parts = (cut(q), firsts, jax.tree.map(cut, extra))
    if chunks == 1:
        return chunk(jax.tree.map(lambda x: x[0], parts))

    def joined(x: Array) -> Array:
        x = jnp.moveaxis(x, 0, 2)
        return x.reshape(*x.shape[:2], chunks * size, *x.shape[4:])[:, :, : end - start]

    return jax.tree.map(joined, jax.lax.map(jax.checkpoint(chunk), parts))


def exponentials(
    q: Rows, groups: Sequence[Keys], rows: Int[Array, " queries"]
) -> tuple[list[Array], list[Array], Float[Array, "kv_heads shared queries"]]:
    """Logits of each group, their exponentials relative to the greatest of all, and that one."""
    xs = [logits(q, keys, rows) for keys in groups]
    top = functools.reduce(jnp.maximum, [jnp.max(jnp.max(x, axis=-1), axis=-1) for x in xs])
    top = jax.lax.stop_gradient(top)
    return xs, [jnp.exp(x - top[..., None, None]) for x in xs], top


def mixed_values(es: Sequence[Array], groups: Sequence[Keys]) -> Rows:
    """The values, weighted by exponentials and summed, float32."""
    return add(
        jnp.einsum(
            "kgtps,kpsd->kgtd",
            e.astype(keys.kv.v.dtype),
            keys.kv.v,
            preferred_element_type=jnp.float32,
        )
        for e, keys in zip(es, groups, strict=True)
    )


def masses_of(es: Sequence[Array]) -> list[Float[Array, "kv_heads shared queries segments"]]:
    """Sums of the exponentials by segment.

    Written as products with ones: CPUs do these faster than sums, and XLA makes one more sum over
    all keys of a sum of sums.
    """
    exact = jax.lax.Precision.HIGHEST
    return [jnp.matmul(e, jnp.ones(e.shape[-1], e.dtype), precision=exact) for e in es]


def entropy_of(
    xs: Sequence[Array], es: Sequence[Array], top: Array, masses: Sequence[Array], bound: Array
) -> Entropy:
    """Entropy of the weights e / bound.

    Args:
        xs: Logits of each group.
        es: Exponentials of the logits less `top`, of hidden keys 0.
        top: The greatest logit.
        masses: Sums of the exponentials by segment.
        bound: Their sum, or more, if the weights are to sum to less than 1.
    """
    whole = add(jnp.sum(m, axis=-1) for m in masses)
    moment = add(jnp.sum(e * x, axis=(-2, -1)) for x, e in zip(xs, es, strict=True))
    total = (whole * jnp.log(bound) + (whole * top - moment)) / bound
    return Entropy(total, between([m / bound[..., None] for m in masses]))


def between(shares: Sequence[Array]) -> Array:
    """Entropy of what all segments have of the weights."""
    return -add(jnp.sum(p * safe_log(p), axis=-1) for p in shares)


def add(terms: Any) -> Array:
    """The sum of arrays."""
    return functools.reduce(jnp.add, terms)


def safe_log(x: Array) -> Array:
    """log, but 0 at 0: there it is multiplied by zero, and its slope must not become NaN."""
    return jnp.log(jnp.where(x > 0, x, 1.0))
