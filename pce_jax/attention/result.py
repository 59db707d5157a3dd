"""What attention gives: mixed values, the log of the sum of exponentials, entropy."""

import dataclasses

import jax
from jaxtyping import Array, Float


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


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Attended:
    """Attention of query tokens to all groups.

    Attributes:
        out: Mixed values, in the dtype of the queries.
        lse: Log of the sum of the exponentials of all logits, float32: what merges partial results.
        entropy: In nats, if asked for.
    """

    out: Float[Array, "heads queries head_dim"]
    lse: Float[Array, "heads queries"]
    entropy: Entropy | None
