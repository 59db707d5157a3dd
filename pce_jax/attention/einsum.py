"""The plain formula, with every array in full: what the other implementations are held against."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from .keys import Keys, logits
from .result import Attended, Entropy


def attend(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    *,
    entropy: bool,
    lanes: int = 1,
) -> Attended:
    """See `pce_jax.attention.attend`."""
    heads, queries, head_dim = q.shape
    kv_heads = groups[0].kv.k.shape[0]
    grouped = q.reshape(kv_heads, heads // kv_heads, queries, head_dim)
    rows = jnp.arange(queries)
    parts = [logits(grouped, keys, rows) for keys in groups]
    flat = jnp.concatenate([x.reshape(*x.shape[:3], -1) for x in parts], axis=-1)
    log_p = jax.nn.log_softmax(flat, axis=-1)
    p = jnp.exp(log_p)
    v = jnp.concatenate([k.kv.v.reshape(kv_heads, -1, head_dim) for k in groups], axis=1)
    out = jnp.einsum("kgts,ksd->kgtd", p.astype(v.dtype), v, preferred_element_type=jnp.float32)
    found = None
    if entropy:
        sizes = [x.shape[-1] for x in parts for _ in range(x.shape[-2])]
        shares = jnp.split(p, np.cumsum(sizes)[:-1], axis=-1)
        masses = jnp.stack([part.sum(axis=-1) for part in shares], axis=-1)
        found = Entropy(
            _entropy(p, log_p), _entropy(masses, jnp.log(jnp.where(masses > 0, masses, 1.0)))
        )
        found = jax.tree.map(lambda x: x.reshape(heads, queries), found)
    return Attended(
        out.reshape(q.shape).astype(q.dtype),
        jax.nn.logsumexp(flat, axis=-1).reshape(heads, queries),
        found,
    )


def _entropy(p: Array, log_p: Array) -> Array:
    return -jnp.sum(jnp.where(p > 0, p * log_p, 0.0), axis=-1)
