"""The folder of results survives kills, a full disk, and a second run."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pce_jax.errors import EvalError
from pce_jax.evals.rows import Row
from pce_jax.evals.store import open_results, read_results

MANIFEST = {
    "format": 1,
    "created": "today",
    "model": {"name": "m", "sha256": "0", "dtype": "float32"},
    "seed": 1,
    "chat": False,
    "degrees": [1, 2],
    "methods": ["naive"],
    "tasks": {
        "a": {
            "kind": "stub",
            "fields": {"count": 3},
            "limit": None,
            "metric": "same",
            "max_new_tokens": 4,
            "instances": None,
            "methods": {"naive": {"sink": ""}},
        }
    },
    "versions": {"jax": "1"},
    "device": {"backend": "cpu"},
}
CELL = ("a", "naive", 2)


def row(number: int, **fields: Any) -> Row:
    values: dict[str, Any] = {
        "task": "a",
        "method": "naive",
        "degree": 2,
        "id": f"i{number}",
        "metrics": {"same": 0.5},
        "nll": None,
        "scored": 0,
        "prediction": "text\u2028 with ends\n",
        "answers": ("x", "y"),
        "entropy": 1.25,
        "entropy_query": 1.5,
        "between": 0.5,
        "context_tokens": 10,
        "query_tokens": 2,
        "sink_tokens": 0,
        "segments": 2,
        "seconds": 0.1,
    }
    return Row(**(values | fields))


def changed(**fields):
    return json.loads(json.dumps(MANIFEST | fields))


def test_rows_come_back(tmp_path):
    rows = [row(1), row(2), row(1, degree=1), row(3, nll=2.5, prediction=None)]
    with open_results(tmp_path / "new/out", MANIFEST) as results:
        results.append(rows)
        results.count("a", 3)
        assert results.ids(CELL) == {"i1", "i2", "i3"}
        assert results.ids(("a", "naive", 4)) == set()
    manifest, found = read_results(tmp_path / "new/out")
    assert manifest["tasks"]["a"]["instances"] == 3
    assert found == [rows[2], rows[0], rows[1], rows[3]]


@pytest.mark.parametrize("torn", [b'{"task": "a", "met', b"\x00\x00\x00\x00\n", b'{"a": 1}\n'])
def test_a_torn_last_line_is_cut_off(tmp_path, torn, caplog):
    with open_results(tmp_path, MANIFEST) as results:
        results.append([row(1), row(2)])
    path = tmp_path / "cells/a/naive/2.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole + torn)
    assert read_results(tmp_path)[1] == [row(1), row(2)]
    with open_results(tmp_path, MANIFEST) as results:
        assert results.ids(CELL) == {"i1", "i2"}
        assert path.read_bytes() == whole
        results.append([row(3)])
    assert [r.id for r in read_results(tmp_path)[1]] == ["i1", "i2", "i3"]
    assert "torn line" in caplog.text


def test_a_malformed_line_in_the_middle_is_named(tmp_path):
    with open_results(tmp_path, MANIFEST) as results:
        results.append([row(1), row(2)])
    path = tmp_path / "cells/a/naive/2.jsonl"
    path.write_bytes(b"nonsense\n" + path.read_bytes())
    with pytest.raises(EvalError, match=r"2.jsonl, line 1: this is no row"):
        read_results(tmp_path)


@pytest.mark.parametrize("name", ["a/naive/x.jsonl", "a/naive/copy of 2.jsonl", "a/2.jsonl"])
def test_a_stray_file_among_the_cells_is_named(tmp_path, name):
    with open_results(tmp_path, MANIFEST) as results:
        results.append([row(1)])
    (tmp_path / "cells/a/naive/._2.jsonl").write_text("hidden, as some systems leave them")
    assert read_results(tmp_path)[1] == [row(1)]
    (tmp_path / "cells" / name).write_text("")
    with pytest.raises(EvalError, match=f"{name} is no cell of results.*Remove it"):
        read_results(tmp_path)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"chat": True}, "chat: false there, true now"),
        ({"model": {"name": "n", "sha256": "1", "dtype": "float32"}}, 'model sha256: "0" there'),
        ({"model": {"name": "n", "sha256": "0", "dtype": "bfloat16"}}, "model dtype"),
        ({"model": MANIFEST["model"] | {"weights": "int8"}}, "model weights"),
        ({"model": MANIFEST["model"] | {"cache": "int8"}}, 'model cache: null there, "int8" now'),
        ({"tasks": {"a": MANIFEST["tasks"]["a"] | {"fields": {"count": 4}}}}, "task a: count: 3"),
        ({"tasks": {"a": MANIFEST["tasks"]["a"] | {"limit": 4}}}, "task a: limit: null there, 4"),
        (
            {"tasks": {"a": MANIFEST["tasks"]["a"] | {"methods": {"naive": {"sink": "s"}}}}},
            'task a: method naive: sink: "" there, "s" now',
        ),
    ],
)
def test_another_config_is_refused(tmp_path, fields, says):
    with open_results(tmp_path, MANIFEST):
        pass
    with pytest.raises(EvalError) as error, open_results(tmp_path, changed(**fields)):
        pass
    assert says in str(error.value)


def test_more_tasks_methods_and_degrees_may_join(tmp_path, caplog):
    with open_results(tmp_path, MANIFEST) as results:
        results.count("a", 3)
    task = MANIFEST["tasks"]["a"]
    more = changed(
        degrees=[4],
        methods=["sel"],
        tasks={"a": task | {"methods": {"sel": {"sink": ""}}}, "b": task},
        device={"backend": "gpu"},
        created="later",
    )
    with open_results(tmp_path, more):
        pass
    manifest, _ = read_results(tmp_path)
    assert manifest["degrees"] == [1, 2, 4] and manifest["methods"] == ["naive", "sel"]
    assert list(manifest["tasks"]) == ["a", "b"] and manifest["created"] == "today"
    assert list(manifest["tasks"]["a"]["methods"]) == ["naive", "sel"]
    assert manifest["tasks"]["a"]["instances"] == 3
    assert "another device" in caplog.text


def test_cells_that_are_left_out_are_noted_across_runs(tmp_path):
    for degree in (1, 2):
        with open_results(tmp_path, changed(degrees=[degree])) as results:
            results.count("a", 3, {("naive", degree): 900 // degree})
    manifest, _ = read_results(tmp_path)
    assert manifest["tasks"]["a"]["skipped"] == {"naive/1": 900, "naive/2": 450}


def test_changed_data_are_refused(tmp_path):
    with open_results(tmp_path, MANIFEST) as results:
        results.count("a", 3)
        with pytest.raises(EvalError, match="3 instances of task 'a', which now has 4"):
            results.count("a", 4)


def test_one_run_at_a_time(tmp_path):
    with (
        open_results(tmp_path, MANIFEST),
        pytest.raises(EvalError, match=r"another run writes into .*process \d+ on"),
        open_results(tmp_path, MANIFEST),
    ):
        pass
    with open_results(tmp_path, MANIFEST):
        pass


def test_the_lock_of_a_dead_process_is_taken_over(tmp_path, caplog):
    code = (
        "import sys, os, signal; from pathlib import Path\n"
        "from pce_jax.evals.store import open_results\n"
        "from evals.test_store import MANIFEST\n"
        "with open_results(Path(sys.argv[1]), MANIFEST):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    tests = str(Path(__file__).parents[1])
    killed = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {tests!r})\n{code}", tmp_path]
    )
    assert killed.returncode == -signal.SIGKILL
    with open_results(tmp_path, MANIFEST):
        assert "Taking over" in caplog.text and "process" in caplog.text
    caplog.clear()
    with open_results(tmp_path, MANIFEST):
        assert not caplog.text  # left in order


def test_a_full_disk_leaves_nothing_torn(tmp_path):
    with open_results(tmp_path, MANIFEST) as results:
        results.append([row(1)])
        path = tmp_path / "cells/a/naive/2.jsonl"
        whole = path.read_bytes()
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (len(whole) + 100, limits[1]))
        try:
            with pytest.raises(EvalError, match="no room left to write"):
                results.append([row(2)])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert path.read_bytes() == whole
        results.append([row(2)])
    assert len(read_results(tmp_path)[1]) == 2


def test_no_folder_of_results(tmp_path):
    with pytest.raises(EvalError, match=r"no manifest.json"):
        read_results(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(EvalError, match="--out"), open_results(tmp_path / "file/out", MANIFEST):
        pass
    (tmp_path / "manifest.json").write_text('{"format": 1}')
    with pytest.raises(EvalError, match=r"is not as.*--out"), open_results(tmp_path, MANIFEST):
        pass
    (tmp_path / "manifest.json").write_text('{"format": 9}')
    with pytest.raises(EvalError, match="format 9"):
        read_results(tmp_path)
