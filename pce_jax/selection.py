"""Selective attention: each query keeps the K segments it attends to most (paper, section 4.2).

A segment's score is the sum of its largest attention probabilities. Scores may be aggregated over
heads, query tokens or layers, which makes them choose together; the probabilities of segments that
are not chosen become zero and the rest is renormalised. Sink, query and generated tokens are never
dropped.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, get_args

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .errors import MethodError

Dim = Literal["layer", "token", "head"]

# Axes of scores [layers, tokens, heads, segments].
_AXES: dict[Dim, int] = {"layer": -4, "token": -3, "head": -2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Select:
    """How segments are chosen.

    Attributes:
        top_k: Segments to keep, K. At least as many as there are means no selection.
        tau: Soft variant, between 0 and 1, instead of `top_k`: the segments' masses become
            softmax(log(score) / tau), so that none is dropped and large ones grow.
        aggregate: Dimensions that choose together: any of `head`, `token` and `layer`. The paper
            uses none for language modelling and `head` with `token` for tasks. `token` lets a query
            token see which segments later query tokens want; `layer` takes a first pass without
            selection.
        score_top: Probabilities that make up a segment's score (0: their mean).
        aggregate_top: Scores that make up an aggregated score (0: their mean).

    Example:
        >>> each_chooses = pce.Select(top_k=2, aggregate=frozenset())
        >>> out = pce.query(model, cache, jnp.array([1, 2]), pce.Method(select=each_chooses))
    """

    top_k: int = 2
    tau: float | None = None
    aggregate: frozenset[Dim] = frozenset({"head", "token"})
    score_top: int = 5
    aggregate_top: int = 5

    def __post_init__(self) -> None:
        """Normalise `aggregate` to a set and refuse values without a meaning.

        Raises:
            MethodError: `top_k` below 1, `tau` outside (0, 1), an unknown dimension, or a negative
                `score_top` or `aggregate_top`.
        """
        dims: Iterable[str] = (
            (self.aggregate,) if isinstance(self.aggregate, str) else self.aggregate
        )
        object.__setattr__(self, "aggregate", frozenset(dims))
        if self.top_k < 1:
            raise MethodError(
                f"select: top_k must be at least 1, got {self.top_k}. Leave select out for none."
            )
        if self.tau is not None and not 0 < self.tau < 1:
            raise MethodError(f"select: tau must lie between 0 and 1, got {self.tau}")
        for field in ("score_top", "aggregate_top"):
            if getattr(self, field) < 0:
                raise MethodError(
                    f"select: {field} must be at least 0 (the mean), got {getattr(self, field)}"
                )
        unknown = sorted(self.aggregate - set(get_args(Dim)))
        if unknown:
            raise MethodError(
                f"select: cannot aggregate over {', '.join(unknown)}. "
                f"Known: {', '.join(get_args(Dim))}."
            )

    def scores(
        self,
        logits: Float[Array, "*rows segments tokens"],
        lse: Float[Array, "*rows"],
        lengths: Int[Array, " segments"],
    ) -> Float[Array, "*rows segments"]:
        """Score of each segment: the sum of its largest probabilities. It has no slope.

        Args:
            logits: Of the segments' keys; hugely negative where a key is hidden.
            lse: Log of the sum of the exponentials of all logits, those of other groups too.
            lengths: Tokens in each segment.
        """
        logits, lse = jax.lax.stop_gradient((logits, lse[..., None]))
        if self.score_top == 0:
            mass = jnp.sum(jnp.exp(logits - lse[..., None]), axis=-1)
            return mass / jnp.maximum(lengths, 1)
        if self.score_top > _BY_MAXIMA:
            top = jax.lax.top_k(logits, min(self.score_top, logits.shape[-1]))[0]
            return jnp.sum(jnp.exp(top - lse[..., None]), axis=-1)
        shape = logits.shape[:-1]
        return _top_exponentials(self.score_top)(logits, jnp.broadcast_to(lse, shape))

    def choose(
        self,
        scores: Float[Array, "*layers tokens heads segments"],
        lengths: Int[Array, " segments"],
        valid: Bool[Array, " tokens"],
    ) -> Float[Array, "*any_layers any_tokens any_heads segments"]:
        """Decide from scores: 1 for a chosen segment and 0 for others, or target masses if soft.

        Args:
            scores: From `scores`, before any selection; with a layer axis if `layer` is aggregated.
            lengths: Tokens in each segment; empty ones are never chosen.
            valid: Query tokens that are not padding; others have no say.

        Returns:
            The choice, with size 1 along each aggregated dimension.
        """
        scores = jnp.where(valid[:, None, None], jax.lax.stop_gradient(scores), 0.0)
        return self._decide(self._aggregate(scores, valid), lengths)

    def choose_each(
        self, scores: Float[Array, "*rows segments"], lengths: Int[Array, " segments"]
    ) -> Float[Array, "*rows segments"]:
        """`choose` where nothing is aggregated: every row for itself."""
        return self._decide(jax.lax.stop_gradient(scores), lengths)

    def _decide(self, for_all: Array, lengths: Array) -> Array:
        filled = lengths > 0
        if self.tau is not None:
            logits = jnp.log(for_all + 1e-5) / self.tau
            return jax.nn.softmax(logits, axis=-1, where=filled)
        ranked = jnp.where(filled, for_all, -1.0)
        _, best = jax.lax.top_k(ranked, min(self.top_k, ranked.shape[-1]))
        chosen = jnp.sum(jax.nn.one_hot(best, ranked.shape[-1]), axis=-2)
        return chosen * filled

    def factors(
        self, choice: Float[Array, "*rows segments"], masses: Float[Array, "*rows segments"]
    ) -> Array:
        """What to multiply each segment's probabilities by, given its present mass."""
        if self.tau is None:
            return choice
        return choice / jnp.maximum(masses, 1e-18)  # the slope divides by its square: still finite

    def _aggregate(self, scores: Array, valid: Array) -> Array:
        axes = sorted(_AXES[dim] + scores.ndim for dim in self.aggregate)
        if not axes:
            return scores
        counts = [
            jnp.sum(valid) if axis == scores.ndim - 3 else scores.shape[axis] for axis in axes
        ]
        flat = jnp.moveaxis(scores, axes, range(-len(axes), 0))
        flat = flat.reshape(*flat.shape[: -len(axes)], -1)
        total = _top_sum(flat, self.aggregate_top, jnp.prod(jnp.asarray(counts)))
        return jnp.expand_dims(total, axes)


_LOWEST = -1e29
"""Below every logit but those of hidden keys."""

_BY_MAXIMA = 8
"""So many largest elements are found by maxima one after another, more of them by sorting."""


@functools.cache
def _top_exponentials(top: int) -> Callable[[Array, Array], Array]:
    """The function that sums the `top` largest exponentials of the last axis.

    Under `vmap` it is the same function of larger arrays, so that its question whether there are
    equal logits stays one question.
    """
    whole = jax.custom_batching.custom_vmap(functools.partial(_sum_of_top, top=top))

    @whole.def_vmap
    def rule(size: int, batched: Sequence[bool], logits: Array, lse: Array) -> tuple[Array, bool]:
        both = [
            x if is_batched else jnp.broadcast_to(x, (size, *x.shape))
            for x, is_batched in zip((logits, lse), batched, strict=True)
        ]
        return whole(*both), True

    return whole


def _sum_of_top(logits: Array, lse: Array, *, top: int) -> Array:
    """Sum of exp(logit - lse) over the `top` largest of the last axis, without sorting them.

    Logits that are equal count as often as they occur, which is looked at only where there are any.
    """
    largest = [jnp.max(logits, axis=-1)]
    for _ in range(top - 1):
        below = logits < largest[-1][..., None]
        largest.append(jnp.max(logits, axis=-1, where=below, initial=-jnp.inf))
    reached = (logits >= largest[-1][..., None]) & (logits > _LOWEST)
    distinct = functools.reduce(jnp.add, [(x > _LOWEST).astype(int) for x in largest])
    ties = jnp.sum(reached, axis=-1) > distinct

    def each_once() -> Array:
        return functools.reduce(jnp.add, [jnp.exp(x - lse) for x in largest])

    def as_often_as_they_occur() -> Array:
        total, left = jnp.zeros_like(largest[0]), jnp.full(largest[0].shape, float(top))
        for x in largest:
            count = jnp.sum(logits == x[..., None], axis=-1, dtype=logits.dtype)
            taken = jnp.minimum(count, left)
            total += jnp.where(taken > 0, taken * jnp.exp(x - lse), 0.0)
            left -= taken
        return total

    return jax.lax.cond(jnp.any(ties), as_often_as_they_occur, each_once)


def _top_sum(x: Array, top: int, count: Array) -> Array:
    """Sum of the `top` largest of the last axis; 0: mean over `count` (the rest are zero)."""
    if top <= 0:
        return jnp.sum(x, axis=-1) / jnp.maximum(count, 1)
    if top >= x.shape[-1]:
        return jnp.sum(x, axis=-1)
    return jnp.sum(jax.lax.top_k(x, top)[0], axis=-1)
