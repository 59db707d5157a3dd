"""Figures of the paper's published code, and running the same through the library."""

import functools
import json
import os
from pathlib import Path
from typing import Any

import pytest

import pce_jax as pce

FIXTURES = Path(__file__).parents[1] / "fixtures"
ELSEWHERE = Path(
    os.environ.get("PCE_JAX_GOLDENS") or Path(__file__).parents[2].parent / "shared" / "golden"
)
DIMS = {"head": "head", "seq": "token", "token": "token", "layer": "layer"}  # their words, ours


def optional(name: str) -> dict[str, Any]:
    """Goldens on texts that cannot be part of this repository; skips without them."""
    path = ELSEWHERE / name
    if not path.is_file():
        pytest.skip(
            f"{name} is not there (PCE_JAX_GOLDENS names its folder)", allow_module_level=True
        )
    return json.loads(path.read_text())


def method_of(row: dict[str, Any]) -> pce.Method:
    if not row["top_k"]:
        return pce.Method()
    dims: Any = frozenset(DIMS[dim] for dim in row["aggregate"])
    return pce.Method(select=pce.Select(top_k=row["top_k"], aggregate=dims))


@functools.cache
def load() -> tuple[Any, Any]:
    return pce.load("smollm2-135m", dtype="float32")
