"""Cells that do not fit the model's positions are left out aloud, and the others run."""

from types import SimpleNamespace
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from evals.stub import StubTask, config_of, write_config

import pce_jax as pce
from pce_jax.cli import main
from pce_jax.encode import check_context
from pce_jax.errors import EvalError, LayoutError
from pce_jax.evals.prepare import Prepared, prepare
from pce_jax.evals.run import evaluate
from pce_jax.evals.store import read_results
from pce_jax.evals.window import positions_needed
from pce_jax.query import check_window

pytestmark = pytest.mark.usefixtures("stub", "pretend")

# Of 800 tokens, 791 are context and 9 the query, whose last is only predicted: 791 + 8 positions.
LONG = {"kind": "stub", "scored": 8, "count": 3, "length": 800}
TASKS = {"ask": {"kind": "stub"}, "long": LONG}


def check(window: int, one: Prepared, method: pce.Method, sink: int, generated: int) -> None:
    """What the library refuses, on a model of so many positions."""
    context = pce.from_segments(one.segments(3), [0] * sink)
    config = SimpleNamespace(max_positions=window, vocab_size=257)
    model: Any = SimpleNamespace(config=config, learned=None)
    check_context(model, context, method)
    starts = method.positions.of_segments(jnp.asarray(context.lengths), 1, sink)[1]
    cache: Any = SimpleNamespace(query_start=starts)
    check_window(model, cache, np.asarray([len(one.query) + generated]))


@pytest.mark.parametrize("scored", [0, 1])
@pytest.mark.parametrize(
    "positions",
    [
        pce.Positions(),
        pce.Positions(span="mean", fractional=True),
        pce.Positions(span="harmonic"),
        pce.Positions(sequential=True),
    ],
)
def test_the_library_agrees(loaded, positions, scored):
    method = pce.Method(positions=positions)
    instances = StubTask(name="a", count=3, scored=scored).instances(None)
    prepared = prepare(instances, loaded[1], "a", chat=False)
    needed = positions_needed(prepared, 3, 2, method, max_new_tokens=4)
    for one, window in zip(prepared, needed.tolist(), strict=True):
        generated = -1 if scored else 4
        check(window, one, method, 2, generated)
        with pytest.raises(LayoutError):
            check(window - 1, one, method, 2, generated)


def test_cells_that_do_not_fit_are_skipped(loaded, tiny, tmp_path, caplog):
    config, told = config_of(tmp_path, tiny, methods=["naive", "sel", "sink"], task=TASKS), []
    model, tokenizer = loaded
    for rows in (3 * (2 * 6 + 3), 0):  # the second time there is nothing left to do
        caplog.clear()
        summary = evaluate(
            model, tokenizer, config, "hash", on_progress=lambda *now: told.append(now)
        )
        assert summary.rows == rows and summary.skipped == 3
        warned = [record for record in caplog.records if record.levelname == "WARNING"]
        assert [record.message.partition(" Use")[0] for record in warned] == [
            f"long: {methods} at degree 1 skipped: 3 of 3 instances do not fit. They need up to "
            f"{needed} positions, and the model has 512."
            for methods, needed in (("naive, sel", 799), ("sink", 801))
        ]
    assert told[-1][:2] == (45, 45)
    manifest, rows = read_results(config.out)
    assert {(row.task, row.degree) for row in rows} == {("ask", 1), ("ask", 2), ("long", 2)}
    assert manifest["tasks"]["long"]["skipped"] == {"naive/1": 799, "sel/1": 799, "sink/1": 801}


def test_an_instance_that_just_fits_runs(loaded, tiny, tmp_path):
    model, tokenizer = loaded
    for length, skipped in ((513, 0), (514, 1)):
        config = config_of(
            tmp_path / str(length),
            tiny,
            methods=["naive"],
            task={"long": LONG | {"length": length}},
        )
        assert evaluate(model, tokenizer, config, "hash").skipped == skipped


def test_where_nothing_fits_there_is_nothing_to_run(loaded, tiny, tmp_path):
    config, (model, tokenizer) = config_of(tmp_path, tiny, degrees=[1], task={"long": LONG}), loaded
    with pytest.raises(EvalError, match=r"none of the 2 cells fits the model's 512 positions"):
        evaluate(model, tokenizer, config, "hash")


def test_the_commands_say_so(tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("pce_jax.evals.report.report.pictures", lambda studies, title: {})
    path = write_config(tmp_path, tiny, task=TASKS)
    assert main(["eval", str(path)]) == 0
    assert "do not fit the model's positions: 2 (see" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "results"), "--resamples", "20"]) == 0
    text = (tmp_path / "results/report/report.md").read_text(encoding="utf-8")
    assert "long: skipped, as they do not fit the model's positions: naive P=1 (needs 799)" in text
    assert "long: full attention was not measured" in text and "not measured: " not in text
