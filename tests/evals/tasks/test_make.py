import dataclasses

import pytest

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Task
from pce_jax.evals.tasks import TASKS, RagTask, make_task

SMALLEST = {
    "lm": {"files": ["a.txt"]},
    "icl": {"dataset": "nlu", "train": "a.csv"},
    "rag": {"file": "a.jsonl"},
    "recall": {"variant": "kv"},
}


@pytest.mark.parametrize("kind", TASKS)
def test_every_kind(kind):
    task: Task = make_task(kind, name="x", **SMALLEST[kind])
    assert isinstance(task, TASKS[kind]) and task.name == "x"
    assert dataclasses.is_dataclass(task) and hash(task)
    assert task.metric and task.max_new_tokens >= 0
    cls = type(task)
    assert cls.sink_text.endswith("\n\n")  # type: ignore[attr-defined]
    assert cls.aggregate == ({"head", "token"} if kind != "lm" else set())  # type: ignore[attr-defined]
    names = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    assert set(cls.path_fields) <= names  # type: ignore[attr-defined]
    assert all(f"\n        {name}: " in (cls.__doc__ or "") for name in names)


def test_whole_numbers_stand_for_fractions():
    assert make_task("rag", name="x", file="a", popularity=3) == RagTask(
        name="x", file="a", popularity=3.0
    )


@pytest.mark.parametrize(
    ("kind", "fields", "problem"),
    [
        ("rga", {}, "no kind of task 'rga'. Did you mean 'rag'"),
        ("rag", {"fil": "a"}, "no key 'fil'. Did you mean 'file'"),
        ("rag", {}, r"task 'x' \(rag\): file must be given"),
        ("rag", {"file": 3}, "file must be text, it is 3"),
        ("rag", {"file": "a", "limit": "all"}, "limit must be a whole number, it is 'all'"),
        ("rag", {"file": "a", "limit": True}, "limit must be a whole number"),
        ("lm", {"files": "a.txt"}, "files must be a list, each text"),
        ("recall", {"variant": "multikeys"}, "variant must be one of 'kv', .*it is 'multikeys'"),
        ("recall", {"variant": "kv", "position": "0"}, "position must be a number"),
    ],
)
def test_what_cannot_work_is_said(kind, fields, problem):
    with pytest.raises(SettingsError, match=problem):
        make_task(kind, name="x", **fields)
