"""Language modelling on the model's own text: the published code's likelihoods and entropies."""

import json
from pathlib import Path
from typing import Any

import pytest
from core.goldens import FIXTURES
from core.lm_rows import by_cache, check_rows, name_of

GOLDENS = json.loads((FIXTURES / "golden_lm_self.json").read_text())
CASES = by_cache(GOLDENS)
SMOKE = "soil-degree4-sink1"
OTHER = "harbour-degree16-sink1"


def test_all_figures_are_there():
    assert sum(map(len, CASES)) == 72
    assert len(CASES) == 24


def parameter(rows: list[dict[str, Any]]) -> Any:
    """Slow, but for one text and one line of the other."""
    name, marks = name_of(rows), [pytest.mark.smoke] if name_of(rows) == SMOKE else []
    if not name.startswith("soil") and name != OTHER:
        marks.append(pytest.mark.slow)
    return pytest.param(rows, id=name, marks=marks)


@pytest.mark.parametrize("rows", [parameter(rows) for rows in CASES])
def test_rows(rows: list[dict[str, Any]], smollm2_path: Path):
    check_rows(GOLDENS, rows)
