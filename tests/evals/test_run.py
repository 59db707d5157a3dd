"""Runs: numbers equal those of the library's functions, programs are few, nothing is done twice."""

import dataclasses
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from evals.stub import StubTask, config_of, write_config

import pce_jax as pce
from pce_jax import programs
from pce_jax.cli import main
from pce_jax.errors import EvalError, PceError
from pce_jax.evals.prepare import prepare, shapes
from pce_jax.evals.run import evaluate, plan
from pce_jax.evals.store import read_results
from pce_jax.evals.tasks import TASKS

pytestmark = pytest.mark.usefixtures("stub")
METHODS = ["naive", "sink+sel"]


def rows_of(folder: Path) -> dict[Any, Any]:
    rows = read_results(folder)[1]
    found = {(row.task, row.method, row.degree, row.id): row for row in rows}
    assert len(found) == len(rows)  # none twice
    return found


def done(loaded, config):
    model, tokenizer = loaded
    summary = evaluate(model, tokenizer, config, "hash")
    return summary, rows_of(config.out)


@pytest.fixture(scope="module")
def ran(loaded, tiny, tmp_path_factory):
    folder, cells = tmp_path_factory.mktemp("ran"), []
    TASKS["stub"] = StubTask
    try:
        config = config_of(folder, tiny, methods=METHODS, batch=6)
        model, tokenizer = loaded
        summary = evaluate(model, tokenizer, config, "hash", on_cell=cells.append)
    finally:
        del TASKS["stub"]
    return summary, rows_of(config.out), cells


def test_every_cell_has_every_instance(ran):
    summary, rows, cells = ran
    assert len(rows) == summary.rows == 2 * 2 * (6 + 3)
    assert len(cells) == 2 * 2 * 2
    ppl = next(c for c in cells if (c.task, c.method, c.degree) == ("read", "naive", 2))
    some = [row for key, row in rows.items() if key[:3] == ("read", "naive", 2)]
    assert ppl.metric == "ppl" and ppl.instances == 3
    assert ppl.score == pytest.approx(math.exp(sum(row.nll for row in some) / (8 * 3)))


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("degree", [1, 2])
def test_numbers_are_those_of_the_library(ran, loaded, name, degree):
    (_, rows, _), (model, tokenizer) = ran, loaded
    method = pce.METHODS[name]
    sink = pce.encode_text(tokenizer, method.sink) if method.sink else []
    question = StubTask(name="ask").instances(tokenizer)[4]
    items = [pce.encode_text(tokenizer, item) for item in question.items]
    context = pce.from_segments(pce.group(items, degree), sink)
    cache = pce.encode(model, context, method)
    query = pce.encode_text(tokenizer, question.query)
    out: Any = pce.generate(
        model, cache, query, method, max_new_tokens=5, stop_tokens=(), stats=True
    )
    row = rows["ask", name, degree, "i4"]
    assert row.prediction == tokenizer.decode(out.tokens[0, :4], skip_special_tokens=True)
    assert row.metrics == {"same": 0.0} and row.nll is None and row.answers == ("egon",)
    np.testing.assert_allclose(row.entropy, out.entropy.mean(), atol=1e-4)
    np.testing.assert_allclose(row.entropy_query, out.entropy[0, 0], atol=1e-4)
    np.testing.assert_allclose(row.between, out.between[0, 0], atol=1e-4)
    assert (row.context_tokens, row.query_tokens) == (sum(map(len, items)), len(query))
    assert (row.sink_tokens, row.segments) == (len(sink), degree)

    passage = StubTask(name="read", scored=8).instances(tokenizer)[1]
    if method.select is not None:  # the stub aggregates over heads and tokens
        assert method.select.aggregate == StubTask.aggregate
    cache = pce.encode(model, pce.split(passage.tokens[:31], degree, sink), method)
    score: Any = pce.score(model, cache, passage.tokens[31:], method, stats=True)
    row = rows["read", name, degree, "p1"]
    np.testing.assert_allclose(row.nll, score.sum(), rtol=1e-5)
    np.testing.assert_allclose(row.entropy, score.stats.mean(), atol=1e-4)
    np.testing.assert_allclose(row.between, score.stats.entropy.between.mean(), atol=1e-4)
    assert row.prediction is None and row.scored == 8 and row.context_tokens == 31


def test_batches_and_turns_change_nothing(ran, loaded, tiny, tmp_path):
    config = config_of(tmp_path, tiny, batch=4, at_once=1, degrees=[2], methods=["sink+sel"])
    _, rows = done(loaded, config)
    for key, row in rows.items():
        other = ran[1][key]
        assert row.prediction == other.prediction
        np.testing.assert_allclose(row.entropy, other.entropy, atol=1e-4)
        np.testing.assert_allclose(row.nll or 0, other.nll or 0, atol=1e-4)


def test_programs_do_not_grow_with_instances(loaded, tiny, tmp_path):
    compiled = []
    for count in (6, 30):
        jax.clear_caches()
        config = config_of(
            tmp_path / str(count),
            tiny,
            degrees=[2],
            batch=4,
            task={"ask": {"kind": "stub", "count": count}},
        )
        summary, rows = done(loaded, config)
        assert len(rows) == 2 * count
        compiled.append(summary.programs)
    assert compiled[0] == compiled[1] == 2 * 2 * 3  # methods x shapes x (encode, start, go on)


def test_a_second_run_does_nothing(loaded, tiny, tmp_path):
    config = config_of(tmp_path, tiny, degrees=[2], methods=["naive"])
    _, first = done(loaded, config)
    before = programs.count()
    summary, second = done(loaded, config)
    assert summary.rows == 0 and programs.count() == before
    assert first == second


def test_missing_rows_are_filled_in(loaded, tiny, tmp_path):
    config = config_of(tmp_path, tiny, degrees=[2], methods=["naive", "sel"])
    _, first = done(loaded, config)
    path = config.out / "cells/ask/sel/2.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[1:3]) + lines[4][:30])
    summary, second = done(loaded, config)
    assert summary.rows == 4
    for key, row in first.items():
        assert second[key].prediction == row.prediction
        assert second[key].entropy == pytest.approx(row.entropy, abs=1e-4)


def test_another_config_is_refused(loaded, tiny, tmp_path):
    done(loaded, config_of(tmp_path, tiny, degrees=[2], methods=["naive"]))
    other = config_of(
        tmp_path, tiny, degrees=[2], methods=["naive"], task={"ask": {"kind": "stub", "count": 5}}
    )
    with pytest.raises(EvalError, match="task ask: count: 6 there, 5 now"):
        done(loaded, other)
    model, tokenizer = loaded
    with pytest.raises(EvalError, match="model sha256"):
        evaluate(model, tokenizer, config_of(tmp_path, tiny, methods=["naive"]), "other")


def test_full_attention_has_one_cell():
    jobs = plan({"full": pce.METHODS["full"], "naive": pce.METHODS["naive"]}, [2, 4])
    assert [(job.degree, *job.methods.values()) for job in jobs] == [
        (1, ("full",)),
        (2, ("naive",)),
        (4, ("naive",)),
    ]
    shared = plan({name: pce.METHODS[name] for name in pce.METHODS}, [1])
    assert [tuple(job.methods.values()) for job in shared] == [
        (("full", "naive", "sel"),),
        (("sink", "sink+sel"),),
    ]


def test_few_shapes():
    assert shapes([(2, 20, 5)] * 3, 2) == [shapes([(2, 20, 5)], 1)[0]] * 3
    one, *others = shapes([(2, 20, 5), (2, 100, 5), (2, 110, 7)], 2)
    assert one == others[0] == others[1]  # alone in its bucket: joins a roomier one
    assert (one.segments, one.tokens, one.query) == (2, 112, 16)
    assert len(set(shapes([(2, 20, 5), (2, 18, 5), (2, 100, 5), (2, 90, 7)], 2))) == 2


def test_chat_wraps_the_query_only(loaded):
    instance = StubTask(name="ask").instances(None)[1]
    (plain,) = prepare([instance], loaded[1], "ask", chat=False)
    (chat,) = prepare([instance], loaded[1], "ask", chat=True)
    assert chat.items == plain.items
    assert loaded[1].decode(chat.query) == "<user>Who?<assistant>"


def test_an_instance_without_context_is_named(loaded):
    instance = dataclasses.replace(StubTask(name="a").instances(None)[0], items=("",))
    with pytest.raises(PceError, match="'a', instance 'i0': its context has no tokens"):
        prepare([instance], loaded[1], "a", chat=False)


def test_the_command(tiny, tmp_path, capsys, monkeypatch):
    path = write_config(tmp_path, tiny)
    args = ["eval", str(path), "--degrees", "2", "--methods", "sel", "--limit", "2"]
    assert main([*args, "--tasks", "ask", "--out", str(tmp_path / "there"), "--batch", "1"]) == 0
    ran = capsys.readouterr()
    assert "programs compiled" in ran.err
    assert ran.out.splitlines()[1].split()[:3] == ["ask", "sel", "2"]
    assert len(rows_of(tmp_path / "there")) == 2
    monkeypatch.setattr("pce_jax.evals.store.Results.append", _interrupt)
    assert main([*args, "--out", str(tmp_path / "other")]) == 130
    assert "the same command goes on" in capsys.readouterr().err
    assert main(["eval", str(tmp_path / "absent.toml")]) == 2
    assert "there is no config" in capsys.readouterr().err


def _interrupt(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("sent", "status"), [(signal.SIGKILL, -signal.SIGKILL), (signal.SIGINT, 130)]
)
def test_a_run_that_is_ended_goes_on(tiny, tmp_path, sent, status):
    task = {"ask": {"kind": "stub", "count": 40}}
    config = config_of(tmp_path, tiny, degrees=[2], methods=["naive", "sel"], task=task)
    tests = str(Path(__file__).parents[1])
    code = (
        f"import signal, sys; sys.path.insert(0, {tests!r})\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # where a parent ignores it
        "from evals.stub import StubTask; from pce_jax.evals.tasks import TASKS\n"
        "TASKS['stub'] = StubTask\n"
        "from pce_jax.cli import main; sys.exit(main())"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, "eval", config.path],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    cell = config.out / "cells/ask/sel/2.jsonl"
    deadline = time.monotonic() + 120
    while not (cell.exists() and cell.stat().st_size) and process.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, sent)
    said, _ = process.communicate()
    assert process.returncode == status, said
    assert 0 < len(rows_of(config.out)) < 80
    if sent == signal.SIGINT:
        assert b"the same command goes on" in said and b"Traceback" not in said
        rows = cell.read_bytes()  # none if it was ended between making the file and writing it
        assert not rows or rows.endswith(b"}\n")
    assert main(["eval", str(config.path)]) == 0
    assert len(rows_of(config.out)) == 80
