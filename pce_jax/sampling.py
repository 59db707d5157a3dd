"""Choosing the next token from logits: greedy, or sampled with temperature, top-k and top-p."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Key

from .errors import MethodError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sampling:
    """How tokens are drawn. Hashable: static under `jit`.

    Attributes:
        temperature: 0 takes the most likely token; above 0 (at least 1e-6), logits are divided by
            it before drawing.
        top_k: Draw among this many most likely tokens only; 0 for all.
        top_p: Draw among the fewest most likely tokens whose probabilities reach this sum; 1 for
            all.

    Example:
        >>> warm = pce.Sampling(temperature=0.7, top_p=0.9)
        >>> out = pce.generate(model, cache, [1, 2], max_new_tokens=2, sampling=warm, seed=1)
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            MethodError: A `temperature` neither 0 nor a number from 1e-6 on (logits divided by less
                overflow), a negative `top_k`, or `top_p` outside (0, 1].
        """
        if self.temperature != 0 and not 1e-6 <= self.temperature < float("inf"):
            raise MethodError(
                f"temperature must be 0 (greedy) or at least 1e-6, and finite; got "
                f"{self.temperature}"
            )
        if self.top_k < 0:
            raise MethodError(f"sampling top_k must be at least 0 (all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise MethodError(f"top_p must lie in (0, 1], got {self.top_p}")


def sample(
    logits: Float[Array, " vocab"], key: Key[Array, ""], sampling: Sampling
) -> Int[Array, ""]:
    """Draw one token.

    Args:
        logits: Next-token logits.
        key: Random key; unused when greedy.
        sampling: How to draw.

    Example:
        >>> int(pce.sample(jnp.array([0.1, 2.0, 0.3]), jax.random.key(0), pce.Sampling()))
        1
    """
    if sampling.temperature == 0:
        return jnp.argmax(logits)
    logits = logits / sampling.temperature
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        kept = jax.lax.top_k(logits, sampling.top_k)[0]
        logits = jnp.where(logits < kept[-1], -jnp.inf, logits)
    if sampling.top_p < 1:
        descending = -jnp.sort(-logits)
        p = jax.nn.softmax(descending)
        reached_before = jnp.cumsum(p) - p
        needed = jnp.sum(reached_before < sampling.top_p)  # at least the most likely one
        logits = jnp.where(logits < descending[needed - 1], -jnp.inf, logits)
    return jax.random.categorical(key, logits)
