"""Rotary position embedding: one builder of frequencies and one rotation for every path.

Frequencies and angles are float32 whatever the dtype of the model, and positions may be fractional.
Cos and sin are computed once a pass, for all layers together: on CPUs they cost several times what
the rotation itself does.
"""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from .config import LlamaConfig, RopeConfig


@dataclasses.dataclass(frozen=True)
class Rotary:
    """How fast each rotated pair of dimensions turns.

    Attributes:
        frequencies: Radians per position, float32.
        amplitude: Factor on cos and sin (1 but for YaRN).
    """

    frequencies: Float[np.ndarray, " pairs"]
    amplitude: float


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Turns:
    """How far each pair is turned at each position.

    Attributes:
        cos: Of the angles, times the amplitude, float32.
        sin: The same.
    """

    cos: Float[Array, "*batch tokens pairs"]
    sin: Float[Array, "*batch tokens pairs"]


def rotary(config: LlamaConfig) -> Rotary:
    """The rotary embedding of a config's rotated layers."""
    return Rotary(*_frequencies(config.rope, config.rotated_dim))


def rotated_layers(config: LlamaConfig) -> Bool[np.ndarray, " layers"]:
    """Which layers rotate their queries and keys: all but SmolLM3's NoPE layers."""
    return ~np.isin(np.arange(config.num_layers), config.unrotated_layers)


def turns(rotary: Rotary, positions: Float[Array, "*batch tokens"]) -> Turns:
    """Cos and sin of positions, for all layers.

    Args:
        rotary: From `rotary`.
        positions: Position of each token; may be fractional or negative.
    """
    angles = positions[..., None].astype(jnp.float32) * rotary.frequencies
    amplitude = np.float32(rotary.amplitude)
    return Turns(jnp.cos(angles) * amplitude, jnp.sin(angles) * amplitude)


def rotate(
    x: Float[Array, "*batch tokens heads head_dim"], turns: Turns, rotated: Bool[Array, ""] | bool
) -> Float[Array, "*batch tokens heads head_dim"]:
    """Turn queries or keys to their positions (the half-split pairing of Hugging Face).

    Args:
        x: Un-rotated queries or keys, any float dtype.
        turns: From `turns`, of their positions.
        rotated: Whether the layer rotates at all.

    Returns:
        The rotated array in the dtype of `x`; the arithmetic is float32.
    """
    pairs = turns.cos.shape[-1]
    cos = jnp.where(rotated, turns.cos, 1.0)[..., None, :]
    sin = jnp.where(rotated, turns.sin, 0.0)[..., None, :]
    first, second, rest = jnp.split(x.astype(jnp.float32), (pairs, 2 * pairs), axis=-1)
    turned = (first * cos - second * sin, second * cos + first * sin, rest)
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _frequencies(rope: RopeConfig, dim: int) -> tuple[np.ndarray, float]:
    """Frequencies `[dim / 2]` and amplitude; float32 at every step, as in training."""
    wavelengths = np.float32(rope.theta) ** (
        np.arange(0, dim, 2, dtype=np.float32) / np.float32(dim)
    )
    frequencies = np.float32(1.0) / wavelengths
    match rope.kind:
        case "default":
            return frequencies, 1.0
        case "linear":
            return frequencies / np.float32(rope.factor), 1.0
        case "llama3":
            return _llama3(rope, frequencies), 1.0
        case "yarn":
            return _yarn(rope, frequencies, dim)


def _llama3(rope: RopeConfig, frequencies: np.ndarray) -> np.ndarray:
    """Llama 3.1: keep short wavelengths, stretch long ones by `factor`, blend in between."""
    window = rope.original_max_positions
    wavelength = 2 * np.pi / frequencies
    stretched = frequencies / np.float32(rope.factor)
    blend = (window / wavelength - rope.low_freq_factor) / (
        rope.high_freq_factor - rope.low_freq_factor
    )
    blended = (1 - blend) * stretched + blend * frequencies
    long, short = window / rope.low_freq_factor, window / rope.high_freq_factor
    middle = np.where(wavelength > long, stretched, blended)
    return np.where(wavelength < short, frequencies, middle).astype(np.float32)


def _yarn(rope: RopeConfig, frequencies: np.ndarray, dim: int) -> tuple[np.ndarray, float]:
    """YaRN (arXiv 2309.00071): stretch the dimensions that turn rarely, and scale attention."""

    def boundary(turns: float) -> float:
        """Dimension whose pair makes `turns` full turns within the trained window."""
        return (
            dim
            * math.log(rope.original_max_positions / (turns * 2 * math.pi))
            / (2 * math.log(rope.theta))
        )

    def amplitude(weight: float = 1.0) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    low, high = boundary(rope.beta_fast), boundary(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    ramp = np.clip((np.arange(dim // 2, dtype=np.float32) - low) / width, 0, 1).astype(np.float32)
    kept = 1 - ramp
    mixed = frequencies / np.float32(rope.factor) * (1 - kept) + frequencies * kept
    if rope.attention_factor is not None:
        scale = rope.attention_factor
    elif rope.mscale and rope.mscale_all_dim:
        scale = amplitude(rope.mscale) / amplitude(rope.mscale_all_dim)
    else:
        scale = amplitude()
    return mixed.astype(np.float32), scale
