"""`pce-jax eval` with what it cannot use: status 2, what is wrong and where, and no traceback."""

import gzip
import json
import resource

import pytest
from evals.stub import write_config

from pce_jax.cli import main
from pce_jax.evals import store
from pce_jax.evals.store import read_results

QUESTION = '{"question": "q", "answers": ["a"], "ctxs": [{"title": "t", "text": "a"}]}\n'
LABELS = "NUM:date when ?\nHUM:ind who ?\n"
SPLITS = {"train": [["a", "x"], ["b", "y"]], "oos_train": [], "oos_val": []}


@pytest.fixture
def fails(capsys):
    """Run the command, and return what it says of its failure."""

    def fails(*args: object) -> str:
        assert main(["eval", *map(str, args)]) == 2
        said = capsys.readouterr().err
        assert "error: " in said and "Traceback" not in said
        return said

    return fails


@pytest.mark.parametrize(
    ("task", "data", "says"),
    [
        ({"kind": "lm", "files": ["data.jsonl"]}, '{"text": "a"}\n{"text"\n', ", line 2: malf"),
        ({"kind": "lm", "files": ["data.jsonl"]}, '{"txt": "a"}', 'line 1: there is no field "te'),
        (
            {"kind": "lm", "files": ["data.jsonl.gz"]},
            gzip.compress(b'{"text": "a"}', mtime=0)[:-9],
            "is no whole gzip file",
        ),
        ({"kind": "rag", "file": "data.jsonl"}, QUESTION + "[1]\n", "line 2: a JSON object"),
        ({"kind": "rag", "file": "data.json"}, "[]", "has no questions"),
        (
            {"kind": "recall", "variant": "kv", "file": "data.jsonl"},
            '{"key": "k", "ordered_kv_records": [["k", "v"]]}',
            'line 1: there is no field "value"',
        ),
        (
            {"kind": "recall", "variant": "uuid", "file": "data.jsonl"},
            '{"input": "x", "outputs": ["y"]}',
            'line 1: "input" does not end in a question',
        ),
        ({"kind": "icl", "dataset": "trec_fine"}, LABELS + "NUM:dat when ?", "nearest class is N"),
        ({"kind": "icl", "dataset": "trec_fine"}, "NUM:date when ?\n" * 3, "has one class only"),
        ({"kind": "icl", "dataset": "banking77"}, "text,category\na,b\nc\n", ", line 3: the hea"),
        ({"kind": "icl", "dataset": "banking77"}, "text,category\n", "data has no rows"),
        (
            {"kind": "icl", "dataset": "clinc150", "test": ""},
            json.dumps(SPLITS | {"val": [["a", "x"], ["b"]]}),
            ", val 2: a text and an intent are wanted",
        ),
        (
            {"kind": "icl", "dataset": "nlu", "test": ""},
            "scenario;intent;answer_annotation\na;b;c\na;b\n",
            ", line 3: the header has 3 fields",
        ),
    ],
)
def test_malformed_data_are_named(fails, tiny, tmp_path, task, data, says):
    if task["kind"] == "icl":
        task = {"train": "data", "test": "data"} | task
    name = task.get("file") or task.get("train") or task["files"][0]
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    said = fails(write_config(tmp_path, tiny, task={"t": task}))
    assert str(tmp_path / name) in said and says in said


@pytest.mark.usefixtures("stub")
def test_typos_are_met_with_the_nearest_name(fails, tiny, tmp_path):
    path = write_config(tmp_path, tiny)
    assert "no task 'aks'. Did you mean 'ask'?" in fails(path, "--tasks", "aks")
    assert "no method 'skin'. Did you mean 'sink'?" in fails(path, "--methods", "skin")
    path = write_config(tmp_path, tiny, task={"ask": {"kind": "recal"}})
    assert "[task.ask]: there is no kind 'recal'. Did you mean 'recall'?" in fails(path)


@pytest.mark.usefixtures("stub", "pretend")
def test_results_of_another_config_are_refused(fails, tiny, tmp_path):
    assert main(["eval", str(write_config(tmp_path, tiny))]) == 0
    before = read_results(tmp_path / "results")
    task = {"ask": {"kind": "stub", "count": 5}}
    said = fails(write_config(tmp_path, tiny, task=task), "--chat", "--dtype", "bfloat16")
    for field in ("task ask: count: 6 there, 5 now", "chat: false there, true now", "model dtype"):
        assert field in said
    assert "Use another folder (--out)" in said
    assert read_results(tmp_path / "results") == before


@pytest.mark.usefixtures("stub", "pretend")
def test_a_full_disk_ends_the_run_and_the_same_command_goes_on(fails, tiny, tmp_path, monkeypatch):
    path = write_config(tmp_path, tiny, task={"ask": {"kind": "stub"}})
    append, limits = store._append, resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_small_disk(*args):
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500, limits[1]))
        try:
            append(*args)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

    with monkeypatch.context() as patch:
        patch.setattr(store, "_append", on_a_small_disk)
        said = fails(path)
    assert "cells/ask/naive/1.jsonl: there is no room left" in said
    assert "Make room, and the same command goes on" in said
    there = read_results(tmp_path / "results")[1]
    assert 0 < len(there) < 6  # what came before it, whole
    assert main(["eval", str(path)]) == 0
    rows = read_results(tmp_path / "results")[1]
    assert len(rows) == len({(row.method, row.degree, row.id) for row in rows}) == 2 * 2 * 6
