"""The paper's account of the cause, seen in the default model (section 5)."""

from pathlib import Path

import numpy as np
import pytest

import pce_jax as pce
from pce_jax.analysis import analyze_query, analyze_segments
from pce_jax.demo.text import topic_windows

SEGMENTS, EACH, QUERY = 4, 64, 32


@pytest.mark.slow
def test_segments_of_their_own_have_small_keys_and_logits(smollm2_path: Path):
    model, tokenizer = pce.load(str(smollm2_path))
    tokens = topic_windows(tokenizer, 1, SEGMENTS * EACH + QUERY)[0].tokens
    context = pce.split(tokens[:-QUERY], SEGMENTS)
    found = {}
    for name in ("naive", "full"):
        method = pce.METHODS[name]
        cache = pce.encode(model, context, method)
        query = analyze_query(model, cache, np.asarray(tokens[-QUERY:]), method)
        own = analyze_segments(model, context, method).segments
        shape = (*own.k_norm.shape[:2], -1)
        keys = np.asarray(own.k_norm).reshape(shape)[:, :, np.asarray(own.valid).ravel()]
        found[name] = query, keys
    naive, full = (found[name] for name in ("naive", "full"))
    first = slice(EACH, None, EACH)  # of every segment but the first, which full attention shares
    assert naive[1][..., first].mean() < 0.6 * full[1][..., first].mean()
    np.testing.assert_allclose(naive[1][..., :EACH], full[1][..., :EACH], rtol=2e-2, atol=2e-2)
    assert naive[1].mean() < full[1].mean()
    assert naive[0].logit.mean() < full[0].logit.mean() - 0.5
    assert naive[0].entropy.total.mean() > full[0].entropy.total.mean() + 0.4
    assert naive[0].entropy.between.mean() > full[0].entropy.between.mean()
