"""Finding numbers in a text: the published code's answers and entropies, step by step.

Items are tokenised one by one and dealt to segments of unequal lengths, which the default positions
stretch. An instance's entropy averages the query pass and each decode step as equal units; here the
first token comes with the query pass, so thirteen passes are the query and twelve steps.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.goldens import load, method_of, optional

import pce_jax as pce

pytestmark = pytest.mark.slow
GOLDENS = optional("tasks_niah.json")
STEPS = GOLDENS["max_new_tokens"]


def name_of(row: dict[str, Any]) -> str:
    return f"degree{row['degree']}-{'sink' if row['sink'] else 'none'}-top{row['top_k']}"


@pytest.mark.parametrize("row", GOLDENS["rows"], ids=name_of)
def test_answers_and_entropies(row: dict[str, Any], smollm2_path: Path):
    model, tokenizer = load()
    sink = pce.encode_text(tokenizer, row["sink"]) if row["sink"] else []
    method = method_of(row)
    for number in (0, 3):
        instance, expected = GOLDENS["instances"][number], row["answers"][number]
        items = [pce.encode_text(tokenizer, text) for text in instance["context"]]
        context = pce.from_segments(pce.group(items, row["degree"]), sink)
        query = pce.encode_text(tokenizer, instance["query"])
        assert context.lengths.sum() + len(sink) == expected["context_tokens"]
        assert len(query) == expected["query_tokens"]
        cache = pce.encode(model, context, method)
        out = pce.generate(
            model, cache, query, method, max_new_tokens=STEPS + 1, stop_tokens=(), stats=True
        )
        text = tokenizer.decode(out.tokens[0, :STEPS], skip_special_tokens=True)
        assert instance["query"].rpartition("\n")[2] + text == expected["output"]
        assert out.entropy is not None
        np.testing.assert_allclose(out.entropy.mean(), expected["entropy"], atol=2e-3)
