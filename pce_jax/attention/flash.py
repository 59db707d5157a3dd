"""What the kernels for TPU and GPU share: the arithmetic of one block, and the slopes of a group.

Rows are query tokens times the query heads of one key head, token by token: so keys and values are
read once for all heads that share them, and a block of rows is a stretch of query tokens.

Forward, a running greatest logit, sum, and weighted sums (flash attention). With x the logits, P
their softmax over the group, Q that over a segment and E the mean of x under P, the slopes are::

    d out     = P (do v - do out)        d entropy = - P (x - E)        d lse of a segment = Q
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .keys import HIDDEN, Keys
from .partials import Partial, merge
from .result import Attended

LOWEST = HIDDEN / 2
"""The greatest logit starts here: above hidden ones, so that their exponentials are always 0."""

_FAR = 80.0
"""A segment whose sum of exponentials is smaller by this exponent counts as that small."""


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a kernel is compiled for.

    Attributes:
        shared: Query heads of one key head.
        causal: Whether a query token sees slots only up to its own.
        entropy: Whether it is measured.
        rows: Rows in a block; they divide all rows.
        keys: Keys in a block; the last block of a segment may reach beyond it.
        interpret: Run it as plain XLA, anywhere.
    """

    shared: int
    causal: bool
    entropy: bool
    rows: int
    keys: int
    interpret: bool

    def end(self, block: Any, length: Any, start: Any) -> Any:
        """Behind the last key that a block of rows sees."""
        if not self.causal:
            return length
        last = jax.lax.div((block + 1) * self.rows - 1, self.shared)
        return jnp.minimum(length, start + last + 1)

    def first(self, block: Any, start: Any) -> Any:
        """The first block of rows that sees something of a block of keys."""
        if not self.causal:
            return 0
        return jax.lax.div(jnp.maximum(block * self.keys - start, 0) * self.shared, self.rows)

    def seen(self, axis: int, row: Any, key: Any, length: Any, start: Any) -> Array:
        """Which keys of a block each row sees; keys lie along `axis`, rows along the other.

        Args:
            axis: 0 or 1.
            row: Number of the first row.
            key: Number of the first key.
            length: Real keys of the segment.
            start: See `Keys`.
        """
        shape = (self.keys, self.rows) if axis == 0 else (self.rows, self.keys)
        keys = key + jax.lax.broadcasted_iota(jnp.int32, shape, axis)
        seen = keys < length
        if self.causal:  # key <= start + row // shared, without a division of vectors
            rows = row + jax.lax.broadcasted_iota(jnp.int32, shape, 1 - axis)
            seen &= (keys - start) * self.shared <= rows
        return seen


class Running(NamedTuple):
    """What is known after some blocks of keys, of each row; sums are relative to exp(top).

    Attributes:
        top: The greatest logit.
        whole: Sum of exponentials.
        mass: The same, of the present segment.
        moment: Sum of exponentials times logits less `top`.
        mixed: Sum of exponentials times values.
    """

    top: Array
    whole: Array
    mass: Array
    moment: Array
    mixed: Array

    @classmethod
    def start(cls, each: tuple[int, int], mixed: tuple[int, int]) -> "Running":
        """Nothing seen; `each` is the shape of the first four."""
        nothing = jnp.zeros(each, jnp.float32)
        top = jnp.full(each, LOWEST, jnp.float32)
        return cls(top, nothing, nothing, nothing, jnp.zeros(mixed, jnp.float32))

    def see(self, x: Array, mix: Callable[[Array], Array], axis: int, entropy: bool) -> "Running":
        """One block more.

        Args:
            x: Logits, keys along `axis`; hidden ones `HIDDEN`.
            mix: From exponentials to weighted values.
            axis: 0 or 1.
            entropy: Whether to keep the moment.
        """
        top = jnp.maximum(self.top, jnp.max(x, axis=axis, keepdims=True))
        fade = jnp.exp(self.top - top)
        e = jnp.exp(x - top)
        sum_e = jnp.sum(e, axis=axis, keepdims=True)
        moment = self.moment
        if entropy:
            moment = fade * (moment + (self.top - top) * self.whole)
            moment += jnp.sum(e * (x - top), axis=axis, keepdims=True)
        whole, mass = fade * self.whole + sum_e, fade * self.mass + sum_e
        return Running(top, whole, mass, moment, fade * self.mixed + mix(e))

    @property
    def lse(self) -> Array:
        """Of the present segment."""
        return _log_or(self.mass, HIDDEN - self.top) + self.top

    @property
    def entropy(self) -> Array:
        """Of all that was seen."""
        return _log_or(self.whole, 0.0) - self.moment / self._divisor

    @property
    def out(self) -> Array:
        """The mixed values."""
        return self.mixed / self._divisor

    @property
    def _divisor(self) -> Array:
        return jnp.where(self.whole > 0, self.whole, 1.0)


class Slopes(NamedTuple):
    """What the backward pass knows of each row.

    Attributes:
        lse: Log of the sum of exponentials of the group.
        mean: Mean logit under the probabilities.
        entropy: Slope of the entropy.
        bias: What each logit's slope has besides, by segment: -do out, and the slope of the lse.
    """

    lse: Float[Array, "kv_heads 1 rows"]
    mean: Float[Array, "kv_heads 1 rows"]
    entropy: Float[Array, "kv_heads 1 rows"]
    bias: Float[Array, "kv_heads segments 1 rows"]


def of_logits(
    x: Array, dots: Array, seen: Array, slopes: Slopes, entropy: bool
) -> tuple[Array, Array]:
    """Probabilities of a block, and the slopes of its logits.

    Args:
        x: Logits, whatever they are where hidden.
        dots: Slopes of the mixed values times values.
        seen: Which are not hidden.
        slopes: Those of the rows, of a shape that fits `x`.
        entropy: Whether it was measured.
    """
    p = jnp.where(seen, jnp.exp(x - slopes.lse), 0.0)
    inner = dots + slopes.bias
    if entropy:
        inner += slopes.entropy * (slopes.mean - x)
    return p, p * inner


@dataclasses.dataclass(frozen=True)
class Kernels:
    """The code for one platform.

    Rows are `[kv_heads, rows, head_dim]`, keys and values `[kv_heads, segments, tokens, head_dim]`;
    `limits` are the lengths of the segments and, behind them, the start.

    Attributes:
        blocks: From the numbers of rows and tokens, and the queries, to rows and keys in a block.
        forward: `(plan, q, k, v, limits)` to attention to one group.
        backward: `(plan, q, k, v, limits, do, slopes)` to the slopes of rows, keys and values.
    """

    blocks: Callable[[int, int, Array], tuple[int, int]]
    forward: Callable[..., Partial]
    backward: Callable[..., tuple[Array, Array, Array]]


def attend(
    kernels: Kernels,
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    *,
    entropy: bool,
    interpret: bool,
) -> Attended:
    """See `pce_jax.attention.attend`; by some kernels, which may be interpreted."""
    heads, queries, head_dim = q.shape
    groups = [keys for keys in groups if keys.size]
    kv_heads = groups[0].kv.k.shape[0]
    shared = heads // kv_heads
    folded = q.reshape(kv_heads, shared, queries, head_dim).swapaxes(1, 2)
    folded = folded.reshape(kv_heads, queries * shared, head_dim)

    def one(keys: Keys) -> Partial:
        rows, block = kernels.blocks(queries * shared, keys.kv.k.shape[2], q)
        plan = Plan(shared, keys.start is not None, entropy, rows, block, interpret)
        start = jnp.asarray(0 if keys.start is None else keys.start, jnp.int32)
        limits = jnp.append(keys.counts.astype(jnp.int32), start)
        missing = -folded.shape[1] % rows
        sharp = folded
        if keys.sharpness is not None:
            by_row = jnp.tile(keys.sharpness.reshape(kv_heads, shared), (1, queries))
            sharp = (folded * by_row[..., None]).astype(folded.dtype)
        padded = jnp.pad(sharp, ((0, 0), (0, missing), (0, 0)))
        return _group(kernels, plan, padded, keys.kv.k, keys.kv.v, limits)

    def unfold(x: Array) -> Array:
        x = x[:, : queries * shared].reshape(kv_heads, queries, shared, *x.shape[2:])
        return x.swapaxes(1, 2).reshape(heads, queries, *x.shape[3:])

    found = jax.tree.map(unfold, merge([one(keys) for keys in groups], entropy))
    return dataclasses.replace(found, out=found.out.astype(q.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _group(
    kernels: Kernels, plan: Plan, q: Array, k: Array, v: Array, limits: Int[Array, " limits"]
) -> Partial:
    return kernels.forward(plan, q, k, v, limits)


def _forward(
    kernels: Kernels, plan: Plan, q: Array, k: Array, v: Array, limits: Array
) -> tuple[Partial, Any]:
    found = kernels.forward(plan, q, k, v, limits)
    return found, (q, k, v, limits, found)


def _backward(kernels: Kernels, plan: Plan, kept: Any, given: Partial) -> tuple[Any, ...]:
    q, k, v, limits, found = kept
    do = given.out.astype(q.dtype)
    lse = jax.nn.logsumexp(found.lse, axis=1, keepdims=True)
    to_segment = jnp.exp(jnp.minimum(lse - found.lse, _FAR))  # from P to Q
    of_out = jnp.sum(do.astype(jnp.float32) * found.out, axis=-1)
    bias = given.lse * to_segment - of_out[:, None]
    slopes = Slopes(
        lse, lse - found.entropy[:, None], given.entropy[:, None], jnp.expand_dims(bias, 2)
    )
    return (*kernels.backward(plan, q, k, v, limits, do, slopes), None)


_group.defvjp(_forward, _backward)


def _log_or(x: Array, otherwise: Any) -> Array:
    return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1.0)), otherwise)
