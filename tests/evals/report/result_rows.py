"""Rows and results folders made up for tests of reports."""

import dataclasses
import json

from pce_jax.evals.rows import Row


def row(task, method, degree, number, *, score=0.0, nll=None, scored=10, entropy=3.0, **fields):
    """A row of an answer, or, with `nll`, of a passage."""
    made = Row(
        task=task,
        method=method,
        degree=degree,
        id=f"{task}/{number}",
        metrics={} if nll is not None else {"exact_match": score, "f1": score},
        nll=nll,
        scored=0 if nll is None else scored,
        prediction=None,
        answers=(),
        entropy=entropy,
        entropy_query=entropy,
        between=0.5,
        context_tokens=100,
        query_tokens=10,
        sink_tokens=0,
        segments=degree,
        seconds=0.5,
    )
    return dataclasses.replace(made, **fields)


def answers(task="qa", methods=("naive", "sink"), degrees=(1, 2, 4), count=8):
    """Naive loses an answer with each doubling, other methods with every second one."""
    return [
        row(
            task,
            method,
            degree,
            number,
            score=float(number >= lost(method, degree)),
            entropy=3 + 0.4 * (degree.bit_length() - 1) / (1 + (method != "naive")) + number / 100,
        )
        for method in methods
        for degree in degrees
        for number in range(count)
    ]


def lost(method, degree):
    """Answers that a method gets wrong."""
    doublings = degree.bit_length() - 1
    return 2 * doublings if method == "naive" else doublings


def passages(task="books", methods=("naive", "sink"), degrees=(1, 2, 4), count=5):
    """The log perplexity of naive is 2 + 0.2 per doubling, that of other methods rises half."""
    return [
        row(
            task,
            method,
            degree,
            number,
            nll=10 * (2 + 0.1 * lost(method, degree) + number / 10),
            entropy=3 + 0.2 * lost(method, degree) + number / 100,
        )
        for method in methods
        for degree in degrees
        for number in range(count)
    ]


def write_folder(folder, rows, **changes):
    """What `pce-jax eval` leaves behind."""
    tasks = list(dict.fromkeys(row.task for row in rows))
    methods = list(dict.fromkeys(row.method for row in rows))
    is_lm = {row.task: row.nll is not None for row in rows}
    manifest = {
        "format": 1,
        "created": "2025-01-01T00:00:00+00:00",
        "model": {"name": "some/model", "sha256": "0" * 64, "dtype": "float32"},
        "seed": 42,
        "chat": False,
        "degrees": sorted({row.degree for row in rows}),
        "methods": methods,
        "tasks": {
            task: {
                "kind": "lm" if is_lm[task] else "rag",
                "metric": "nll" if is_lm[task] else "exact_match",
                "instances": len({row.id for row in rows if row.task == task}),
                "methods": {method: {"full": method == "full"} for method in methods},
            }
            for task in tasks
        },
        "versions": {"python": "3.11"},
        "device": {"backend": "cpu", "kind": "cpu", "count": 1},
    } | changes
    folder.mkdir(parents=True)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    for one in rows:
        path = folder / "cells" / one.task / one.method / f"{one.degree}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(dataclasses.asdict(one)) + "\n")
    return folder
