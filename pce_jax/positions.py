"""Position schemes: which positions the tokens of each segment take, and where the query starts.

Published parallel encoders let all segments share one span of positions right behind the sink.
Segments differ in length, so a scheme says how long the span is and how a segment lies in it::

    lengths 3, 5, span "max" (5 positions), sink of 2       positions
    sink             0 1
    segment 1, left      2 3 4                              2 3 4
    segment 1, right         4 5 6                          4 5 6
    segment 1, spread    2 3   5                            2 3.67 5.33, truncated to 2 3 5
    segment 2            2 3 4 5 6
    query                          7 8 ...

`sequential` gives the segments consecutive spans instead, as if the context were read whole.
"""

import dataclasses
from typing import Literal, get_args

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .errors import MethodError

Span = Literal["max", "mean", "harmonic"]
Align = Literal["left", "right", "spread"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Positions:
    """A position scheme (the published code's letters in brackets).

    Attributes:
        span: Length of the shared span: the longest segment's (M), the mean (A) or the harmonic
            mean (H).
        align: Where a segment lies in the span: at its start (L), at its end (R), or stretched
            evenly (E).
        sequential: Consecutive true positions instead of a shared span; `span` and `align` then
            mean nothing.
        fractional: Keep fractions of positions; the published code truncates them towards zero.

    Example:
        >>> places, query_start = pce.Positions().of_segments(jnp.array([3, 5]), tokens=5, start=2)
        >>> places[0, :3], query_start  # the shorter segment is stretched
        (Array([2., 3., 5.], dtype=float32), Array(7., dtype=float32))
    """

    span: Span = "max"
    align: Align = "spread"
    sequential: bool = False
    fractional: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown names.

        Raises:
            MethodError: `span` or `align` is not one of the known words.
        """
        for field, value, known in (("span", self.span, Span), ("align", self.align, Align)):
            if value not in get_args(known):
                raise MethodError(
                    f"positions: {field} {value!r} is unknown. Known: {', '.join(get_args(known))}."
                )

    def of_segments(
        self, lengths: Int[Array, " segments"], tokens: int, start: int
    ) -> tuple[Float[Array, "segments tokens"], Float[Array, ""]]:
        """Positions of every token slot, and the position at which the query starts.

        Args:
            lengths: Tokens in each segment; empty segments (0) take no part.
            tokens: Token slots a segment is padded to.
            start: Position behind the sink, that is, the sink's length.

        Returns:
            Float32 positions (whole numbers unless `fractional`), and the query's first position.
        """
        lengths = jnp.asarray(lengths)
        index = jnp.arange(tokens)
        if self.sequential:
            offset = jnp.cumsum(lengths) - lengths
            places = (start + offset[:, None] + index).astype(jnp.float32)
            return places, (start + jnp.sum(lengths)).astype(jnp.float32)
        above, below = self._span(lengths)
        safe = jnp.maximum(lengths, 1)[:, None]
        match self.align:
            case "left":
                inside = jnp.broadcast_to(index.astype(jnp.float32), (lengths.shape[0], tokens))
            case "right":
                inside = (above / below - lengths)[:, None] + index.astype(jnp.float32)
            case "spread":
                inside = index * (above / below) / safe
                if self.span == "harmonic":
                    inside = _settle(inside)
                elif not self.fractional:
                    inside = _floor_divide(inside, index * above, safe * below)
        return self.whole(start + inside), self.whole(start + above / below)

    def whole(self, positions: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
        """Truncate towards zero unless fractions are kept."""
        return positions if self.fractional else jnp.trunc(positions)

    def _span(self, lengths: Int[Array, " segments"]) -> tuple[Array, Array]:
        """The span as a fraction, whole above and below where it can be."""
        filled = jnp.maximum(jnp.sum(lengths > 0), 1)
        match self.span:
            case "max":
                return jnp.max(lengths), jnp.ones((), lengths.dtype)
            case "mean":
                return jnp.sum(lengths), filled
            case "harmonic":
                inverse = jnp.where(lengths > 0, 1.0 / jnp.maximum(lengths, 1), 0.0)
                mean = filled / jnp.maximum(jnp.sum(inverse), 1e-9)
                return jnp.where(jnp.any(lengths > 0), _settle(mean), 0.0), jnp.ones(())


def _floor_divide(estimate: Array, above: Array, below: Array) -> Array:
    """Exact floor(above / below) from a float estimate, so that no rounding moves a token.

    The products may overflow their integers; the remainder is small, and wrapping arithmetic keeps
    it exact.
    """
    quotient = jnp.floor(estimate).astype(above.dtype)
    remainder = above - quotient * below
    quotient = quotient + (remainder >= below) - (remainder < 0)
    return quotient.astype(jnp.float32)


def _settle(positions: Array) -> Array:
    """Put what is a whole number but for float32's rounding onto it, so that truncation keeps it.

    The harmonic mean comes from rounded inverses: that of 49 segments of 3 would be below 3.
    """
    nearest = jnp.round(positions)
    return jnp.where(jnp.abs(positions - nearest) <= 4e-6 * positions, nearest, positions)
