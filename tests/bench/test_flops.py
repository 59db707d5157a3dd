import jax
import jax.numpy as jnp
import pytest
from tiny_models import tiny_config

from pce_jax.bench import flops
from pce_jax.models import SHAPES, init, llama, unembed

SMOLLM2 = SHAPES["smollm2-135m"]


def test_smollm2_by_hand():
    config = SMOLLM2
    layer = 2 * 576 * 576 + 2 * 576 * 192 + 3 * 576 * 1536
    assert flops.linear_flops(config, 10) == 2 * 30 * layer * 10
    assert flops.attention_flops(config, 7) == 30 * 2 * (2 * 576 * 7)
    assert flops.causal_pairs(3) == 6
    assert flops.causal_pairs(3, before=10) == 11 + 12 + 13
    assert flops.head_flops(config, 2) == 2 * 2 * 49152 * 576
    assert flops.weight_bytes(config, 4) == 4 * config.num_parameters
    assert flops.cache_bytes(config, 8192, 4) == 2 * 30 * 192 * 8192 * 4
    half = flops.cache_bytes(config, 8192, 4) / 2
    read = flops.decode_bytes(config, 8192, 4, values=0.25)
    assert read == flops.weight_bytes(config, 4) + 1.25 * half


def test_segments_cost_less_than_the_whole():
    config = SMOLLM2
    parallel = flops.encode_flops(config, [256] * 16)
    full = flops.encode_flops(config, [4096])
    assert full - parallel == flops.attention_flops(
        config, flops.causal_pairs(4096) - 16 * flops.causal_pairs(256)
    )
    assert 0.55 < parallel / full < 0.65


def test_a_query_pass_and_an_embedding_that_is_no_head():
    config = tiny_config()
    assert flops.query_flops(config, 100, 1, logits=0) == flops.linear_flops(
        config, 1
    ) + flops.attention_flops(config, 101)
    table = config.vocab_size * config.hidden_size
    assert flops.weight_bytes(config, 2) == 2 * (config.num_parameters - table)


def counted(function, *arguments):
    analysis = jax.jit(function).lower(*arguments).compile().cost_analysis()
    assert analysis is not None
    return analysis["flops"]


@pytest.mark.parametrize("qkv_bias", [False, True])
def test_against_what_xla_counts(qkv_bias):
    config = tiny_config(
        num_layers=1, hidden_size=128, intermediate_size=256, vocab_size=512, qkv_bias=qkv_bias
    )
    model, tokens = init(config, jax.random.key(0)), jnp.zeros(64, jnp.int32)
    pairs = 64 * 64  # the plain reference computes the masked half too
    ours = (
        flops.linear_flops(config, 64)
        + flops.attention_flops(config, pairs)
        + flops.head_flops(config, 64)
    )
    assert counted(llama.forward, model, tokens) == pytest.approx(ours, rel=0.06)
    hidden = jnp.zeros((64, 128))
    assert counted(unembed, model, hidden) == pytest.approx(flops.head_flops(config, 64), rel=0.06)
