"""Contexts side by side give what each gives alone."""

from typing import Any

import jax
import numpy as np
import pytest
from tiny_models import tiny_config

import pce_jax as pce
from pce_jax.errors import LayoutError
from pce_jax.models import init

METHODS = [
    pce.Method(),
    pytest.param(pce.Method(full=True), marks=pytest.mark.slow),
    pytest.param(pce.Method(sink="x", select=pce.Select(top_k=1)), marks=pytest.mark.slow),
    pytest.param(
        pce.Method(select=pce.Select(top_k=1, aggregate=frozenset({"layer", "head"}))),
        marks=pytest.mark.slow,
    ),
]
CONTEXTS = [[[5, 6, 7], [8, 9]], [[3, 4], [10], [11, 12, 13, 14]]]
QUERIES = [[20, 21, 22], [23, 24, 25, 26, 27]]


@pytest.fixture(scope="module")
def model():
    return init(tiny_config(), jax.random.key(0))


@pytest.mark.parametrize("method", METHODS)
def test_side_by_side_is_one_by_one(model, method):
    sink = [1, 2] if method.sink else []
    cache = pce.encode_many(model, pce.stack(CONTEXTS, sink, segments=4, tokens=8), method)
    texts = np.zeros((2, 8), np.int32)
    for row, query in zip(texts, QUERIES, strict=True):
        row[: len(query)] = query
    scores = pce.score_many(model, cache, texts, method, lengths=np.array([3, 5]))
    several = pce.generate(
        model, cache, QUERIES, method, max_new_tokens=5, stop_tokens=(), stats=True, pad_to=8
    )
    assert several.entropy is not None and several.between is not None
    for number, query in enumerate(QUERIES):
        alone = pce.encode(model, pce.from_segments(CONTEXTS[number], sink), method)
        score = pce.score(model, alone, query, method, stats=True)
        assert score.stats is not None
        np.testing.assert_allclose(scores.nll[number], score.sum(), rtol=1e-5)
        np.testing.assert_allclose(scores.entropy[number], score.stats.mean(), atol=1e-5)
        np.testing.assert_allclose(
            scores.between[number], score.stats.entropy.between.mean(), atol=1e-5
        )
        one: Any = pce.generate(
            model, alone, query, method, max_new_tokens=5, stop_tokens=(), stats=True
        )
        assert one.sequences()[0] == several.sequences()[number]
        np.testing.assert_allclose(several.entropy[number], one.entropy[0], atol=1e-5)
        np.testing.assert_allclose(several.between[number], one.between[0], atol=1e-5)
        np.testing.assert_allclose(several.between[number, 0], scores.between[number], atol=1e-5)


def test_what_does_not_fit(model):
    cache = pce.encode_many(model, pce.stack(CONTEXTS))
    with pytest.raises(LayoutError, match="3 queries over 2 contexts"):
        pce.generate(model, cache, [[1], [2], [3]])
    with pytest.raises(LayoutError, match="no segments"):
        pce.stack([[[1]], []])
    with pytest.raises(LayoutError, match="positions"):
        pce.encode_many(model, pce.stack([[[1]], [[1] * 5000]]))
    with pytest.raises(pce.PceError, match="sink"):
        pce.encode_many(model, pce.stack(CONTEXTS), pce.METHODS["sink"])
