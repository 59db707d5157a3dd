"""Hidden numbers as the paper's code asks and scores them: pieces, prompts and scores."""

import pytest
from core.goldens import optional
from smollm2 import smollm2_path

import pce_jax as pce
from pce_jax.evals.instance import Instance
from pce_jax.evals.tasks import RecallTask, needles
from pce_jax.hub import Source, load_tokenizer

__all__ = ["smollm2_path"]


@pytest.fixture(scope="module")
def goldens():
    return optional("tasks_niah.json")


@pytest.fixture(scope="module")
def instances(goldens):
    return [
        Instance(
            id=str(number),
            items=tuple(one["context"]),
            query=one["query"],
            answers=tuple(one["answer"]),
        )
        for number, one in enumerate(goldens["instances"])
    ]


def test_prompts_and_units_are_the_same(instances):
    mine = RecallTask(name="niah", variant="multikey", size=30, limit=1).instances()[0]
    for golden in instances:
        key = golden.query.partition(" number for ")[2].partition(" mentioned ")[0]
        assert needles.Needles().query(key) == golden.query
        assert needles.cut_at_stops("".join(golden.items)) == golden.items
        assert mine.items[:3] == golden.items[:3] and len(mine.items) == len(golden.items)


def test_tokens_are_the_same_at_every_degree(goldens, instances, smollm2_path):
    tokenizer = load_tokenizer(Source("gguf", smollm2_path))
    tokens = [
        ([pce.encode_text(tokenizer, item) for item in one.items],
         pce.encode_text(tokenizer, one.query))
        for one in instances
    ]  # fmt: skip
    for row in goldens["rows"]:
        sink = pce.encode_text(tokenizer, row["sink"]) if row["sink"] else []
        for (items, query), expected in zip(tokens, row["answers"], strict=True):
            context = pce.from_segments(pce.group(items, row["degree"]), sink)
            assert context.lengths.sum() + len(sink) == expected["context_tokens"]
            assert len(query) == expected["query_tokens"]


def test_scores_are_the_same(goldens, instances):
    task = RecallTask(name="niah", variant="multikey")
    for row in goldens["rows"]:
        scores = []
        for one, expected in zip(instances, row["answers"], strict=True):
            last_line = one.query.rpartition("\n")[2]
            assert expected["output"].startswith(last_line)
            scores.append(task.score(one, expected["output"].removeprefix(last_line))[task.metric])
            assert scores[-1] == expected["score"]
        assert sum(scores) / len(scores) * 100 == pytest.approx(row["score"], abs=0.01)
