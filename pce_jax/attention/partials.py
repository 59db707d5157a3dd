"""Attention to one group of keys, and how several such results become one.

Each group is attended to as if it were alone. Merged, it counts with its share of the sum of all
exponentials; entropies follow the chain rule: that of the shares, and the mean of those inside.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from .result import Attended, Entropy


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Partial:
    """Attention to one group alone, float32; all of it has a slope.

    Attributes:
        out: Mixed values; 0 for a query that sees nothing of the group.
        lse: Log of the sum of the exponentials of each segment; `HIDDEN` where nothing is seen.
        entropy: In nats, of the group's keys; relative to nothing else, so that it loses no digits.
    """

    out: Float[Array, "*batch queries head_dim"]
    lse: Float[Array, "*batch segments queries"]
    entropy: Float[Array, "*batch queries"]


def merge(parts: Sequence[Partial], entropy: bool) -> Attended:
    """Attention to all groups together, float32.

    Args:
        parts: Of each group; each query sees something of at least one.
        entropy: Also give the entropies.
    """
    wholes = [jax.nn.logsumexp(part.lse, axis=-2) for part in parts]
    lse = functools.reduce(jnp.logaddexp, wholes)
    shares = [jnp.exp(whole - lse) for whole in wholes]
    out = _sum(share[..., None] * part.out for share, part in zip(shares, parts, strict=True))
    if not entropy:
        return Attended(out, lse, None)
    # A share of 0 has the log of HIDDEN, which is finite: their product and its slopes are 0.
    total = _sum(
        share * (part.entropy + lse - whole)
        for share, part, whole in zip(shares, parts, wholes, strict=True)
    )
    logs = jnp.concatenate([part.lse for part in parts], axis=-2) - lse[..., None, :]
    return Attended(out, lse, Entropy(total, -jnp.sum(jnp.exp(logs) * logs, axis=-2)))


def _sum(terms: Any) -> Array:
    return functools.reduce(jnp.add, terms)
