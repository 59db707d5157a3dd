"""Attention token by token, for whoever wants more of it than values and entropy.

A `mix` gets one query token and all groups, and may keep what it likes; the analysis is written so.
Slower than `pce_jax.attention.chunked`, with the same memory bound.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from pce_jax.errors import PceError
from pce_jax.models.sharding import READING, Rules, mesh_in_use

from . import chunked
from .chunked import add, between, safe_log
from .keys import Keys, logits
from .result import Entropy
from .selected import LEAST, Selection, survey

Rows = TypeVar("Rows")
Mix = Callable[..., tuple[Array, Any]]
"""`mix(q, groups, row, reweigh=None) -> (mixed, kept)`: what is done to each query token."""


@dataclasses.dataclass(frozen=True)
class Weights:
    """What one query token mixes: of each group, cut into its segments.

    Attributes:
        p: Probabilities `[heads, segments, keys]`; those of hidden keys are 0.
        logs: Their logs; of hidden keys huge, negative and finite.
        masses: Their sums `[heads, segments]`.
    """

    p: list[Float[Array, "heads segments keys"]]
    logs: list[Float[Array, "heads segments keys"]]
    masses: list[Float[Array, "heads segments"]]

    def values(self, groups: Sequence[Keys]) -> Float[Array, "heads head_dim"]:
        """The groups' values, mixed."""
        return add([_values(part, group) for part, group in zip(self.p, groups, strict=True)])

    def entropy(self) -> Entropy:
        """Of each head."""
        pairs = zip(self.p, self.logs, strict=True)
        total = -add([_sum_p_log_p(part, log) for part, log in pairs])
        return Entropy(total, between(self.masses))


def weigh(
    q: Float[Array, "heads head_dim"],
    groups: Sequence[Keys],
    row: Int[Array, ""],
    reweigh: Callable[[list[Array]], list[Array]] | None = None,
) -> Weights:
    """The probabilities with which one query token mixes values; see `mix`."""
    parts = [token_logits(q, keys, row) for keys in groups]
    flat = jnp.concatenate([x.reshape(x.shape[0], -1) for x in parts], axis=-1)
    lse = jax.nn.logsumexp(flat, axis=-1)[:, None, None]
    logs = [x - lse for x in parts]
    p = [jnp.exp(log) for log in logs]
    masses = [jnp.sum(part, axis=-1) for part in p]
    if reweigh is not None:
        factors = reweigh(masses)
        kept = [jnp.sum(m * f, axis=-1) for m, f in zip(masses, factors, strict=True)]
        total = add(kept)[:, None]
        factors = [f / jnp.maximum(total, LEAST) for f in factors]
        p = [part * f[..., None] for part, f in zip(p, factors, strict=True)]
        logs = [part + safe_log(f)[..., None] for part, f in zip(logs, factors, strict=True)]
        masses = [m * f for m, f in zip(masses, factors, strict=True)]
    return Weights(p, logs, masses)


def mix(
    q: Float[Array, "heads head_dim"],
    groups: Sequence[Keys],
    row: Int[Array, ""],
    reweigh: Callable[[list[Array]], list[Array]] | None = None,
) -> tuple[Float[Array, "heads head_dim"], Entropy]:
    """Attention of one query token: the mixed values, and the entropy of what was mixed.

    Args:
        q: One token's rotated query.
        groups: The keys and values.
        row: The token's number.
        reweigh: From the groups' segment masses `[heads, segments]` to factors on them (selection).
            What results is normalised by max(sum, 1e-5), as published.

    Returns:
        The mixed values and, per head, the entropy after reweighing.
    """
    weights = weigh(q, groups, row, reweigh)
    return weights.values(groups).astype(q.dtype), weights.entropy()


def token_logits(
    q: Float[Array, "heads head_dim"], keys: Keys, row: Int[Array, ""]
) -> Float[Array, "heads segments tokens"]:
    """Scaled float32 logits of one query token; `HIDDEN` where a key must not be seen."""
    grouped = q.reshape(keys.kv.k.shape[0], -1, 1, q.shape[-1])
    x = logits(grouped, keys, row[None])
    return x.reshape(q.shape[0], *x.shape[3:])


def attention(
    mix: Mix,
    q: Float[Array, "tokens heads head_dim"],
    groups: Sequence[Keys],
    selection: Selection | None = None,
    *,
    lanes: int = 1,
    rules: Rules = READING,
) -> tuple[Float[Array, "tokens heads head_dim"], Any]:
    """`mix` applied to every query token, with or without selection, on one device.

    Returns:
        Mixed values, and what `mix` kept, with a leading token axis.

    Raises:
        PceError: The arrays lie on a mesh of devices.
    """
    if mesh_in_use() is not None:
        raise PceError(
            "the analysis reads token by token, on one device: call it outside jax.set_mesh, with "
            "a model that was loaded without a layout."
        )
    groups = [keys.widened(q.dtype) for keys in groups]
    keys = sum(group.size for group in groups)
    rows = (q, jnp.arange(q.shape[0]))
    if selection is None:
        return by_rows(lambda q, row: mix(q, groups, row), rows, keys, q.shape[1], lanes)
    lengths, select = groups[-2].counts, selection.select
    choice = selection.choice
    if choice is None:
        scores, _ = survey(q.swapaxes(0, 1), groups, select, lanes)
        choice = select.choose(scores, lengths, selection.valid)
    several = jnp.sum(lengths > 0) > 1  # a single segment is no choice at all

    def chosen(q: Array, row: Array, choice: Array) -> tuple[Array, Any]:
        def reweigh(masses: list[Array]) -> list[Array]:
            factors = jnp.where(several, select.factors(choice, masses[-2]), 1.0)
            return [jnp.ones_like(m) for m in masses[:-2]] + [factors, jnp.ones_like(masses[-1])]

        return mix(q, groups, row, reweigh)

    choice = jnp.broadcast_to(choice, (q.shape[0], *choice.shape[1:]))
    return by_rows(chosen, (*rows, choice), keys, q.shape[1], lanes)


def by_rows(
    f: Callable[..., Rows], rows: tuple[Array, ...], keys: int, heads: int, lanes: int = 1
) -> Rows:
    """Apply `f` to each row, as many at a time as the chunk size allows.

    Args:
        f: Function of one row of each array.
        rows: Arrays with a leading row axis.
        keys: Keys that a row attends to.
        heads: Query heads.
        lanes: How many such calls run side by side under an outer `vmap`.

    Returns:
        The results, stacked along a leading row axis.
    """
    count = rows[0].shape[0]
    chunk = max(1, chunked.chunk_bytes() // (4 * keys * heads * lanes))
    if chunk >= count:
        return jax.vmap(f)(*rows)
    return jax.lax.map(jax.checkpoint(lambda row: f(*row)), rows, batch_size=chunk)


def _values(p: Array, keys: Keys) -> Float[Array, "heads head_dim"]:
    v = keys.kv.v
    grouped = p.reshape(v.shape[0], p.shape[0] // v.shape[0], *p.shape[1:]).astype(v.dtype)
    mixed = jnp.einsum("kgps,kpsd->kgd", grouped, v, preferred_element_type=jnp.float32)
    return mixed.reshape(p.shape[0], v.shape[-1])


def _sum_p_log_p(p: Array, log: Array) -> Float[Array, " heads"]:
    """Over segments and keys; the log of an unseen key is huge and must not reach a slope."""
    return jnp.sum(jnp.where(p > 0, p * log, 0.0), axis=(-2, -1))
