"""Attention to several groups of keys, with exact entropy and bounded memory.

A parallel query pass sees three kinds of keys, and the probabilities span all of them::

               sink       segment 1    segment 2    tail (query and generated)
    query 1    [ x x x ]  [ x x x . ]  [ x x x x ]  [ x . . . . ]
    query 2    [ x x x ]  [ x x x . ]  [ x x x x ]  [ x x . . . ]

    x visible   . hidden: padding, future tokens, free room

Rows (query tokens) are worked off in chunks, so that heads x rows x keys never exceeds
`CHUNK_BYTES`, in the backward pass too (chunks are rematerialised). All statistics are float32;
entropies are in nats.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .cache import KV

CHUNK_BYTES = 32 * 2**20
"""Size in bytes that the float32 logits of one chunk of rows may have."""

HIDDEN = -1e30
"""Logit of a key that must not be seen: finite, so that nothing it touches becomes NaN."""

Rows = TypeVar("Rows")
Visible = Callable[[Int[Array, ""]], Bool[Array, " keys"]]
"""Which keys of a group a row may see, from the row's number."""
Mix = Callable[..., tuple[Array, Any]]
"""`mix(q, groups, row, reweigh=None) -> (mixed, kept)`: what a pass does to each query token.

`mix` keeps the entropy; the analysis keeps more. What is kept has leading axes of the token's own.
"""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Entropy:
    """Attention entropy in nats, of any shape.

    Attributes:
        total: -sum p log p over all keys (paper, section 3).
        between: Entropy of the masses of sink, segments and tail: how widely attention spreads over
            segments.
    """

    total: Float[Array, "*shape"]
    between: Float[Array, "*shape"]

    @property
    def within(self) -> Float[Array, "*shape"]:
        """Mass-weighted mean entropy inside the groups: `total` = `between` + `within`."""
        return self.total - self.between


@dataclasses.dataclass(frozen=True)
class Group:
    """One group of keys and who may see them; `segments` equal parts count as groups of their own.

    Attributes:
        kv: Keys and values `[kv_heads, keys, head_dim]`.
        visible: From a row's number to a mask over the keys.
        segments: Number of equal consecutive parts.
    """

    kv: KV
    visible: Visible
    segments: int = 1


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

    def values(self, groups: list[Group]) -> Float[Array, "heads head_dim"]:
        """The groups' values, mixed."""
        return _sum([_values(part, group) for part, group in zip(self.p, groups, strict=True)])

    def entropy(self) -> Entropy:
        """Of each head."""
        pairs = zip(self.p, self.logs, strict=True)
        total = -_sum([_sum_p_log_p(part, log) for part, log in pairs])
        between = -_sum([jnp.sum(m * _safe_log(m), axis=-1) for m in self.masses])
        return Entropy(total, between)


def probabilities(
    q: Float[Array, "heads head_dim"], groups: list[Group], row: Int[Array, ""]
) -> tuple[list[Float[Array, "heads segments keys"]], list[Float[Array, "heads segments keys"]]]:
    """Softmax over the keys of all groups, for one query token.

    Args:
        q: One token's rotated query.
        groups: The keys.
        row: The token's number, for `Group.visible`.

    Returns:
        Probabilities and log-probabilities of each group, cut into its segments. Hidden keys have
        probability 0 and a huge negative, finite log.
    """
    logits = [masked_logits(q, group, row) for group in groups]
    lse = jax.nn.logsumexp(jnp.concatenate(logits, axis=-1), axis=-1, keepdims=True)
    logs = [_cut(part - lse, group.segments) for part, group in zip(logits, groups, strict=True)]
    return [jnp.exp(log) for log in logs], logs


def weigh(
    q: Float[Array, "heads head_dim"],
    groups: list[Group],
    row: Int[Array, ""],
    reweigh: Callable[[list[Array]], list[Array]] | None = None,
) -> Weights:
    """The probabilities with which one query token mixes values; see `mix`."""
    p, logs = probabilities(q, groups, row)
    masses = [jnp.sum(part, axis=-1) for part in p]
    if reweigh is not None:
        factors = reweigh(masses)
        kept = [jnp.sum(m * f, axis=-1) for m, f in zip(masses, factors, strict=True)]
        total = _sum(kept)[:, None]
        factors = [f / jnp.maximum(total, 1e-5) for f in factors]
        p = [part * f[..., None] for part, f in zip(p, factors, strict=True)]
        logs = [part + _safe_log(f)[..., None] for part, f in zip(logs, factors, strict=True)]
        masses = [m * f for m, f in zip(masses, factors, strict=True)]
    return Weights(p, logs, masses)


def mix(
    q: Float[Array, "heads head_dim"],
    groups: list[Group],
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


def mix_only(
    q: Float[Array, "heads head_dim"], groups: list[Group], row: Int[Array, ""]
) -> tuple[Float[Array, "heads head_dim"], None]:
    """`mix` where nothing is to be kept."""
    return mix(q, groups, row)[0], None


def masked_logits(
    q: Float[Array, "heads head_dim"], group: Group, row: Int[Array, ""]
) -> Float[Array, "heads keys"]:
    """Scaled float32 logits of one query token; `HIDDEN` where a key must not be seen."""
    heads, head_dim = q.shape
    kv_heads, keys, _ = group.kv.k.shape
    grouped = q.reshape(kv_heads, heads // kv_heads, head_dim)
    logits = jnp.einsum("kgd,ksd->kgs", grouped, group.kv.k, preferred_element_type=jnp.float32)
    logits = logits.reshape(heads, keys) * head_dim**-0.5
    return jnp.where(group.visible(row), logits, HIDDEN)


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
    chunk = max(1, CHUNK_BYTES // (4 * keys * heads * lanes))
    if chunk >= count:
        return jax.vmap(f)(*rows)
    return jax.lax.map(jax.checkpoint(lambda row: f(*row)), rows, batch_size=chunk)


def _values(p: Array, group: Group) -> Float[Array, "heads head_dim"]:
    v = group.kv.v
    kv_heads, keys, head_dim = v.shape
    grouped = p.reshape(kv_heads, p.shape[0] // kv_heads, keys).astype(v.dtype)
    mixed = jnp.einsum("kgs,ksd->kgd", grouped, v, preferred_element_type=jnp.float32)
    return mixed.reshape(p.shape[0], head_dim)


def _cut(x: Float[Array, "heads all_keys"], segments: int) -> Float[Array, "heads segments keys"]:
    return x.reshape(x.shape[0], segments, x.shape[1] // segments)


def _sum(terms: list[Array]) -> Array:
    return functools.reduce(jnp.add, terms)


def _sum_p_log_p(p: Array, log: Array) -> Float[Array, " heads"]:
    """Over segments and keys; the log of an unseen key is huge and must not reach a slope."""
    return jnp.sum(jnp.where(p > 0, p * log, 0.0), axis=(-2, -1))


def _safe_log(x: Array) -> Array:
    """log, but 0 at 0: there it is multiplied by zero, and its slope must not become NaN."""
    return jnp.log(jnp.where(x > 0, x, 1.0))
