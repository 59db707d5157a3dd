"""The methods that query passes and decode steps are measured with."""

import pce_jax as pce

KEPT = 2
"""Segments that selection keeps, K."""

METHODS = {
    "full": pce.METHODS["full"],
    "naive": pce.Method(),
    "HT": pce.Method(select=pce.Select(top_k=KEPT, aggregate=frozenset({"head", "token"}))),
    "per head": pce.Method(select=pce.Select(top_k=KEPT, aggregate=frozenset())),
}
"""By name: HT lets heads and tokens choose together, `per head` each for itself."""
