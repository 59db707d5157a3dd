"""What attention gives: mixed values, the log of the sum of exponentials, entropy."""

import dataclasses

import jax
import jax.numpy as jnp
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


def share_of(part: Attended, lse: Float[Array, "heads queries"]) -> tuple[Array, Entropy | None]:
    """What attention to some of the keys adds to attention to all of them, float32.

    Of mixed values, its share; of an entropy (by the chain rule), its share of that with the log of
    the share taken off.

    Args:
        part: Attention to some keys, as if there were no others. It may be to none that are seen.
        lse: Log of the sum of the exponentials of all keys.
    """
    share = jnp.exp(part.lse - lse)
    out = share[..., None] * part.out.astype(jnp.float32)
    if part.entropy is None:
        return out, None
    return out, jax.tree.map(lambda h: share * (h + lse - part.lse), part.entropy)


def joined(one: Attended, other: Attended) -> Attended:
    """Attention to the keys of both together, float32."""
    lse = jnp.logaddexp(one.lse, other.lse)
    out, entropy = jax.tree.map(jnp.add, share_of(one, lse), share_of(other, lse))
    return Attended(out, lse, entropy)
