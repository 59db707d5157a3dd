"""Language modelling as the goldens have it: context, one unsplit token, the tokens to score."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from core.goldens import load, method_of

import pce_jax as pce

# Summed nll (relative) and entropy (nats). A near-tie between segments may fall the other way.
PLAIN = {"nll": 2e-4, "entropy": 2e-3}
SELECTED = {"nll": 5e-3, "entropy": 1e-2}


def by_cache(goldens: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """Rows that differ in selection only, and so share an encoded context."""

    def key(row: dict[str, Any]) -> tuple:
        return row["sequence"], row["degree"], row["sink"]

    return [list(rows) for _, rows in itertools.groupby(sorted(goldens["rows"], key=key), key)]


def name_of(rows: list[dict[str, Any]]) -> str:
    row = rows[0]
    return f"{row['sequence']}-degree{row['degree']}-sink{row['sink_tokens']}"


def check_rows(goldens: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Every row of one context against the library."""
    first = rows[0]
    sequence = goldens["sequences"][first["sequence"]]
    cut = goldens["length"] - goldens["scored"] - 1
    model, tokenizer = load()
    sink = pce.encode_text(tokenizer, first["sink"]) if first["sink"] else []
    assert len(sink) == first["sink_tokens"]
    context = pce.split(sequence[:cut], first["degree"], sink)
    assert context.lengths[context.lengths > 0].tolist() == first["segment_lengths"]
    cache = pce.encode(model, context)
    tokens = jnp.asarray(sequence[cut:])

    scored: dict[pce.Method, pce.ScoreOutput] = {}
    for row in rows:
        method = method_of(row)
        if first["degree"] == 1 and scored:
            method = next(iter(scored))  # nothing to select from: the figures are the same
        if method not in scored:
            scored[method] = pce.score(model, cache, tokens, method, stats=True)
        out = scored[method]
        assert out.stats is not None
        bounds = SELECTED if row["top_k"] and first["degree"] > 1 else PLAIN
        label = f"{name_of(rows)} top_k={row['top_k']} {row['aggregate']}"
        _close(label, out.sum(), row["nll_sum"], rtol=bounds["nll"])
        _close(label, out.stats.mean(), row["entropy"], atol=bounds["entropy"])
        by_layer = out.stats.by_layer()
        _close(label, by_layer, row["entropy_by_layer"], atol=3 * bounds["entropy"])
        _close(label, out.nll[1:9], row["nll_first8"], atol=100 * bounds["nll"])
        print(
            f"{label}: nll {abs(out.sum() / row['nll_sum'] - 1):.1e}, "
            f"entropy {abs(out.stats.mean() - row['entropy']):.1e}, "
            f"layers {np.abs(by_layer - np.array(row['entropy_by_layer'])).max():.1e}, "
            f"first {np.abs(out.nll[1:9] - np.array(row['nll_first8'])).max():.1e}"
        )


def _close(label: str, ours: Any, theirs: Any, rtol: float = 0.0, atol: float = 0.0) -> None:
    np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=atol, err_msg=label)
