"""Groups of keys, and which of them a query token may see.

A parallel query pass sees three groups, and its probabilities span all of them::

               sink       segment 1    segment 2    tail (query and generated)
    query 1    [ x x x ]  [ x x x . ]  [ x x x x ]  [ x . . . . ]
    query 2    [ x x x ]  [ x x x . ]  [ x x x x ]  [ x x . . . ]

    x visible   . hidden: padding, future tokens, free room

What is visible follows from lengths and from where a causal group starts; no mask of all queries by
all keys is ever made.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from pce_jax.cache import KV, widened

HIDDEN = -1e30
"""Logit of a key that must not be seen: finite, so that nothing it touches becomes NaN."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Keys:
    """One group of keys, in segments of equal padded size.

    Attributes:
        kv: Keys and values `[kv_heads, segments, tokens, head_dim]`.
        lengths: Real tokens of each segment; `None` where all are.
        start: Makes the group causal: query token t sees the slots up to `start + t`. `None` where
            every query token sees all. The number 0 itself says that the group is the queries' own:
            what they do not see is then not even computed.
        sharpness: Factor on the logits of each query head, 1 / temperature; `None` for 1.
        turned: The keys once more as `[kv_heads, head_dim, segments, tokens]`, which CPUs multiply
            faster where it is done often.
    """

    kv: KV
    lengths: Int[Array, " segments"] | None = None
    start: Int[Array, ""] | int | None = None
    sharpness: Float[Array, " heads"] | None = None
    turned: Float[Array, "kv_heads head_dim segments tokens"] | None = None

    @property
    def size(self) -> int:
        """Number of key slots."""
        return self.kv.k.shape[1] * self.kv.k.shape[2]

    @property
    def counts(self) -> Int[Array, " segments"]:
        """Real tokens of each segment."""
        if self.lengths is not None:
            return self.lengths
        _, segments, tokens, _ = self.kv.k.shape
        return jnp.full(segments, tokens)

    @property
    def triangular(self) -> bool:
        """Whether query token t sees exactly the slots up to t."""
        return isinstance(self.start, int) and self.start == 0

    def widened(self, dtype: jnp.dtype) -> "Keys":
        """The same keys and values, not compressed."""
        return dataclasses.replace(self, kv=widened(self.kv, dtype))

    def turn(self) -> "Keys":
        """With the keys turned too."""
        return dataclasses.replace(self, turned=jnp.moveaxis(self.kv.k, -1, 1))

    def visible(self, rows: Int[Array, " queries"]) -> Bool[Array, "queries segments tokens"]:
        """Which keys each query token sees (the first axis may be 1).

        Args:
            rows: Numbers of the query tokens.
        """
        _, segments, tokens, _ = self.kv.k.shape
        slots = jnp.arange(tokens)
        seen = jnp.ones((1, segments, tokens), bool)
        if self.lengths is not None:
            seen &= slots < self.lengths[:, None]
        if self.start is not None:
            seen &= slots <= (self.start + rows)[:, None, None]
        return seen


def one_group(kv: KV, start: Int[Array, ""] | int | None = None) -> Keys:
    """Keys and values `[kv_heads, tokens, head_dim]` as a group of one segment."""
    return Keys(jax.tree.map(lambda x: x[:, None], kv), start=start)


def logits(
    q: Float[Array, "kv_heads shared queries head_dim"],
    keys: Keys,
    rows: Int[Array, " queries"],
) -> Float[Array, "kv_heads shared queries segments tokens"]:
    """Scaled float32 logits, `HIDDEN` where a key must not be seen.

    Args:
        q: Rotated queries of the heads that share a key head.
        keys: The keys.
        rows: Numbers of the query tokens.
    """
    x = _products(q, keys) * q.shape[-1] ** -0.5
    if keys.sharpness is not None:
        x *= keys.sharpness.reshape(*q.shape[:2], 1, 1, 1)
    if keys.lengths is None and keys.start is None:
        return x
    return jnp.where(keys.visible(rows), x, HIDDEN)


FEW = 8
"""So many queries of a key head are multiplied keys first: CPUs then read the keys much faster."""


def _products(
    q: Float[Array, "kv_heads shared queries head_dim"], keys: Keys
) -> Float[Array, "kv_heads shared queries segments tokens"]:
    dot = functools.partial(jnp.einsum, preferred_element_type=jnp.float32)
    if keys.turned is not None:
        return dot("kgtd,kdps->kgtps", q, keys.turned)
    if q.shape[1] * q.shape[2] > FEW:
        return dot("kgtd,kpsd->kgtps", q, keys.kv.k)
    return jnp.moveaxis(dot("kpsd,kgtd->kpsgt", keys.kv.k, q), (1, 2), (3, 4))
