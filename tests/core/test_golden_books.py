"""Language modelling on two novels, where their tokens are at hand."""

from pathlib import Path
from typing import Any

import pytest
from core.goldens import optional
from core.lm_rows import by_cache, check_rows, name_of

pytestmark = pytest.mark.slow
GOLDENS = optional("lm_books.json")


@pytest.mark.parametrize("rows", by_cache(GOLDENS), ids=name_of)
def test_rows(rows: list[dict[str, Any]], smollm2_path: Path):
    check_rows(GOLDENS, rows)
