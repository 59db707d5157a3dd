"""Weights in int8: a quarter of the memory, and nearly the same numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_config

import pce_jax as pce
from pce_jax.demo.text import topic_windows
from pce_jax.errors import WeightsError
from pce_jax.models import Llama, forward, init, save_folder, to_int8

TOKENS = jnp.arange(24) % 60


def bytes_of(model: Llama) -> int:
    return sum(leaf.nbytes for leaf in jax.tree.leaves(model))


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "head of its own"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_stay_close(tied: bool, dtype: str):
    config = tiny_config(tie_embeddings=tied, qkv_bias=True, qk_norm=True, hidden_size=128)
    model = init(config, jax.random.key(0), jnp.dtype(dtype))
    small = to_int8(model)
    assert small.dtype == model.dtype
    assert bytes_of(small) < bytes_of(model) * (0.3 if dtype == "float32" else 0.6)
    expected = forward(model, TOKENS)
    error = jnp.linalg.norm(forward(small, TOKENS) - expected) / jnp.linalg.norm(expected)
    assert 0 < error < 0.03


def test_every_pass_takes_such_a_model():
    model = to_int8(init(tiny_config(), jax.random.key(0)))
    context = pce.from_segments([[5, 6, 7], [8, 9]])
    cache = jax.jit(pce.encode)(model, context)
    assert np.isfinite(pce.score(model, cache, [1, 2, 3]).sum())
    assert pce.generate(model, cache, [1, 2], max_new_tokens=2).tokens.shape == (1, 2)


def test_it_is_neither_made_twice_nor_saved(tmp_path):
    model = to_int8(init(tiny_config(), jax.random.key(0)))
    with pytest.raises(WeightsError, match="int8 already"):
        to_int8(model)
    with pytest.raises(WeightsError, match="dtype"):
        save_folder(model, tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


@pytest.mark.slow
def test_perplexity_of_smollm2_stays_within_a_percent(smollm2_path):
    model, tokenizer = pce.load(str(smollm2_path))
    small = to_int8(model)

    def nll(model: Llama) -> float:
        total = 0.0
        for window in topic_windows(tokenizer, 3, 512):
            cache = pce.encode(model, pce.split(window.tokens[:383], 4))
            total += float(pce.score(model, cache, window.tokens[383:]).sum())
        return total / (3 * 128)

    assert abs(nll(small) - nll(model)) < 0.01
