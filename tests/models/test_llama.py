"""The decoder under JAX's transformations, its hook, and what causality means."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from parity.cases import BY_NAME, weights

from pce_jax.models import (
    Llama,
    LlamaConfig,
    decode_stack,
    embed,
    forward,
    init,
    keep_of_stack,
    unembed,
)
from pce_jax.models.families import hf_tensor_names
from pce_jax.models.llama import parameter_shapes
from pce_jax.models.rope import rotary, rotate, turns

EVERYTHING = LlamaConfig(
    vocab_size=37,
    hidden_size=24,
    intermediate_size=40,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    qkv_bias=True,
    out_bias=True,
    mlp_bias=True,
    qk_norm=True,
    unrotated_layers=(1,),
)
TOKENS: Any = np.arange(22).reshape(2, 11) * 5 % 37


def case_model(name: str) -> Llama:
    """A case of the parity tests, put together without files."""
    config, tensors = LlamaConfig.from_hf(BY_NAME[name].hf), weights(BY_NAME[name])
    parameters = {}
    for ours in parameter_shapes(config):
        arrays = [tensors[theirs] for theirs in hf_tensor_names(ours, config.num_layers)]
        parameters[ours] = jnp.asarray(np.stack(arrays) if "." in ours else arrays[0])
    return Llama(config, parameters)


@functools.cache
def model() -> Llama:
    """Every part present, no norm one and no bias zero."""
    draw = np.random.default_rng(1)
    return Llama(
        EVERYTHING,
        {
            name: jnp.asarray(
                0.5 * draw.normal(size=shape) + name.endswith("norm"), dtype=jnp.float32
            )
            for name, shape in parameter_shapes(EVERYTHING).items()
        },
    )


run = jax.jit(forward)


def one_layer(stacked: Llama, index: int) -> Llama:
    """The layer of a model, as a model of its own."""
    config = dataclasses.replace(
        stacked.config,
        num_layers=1,
        unrotated_layers=(0,) if index in stacked.config.unrotated_layers else (),
    )
    parameters = {}
    for name in parameter_shapes(config):
        owner = stacked.blocks if name.startswith("blocks.") else stacked
        value = getattr(owner, name.removeprefix("blocks."))[...]
        parameters[name] = value[index : index + 1] if owner is stacked.blocks else value
    return Llama(config, parameters)


def attend(q: Any, k: Any, v: Any, rotated: Any, state: Any) -> tuple[Any, Any]:
    """Uniform mixing of the values, weighed by the layer's state; keeps what it was given."""
    positions = jnp.arange(q.shape[-3], dtype=jnp.float32)
    mean = jnp.mean(v, axis=(-3, -2), keepdims=True)
    angles = turns(rotary(model().config), positions)
    mixed = rotate(q, angles, rotated) * mean * state["weight"]
    return mixed.astype(q.dtype), {"k": k, "state": state, "rotated": rotated}


# The stack


def test_scan_equals_a_loop_over_the_layers_and_keeps_in_layer_order():
    hidden = embed(model(), TOKENS)
    weight = jnp.array([1.0, -0.5, 2.0])
    scanned, kept = decode_stack(model(), hidden, attend, {"weight": weight})
    for index in range(3):
        state = {"weight": weight[index : index + 1]}
        hidden, alone = decode_stack(one_layer(model(), index), hidden, attend, state)
        np.testing.assert_allclose(kept["k"][index], alone["k"][0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(scanned, hidden, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(kept["state"]["weight"], weight)
    assert kept["k"].shape == (3, 2, 11, 2, 8)
    np.testing.assert_array_equal(kept["rotated"], [True, False, True])


def test_what_a_stack_keeps_is_the_same_without_the_end_of_the_last_block():
    weight = jnp.array([1.0, -0.5, 2.0])

    def keep(*layer: Any) -> Any:
        return attend(*layer)[1] | {"rotated": jnp.array(False)}

    def kept(model: Llama, short: bool) -> Any:
        state, hidden = {"weight": weight}, embed(model, TOKENS)
        if short:
            return keep_of_stack(model, hidden, attend, keep, state)
        return decode_stack(model, hidden, attend, state)[1]

    short, whole = kept(model(), True), kept(model(), False)
    np.testing.assert_allclose(short["k"], whole["k"], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(short["rotated"], [True, False, False])  # the last is `keep`'s
    of_keys = [
        jax.grad(lambda model, short=short: jnp.sum(jnp.sin(kept(model, short)["k"])))(model())
        for short in (True, False)
    ]
    for mine, other in zip(*map(jax.tree.leaves, of_keys), strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5)


def test_attend_gets_heads_before_rotation_and_one_layers_slices():
    shapes = {}

    def look(q: Any, k: Any, v: Any, rotated: Any, state: Any) -> tuple[Any, None]:
        shapes.update(q=q.shape, k=k.shape, v=v.shape, state=state.shape)
        shapes.update(rotated=rotated.shape)
        return q, None

    _, kept = decode_stack(model(), embed(model(), TOKENS), look, jnp.zeros((3, 5, 7)))
    assert kept is None
    assert shapes == {
        "q": (2, 11, 4, 8),
        "k": (2, 11, 2, 8),
        "v": (2, 11, 2, 8),
        "state": (5, 7),
        "rotated": (),
    }


def test_queries_and_keys_are_given_unrotated():
    # The first layer sees one token twice: only their positions could tell the two apart.
    _, kept = decode_stack(
        model(), embed(model(), jnp.array([3, 3])), attend, {"weight": jnp.ones(3)}
    )
    np.testing.assert_allclose(kept["k"][0, 0], kept["k"][0, 1], rtol=1e-6)


# The forward pass


def test_forward_is_the_same_under_jit_and_for_any_batch_axes():
    whole = run(model(), TOKENS)
    assert whole.shape == (2, 11, 37)
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-4)
    close(forward(model(), TOKENS), whole)
    close(jax.vmap(run, in_axes=(None, 0))(model(), TOKENS), whole)
    close(run(model(), TOKENS[0]), whole[0])
    close(run(model(), TOKENS[:, None])[:, 0], whole)


@pytest.mark.parametrize("name", ["everything", "qwen2/tied"])
def test_every_parameter_has_a_finite_gradient_that_is_not_zero(name: str):
    def loss(model: Llama) -> jax.Array:
        return -jnp.mean(jax.nn.log_softmax(forward(model, TOKENS))[..., 3])

    gradients = jax.jit(jax.grad(loss))(model() if name == "everything" else case_model(name))
    assert isinstance(gradients, Llama)
    for path, gradient in jax.tree.leaves_with_path(gradients):
        assert np.isfinite(gradient).all(), jax.tree_util.keystr(path)
        assert np.abs(gradient).max() > 1e-6, jax.tree_util.keystr(path)


def test_a_later_token_never_changes_earlier_logits():
    changed = TOKENS.copy()
    changed[:, 6] += 1
    before, after = run(model(), TOKENS), run(model(), changed)
    np.testing.assert_array_equal(after[:, :6], before[:, :6])
    assert np.abs(after[:, 6:] - before[:, 6:]).max(axis=-1).min() > 1e-3


def test_positions_count_from_zero_by_default_and_only_their_distance_matters():
    positions = np.broadcast_to(np.arange(11, dtype=np.float32), TOKENS.shape)
    plain = run(model(), TOKENS)
    np.testing.assert_array_equal(run(model(), TOKENS, positions), plain)
    np.testing.assert_allclose(run(model(), TOKENS, positions + 50), plain, atol=2e-3)
    assert np.abs(run(model(), TOKENS, positions * 2) - plain).max() > 0.1


def test_bfloat16_weights_give_float32_logits_near_those_of_float32():
    rough = jax.tree.map(lambda x: x.astype(jnp.bfloat16), model())
    assert rough.dtype == jnp.bfloat16
    hidden, kept = decode_stack(rough, embed(rough, TOKENS), attend, {"weight": jnp.ones(3)})
    assert hidden.dtype == kept["k"].dtype == jnp.bfloat16
    logits, exact = run(rough, TOKENS), run(model(), TOKENS)
    assert logits.dtype == jnp.float32
    assert np.corrcoef(logits.ravel(), exact.ravel())[0, 1] > 0.995


def test_the_head_is_the_embedding_when_tied():
    tied = case_model("qwen2/tied")
    assert tied.head is None
    hidden = jax.random.normal(jax.random.key(0), (5, 48))
    normed = hidden / np.sqrt(np.mean(hidden**2, axis=-1, keepdims=True) + 1e-5)
    expected = (tied.norm[...] * normed) @ tied.embed[...].T
    np.testing.assert_allclose(unembed(tied, hidden), expected, rtol=1e-4, atol=1e-4)


# Parameters


def test_init_is_abstract_under_eval_shape():
    abstract = jax.eval_shape(lambda key: init(EVERYTHING, key, jnp.bfloat16), jax.random.key(0))
    assert isinstance(abstract, Llama)
    assert abstract.config == EVERYTHING
    leaves = jax.tree.leaves(abstract)
    assert sorted(leaf.shape for leaf in leaves) == sorted(parameter_shapes(EVERYTHING).values())
    assert {leaf.dtype for leaf in leaves} == {jnp.dtype(jnp.bfloat16)}


def test_init_starts_from_ones_zeros_and_scaled_noise():
    drawn = jax.jit(functools.partial(init, EVERYTHING))(jax.random.key(0))
    np.testing.assert_array_equal(drawn.blocks.attention_norm[...], 1.0)
    np.testing.assert_array_equal(drawn.norm[...], 1.0)
    np.testing.assert_array_equal(drawn.blocks.q_bias[...], 0.0)
    np.testing.assert_allclose(np.std(drawn.blocks.gate_proj[...]), 24**-0.5, rtol=0.05)
    assert np.abs(drawn.blocks.q_proj[0] - drawn.blocks.q_proj[1]).min() > 0


def test_parts_that_the_config_lacks_are_none():
    config = dataclasses.replace(EVERYTHING, qkv_bias=False, qk_norm=False)
    plain = jax.eval_shape(functools.partial(init, config), jax.random.key(0))
    assert plain.blocks.q_bias is None
    assert plain.blocks.k_norm is None
    assert plain.blocks.o_bias is not None
