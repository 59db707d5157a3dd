"""Evaluations of the published code's retrieval task: the same answers, scores and entropies.

Its instances go through a data file, a config and the evaluator, batched and padded, as they do in
`pce-jax eval`. What is compared are the rows in the folder of results.
"""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from core.goldens import load, method_of, optional
from evals.stub import config_of
from evals.tasks.helpers import write_jsonl
from smollm2 import smollm2_path

from pce_jax.evals.config import EvalConfig
from pce_jax.evals.instance import Instance
from pce_jax.evals.rows import Row
from pce_jax.evals.run import evaluate
from pce_jax.evals.store import read_results
from pce_jax.evals.tasks.answers import with_last_line

__all__ = ["smollm2_path"]
GOLDENS = optional("tasks_niah.json")
# In nats, of instances with the same answer. A near-tie between segments may fall the other way.
PLAIN, SELECTED = 2e-4, 1e-2
SLOW = (pytest.mark.slow, pytest.mark.timeout(900))  # a minute or two on two idle cores


def case(degree: int, sink: bool, limit: int | None = None) -> Any:
    name = f"degree{degree}-{'sink' if sink else 'naive'}"
    if limit:
        return pytest.param(degree, sink, limit, id=f"{name}-{limit}")
    return pytest.param(degree, sink, None, id=name, marks=SLOW)


ALL = [case(degree, sink) for degree in (1, 2, 4) for sink in (False, True)]


@pytest.mark.parametrize("degree, sink, limit", [case(4, True, limit=2), *ALL])
def test_rows_are_those_of_the_published_code(
    degree: int, sink: bool, limit: int | None, smollm2_path: Path, tmp_path: Path
):
    goldens = goldens_of(degree, sink)
    config = config_for(
        tmp_path, smollm2_path, degrees=[degree], methods=list(goldens), limit=limit
    )
    (spec,) = config.tasks
    task: Any = spec.make()
    model, tokenizer = load()
    instances = {one.id: one for one in task.instances(tokenizer)}
    assert len(instances) == (limit or 24)
    for id_, mine in instances.items():
        golden = GOLDENS["instances"][int(id_)]
        assert (list(mine.items), mine.query) == (golden["context"], golden["query"])

    evaluate(model, tokenizer, config, "hash")
    results = read_results(config.out)[1]
    for method in config.methods:
        golden = goldens[method.name]
        same = dataclasses.replace(method_of(golden), sink=golden["sink"])
        assert spec.method(method, task) == same
        rows = [row for row in results if row.method == method.name]
        assert {row.id for row in rows} == instances.keys() and len(rows) == len(instances)
        check(rows, instances, golden)


def goldens_of(degree: int, sink: bool) -> dict[str, dict[str, Any]]:
    """By method: those that share their encodings. At degree 1 there is nothing to select."""
    rows = [r for r in GOLDENS["rows"] if r["degree"] == degree and bool(r["sink"]) == sink]
    plain, selecting = ("sink", "sink+sel") if sink else ("naive", "sel")
    return {selecting if row["top_k"] else plain: row for row in rows}


def config_for(folder: Path, model: Path, **changes: Any) -> EvalConfig:
    """A config of the instances, from a file in HELMET's form."""
    rows = [
        {
            "context": "".join(one["context"]),
            "query": one["query"].partition(" number for ")[2].partition(" mentioned ")[0],
            "answer": one["answer"],
        }
        for one in GOLDENS["instances"]
    ]
    task = {
        "kind": "recall",
        "variant": "multikey",
        "file": write_jsonl(folder / "niah.jsonl", rows),
        "max_new_tokens": GOLDENS["max_new_tokens"],
    }
    fixed: dict[str, Any] = {
        "dtype": "float32",
        "sink": "paper",
        "batch": 5,  # so that the last of 24 is filled up
        "task": {"niah": task},
    }
    return config_of(folder, model, **fixed, **changes)


def check(rows: list[Row], instances: dict[str, Instance], golden: dict[str, Any]) -> None:
    """The rows of a cell against its golden."""
    label = f"{rows[0].method} at degree {rows[0].degree}"
    ours = theirs = 0.0
    apart = []  # entropies of the same answers
    for row in rows:
        expected = golden["answers"][int(row.id)]
        assert row.context_tokens + row.sink_tokens == expected["context_tokens"]
        assert row.query_tokens == expected["query_tokens"]
        ours, theirs = ours + row.metrics["contained"], theirs + expected["score"]
        if with_last_line(instances[row.id], str(row.prediction)) == expected["output"]:
            apart.append(abs(row.entropy - expected["entropy"]))
    print(
        f"{label}: {len(apart)} of {len(rows)} answers are the same, scores {ours:g} and "
        f"{theirs:g}, entropies up to {max(apart, default=0):.1e} apart"
    )
    assert len(apart) >= 0.95 * len(rows), label
    assert abs(ours - theirs) <= 1, label
    assert max(apart) <= (SELECTED if golden["top_k"] else PLAIN), label
