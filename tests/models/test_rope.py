"""Rotary embedding against formulas written down anew, and the properties that rotation has."""

import dataclasses
import math
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from pce_jax.models import LlamaConfig, RopeConfig
from pce_jax.models.rope import Rotary, rotary, rotate, rotated_layers, turns

PLAIN = RopeConfig()
LLAMA3 = RopeConfig(kind="llama3", theta=500.0, factor=8.0, original_max_positions=64)
YARN = RopeConfig(
    kind="yarn",
    theta=500.0,
    factor=4.0,
    original_max_positions=64,
    beta_fast=2.0,
    beta_slow=0.5,
)


def config(rope: RopeConfig = PLAIN, head_dim: int = 16, **fields: Any) -> LlamaConfig:
    sizes: dict[str, Any] = {"vocab_size": 8, "hidden_size": 8, "intermediate_size": 8}
    sizes |= {"num_layers": 3, "num_heads": 2, "num_kv_heads": 1, "head_dim": head_dim}
    return LlamaConfig(**sizes, rope=rope, **fields)


def turn(x: Any, positions: Any, of: Rotary) -> Any:
    return rotate(jnp.asarray(x), turns(of, jnp.asarray(positions)), True)


def heads(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


# Frequencies


def default(theta: float, dim: int) -> np.ndarray:
    return np.array([theta ** (-2 * pair / dim) for pair in range(dim // 2)])


def llama3(rope: RopeConfig, frequency: float) -> float:
    """Turns within the trained window decide: few are stretched, many kept, blended between."""
    turns = rope.original_max_positions * frequency / (2 * math.pi)
    span = rope.high_freq_factor - rope.low_freq_factor
    kept = min(max((turns - rope.low_freq_factor) / span, 0.0), 1.0)
    return frequency * (kept + (1 - kept) / rope.factor)


def yarn(rope: RopeConfig, dim: int) -> np.ndarray:
    """Linear ramp between the pairs that turn `beta_fast` and `beta_slow` times in the window."""
    plain = default(rope.theta, dim)
    turns = rope.original_max_positions * plain / (2 * math.pi)
    pair_of = np.poly1d(np.polyfit(np.log(turns), np.arange(dim // 2), 1))  # exactly linear
    first, last = pair_of(math.log(rope.beta_fast)), pair_of(math.log(rope.beta_slow))
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, dim - 1)
    ramp = np.interp(np.arange(dim // 2), [first, last], [0.0, 1.0])
    return plain * (1 - ramp) + plain / rope.factor * ramp


@pytest.mark.parametrize("theta", [100.0, 10_000.0, 500_000.0])
def test_default_frequencies(theta: float):
    table = rotary(config(RopeConfig(theta=theta)))
    np.testing.assert_allclose(table.frequencies, default(theta, 16), rtol=1e-6)
    np.testing.assert_array_equal(table.amplitude, 1.0)


def test_linear_frequencies_are_those_of_squeezed_positions():
    table = rotary(config(RopeConfig(kind="linear", factor=4.0)))
    np.testing.assert_allclose(table.frequencies, default(10_000.0, 16) / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "change", [{}, {"factor": 32.0}, {"low_freq_factor": 0.5, "high_freq_factor": 9.0}]
)
def test_llama3_frequencies(change: dict[str, Any]):
    rope = dataclasses.replace(LLAMA3, **change)
    expected = [llama3(rope, frequency) for frequency in default(rope.theta, 32)]
    table = rotary(config(rope, head_dim=32))
    np.testing.assert_allclose(table.frequencies, expected, rtol=1e-5)
    np.testing.assert_array_equal(table.amplitude, 1.0)
    stretched = default(rope.theta, 32) / table.frequencies
    assert np.any((stretched > 1.01) & (stretched < rope.factor * 0.99)), "nothing is blended"


@pytest.mark.parametrize(
    "change",
    [{}, {"truncate": False}, {"beta_fast": 32.0, "beta_slow": 1.0}, {"factor": 16.0}],
)
def test_yarn_frequencies(change: dict[str, Any]):
    rope = dataclasses.replace(YARN, **change)
    table = rotary(config(rope, head_dim=32))
    np.testing.assert_allclose(table.frequencies, yarn(rope, 32), rtol=1e-5)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, 0.1 * math.log(4) + 1),
        ({"factor": 1.0}, 1.0),
        ({"attention_factor": 1.3}, 1.3),
        ({"attention_factor": 1.3, "mscale": 2.0, "mscale_all_dim": 0.5}, 1.3),
        ({"mscale": 2.0}, 0.1 * math.log(4) + 1),
        (
            {"mscale": 2.0, "mscale_all_dim": 0.5},
            (0.2 * math.log(4) + 1) / (0.05 * math.log(4) + 1),
        ),
        ({"mscale": 0.7, "mscale_all_dim": 0.7}, 1.0),
    ],
)
def test_yarn_amplitude(change: dict[str, Any], expected: float):
    table = rotary(config(dataclasses.replace(YARN, **change)))
    np.testing.assert_allclose(table.amplitude, expected, rtol=1e-6)


def test_yarn_with_meeting_boundaries_is_a_step():
    rope = dataclasses.replace(YARN, beta_fast=1.0, beta_slow=1.0, truncate=False)
    table = rotary(config(rope, head_dim=32))
    stretched = default(rope.theta, 32) / table.frequencies
    np.testing.assert_allclose(np.unique(stretched.round(4)), [1.0, rope.factor])


# Rotation


def test_rotation_turns_pairs_of_half_split_dimensions():
    of = Rotary(np.array([0.5, 0.1], np.float32), 1.0)
    x = np.array([1.0, 0.0, 0.0, 2.0], np.float32)  # pairs (0, 2) and (1, 3)
    turned = turn(jnp.asarray(x)[None, None], jnp.array([3.0]), of)[0, 0]
    expected = [math.cos(1.5), -2 * math.sin(0.3), math.sin(1.5), 2 * math.cos(0.3)]
    np.testing.assert_allclose(turned, expected, rtol=1e-6)


@pytest.mark.parametrize("rope", [RopeConfig(), LLAMA3, YARN], ids=lambda rope: rope.kind)
def test_rotation_scales_norms_by_the_amplitude_only(rope: RopeConfig):
    of = rotary(config(rope))
    x = heads(5, 2, 16)
    turned = turn(jnp.asarray(x), jnp.array([0.0, 1.0, 7.5, 300.0, -4.0]), of)
    norms = np.linalg.norm(x, axis=-1) * of.amplitude
    np.testing.assert_allclose(np.linalg.norm(turned, axis=-1), norms, rtol=1e-5)


@pytest.mark.parametrize("rope", [RopeConfig(), LLAMA3, YARN], ids=lambda rope: rope.kind)
@pytest.mark.parametrize("shift", [1.0, 0.25, 130.0])
def test_products_depend_on_the_distance_only(rope: RopeConfig, shift: float):
    of = rotary(config(rope))
    q, k = jnp.asarray(heads(2, 4, 1, 16))
    at_q, at_k = jnp.array([9.0, 30.5, 64.0, 200.0]), jnp.array([2.0, 30.0, 0.0, 11.0])

    def products(shift: float) -> jnp.ndarray:
        turned = turn(q, at_q + shift, of), turn(k, at_k + shift, of)
        return jnp.sum(turned[0] * turned[1], axis=-1)

    np.testing.assert_allclose(products(shift), products(0.0), rtol=1e-4, atol=1e-4)


def test_position_zero_leaves_all_as_it_is():
    x = jnp.asarray(heads(1, 2, 16))
    turned = turn(x, jnp.zeros(1), rotary(config()))
    np.testing.assert_array_equal(turned, x)


def test_fractional_positions_lie_between_whole_ones():
    of = Rotary(np.array([0.3], np.float32), 1.0)
    x = jnp.array([1.0, 0.0])[None, None]
    turned = [turn(x, jnp.array([p]), of)[0, 0] for p in (2.0, 2.25, 3.0)]
    angles = np.array([np.arctan2(pair[1], pair[0]) for pair in turned])
    np.testing.assert_allclose(angles, [0.6, 0.675, 0.9], rtol=1e-5)


def test_whole_positions_may_be_integers():
    x, of = jnp.asarray(heads(3, 2, 16)), rotary(config())
    turned = turn(x, jnp.array([0, 5, 900]), of)
    np.testing.assert_array_equal(turned, turn(x, jnp.array([0.0, 5.0, 900.0]), of))


def test_each_token_of_a_batch_has_its_own_position():
    x, of = jnp.asarray(heads(2, 3, 2, 16)), rotary(config())
    positions = jnp.array([[0.0, 1.0, 2.0], [7.0, 7.5, 20.0]])
    together = turn(x, positions, of)
    for row in range(2):
        for token in range(3):
            alone = turn(x[row, token][None], positions[row, token][None], of)
            np.testing.assert_array_equal(together[row, token], alone[0])


def test_angles_are_float32_whatever_the_dtype_of_the_heads():
    x, of = jnp.asarray(heads(2, 2, 16), jnp.bfloat16), rotary(config())
    positions = jnp.array([4999.0, 5000.5])  # equal in bfloat16
    turned = turn(x, positions, of)
    assert turned.dtype == jnp.bfloat16
    wide = turn(x.astype(jnp.float32), positions, of)
    np.testing.assert_array_equal(turned, wide.astype(jnp.bfloat16))


def test_frequencies_and_angles_are_float32():
    for rope in (RopeConfig(), RopeConfig(kind="linear", factor=3.0), LLAMA3, YARN):
        table = rotary(config(rope))
        assert table.frequencies.dtype == np.float32
        assert table.frequencies.shape == (8,)
        angles = turns(table, jnp.arange(5))
        assert angles.cos.dtype == angles.sin.dtype == jnp.float32
        assert angles.cos.shape == angles.sin.shape == (5, 8)


def test_partial_rotation_turns_the_front_and_leaves_the_rest():
    x, positions = jnp.asarray(heads(4, 2, 16)), jnp.array([0.0, 3.0, 8.5, 90.0])
    part = rotary(config(RopeConfig(rotated_fraction=0.5)))
    turned = turn(x, positions, part)
    small = rotary(config(head_dim=8))
    np.testing.assert_array_equal(turned[..., 8:], x[..., 8:])
    np.testing.assert_array_equal(turned[..., :8], turn(x[..., :8], positions, small))


def test_an_unrotated_layer_is_the_identity():
    unrotated = config(YARN, unrotated_layers=(1,))
    np.testing.assert_array_equal(rotated_layers(unrotated), [True, False, True])
    x = jnp.asarray(heads(2, 2, 16))
    angles = turns(rotary(unrotated), jnp.array([5.0, 70.5]))
    np.testing.assert_array_equal(rotate(x, angles, False), x)
    assert np.abs(rotate(x, angles, True) - x).max() > 0.1
