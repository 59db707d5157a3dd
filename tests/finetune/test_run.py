"""Whole runs: that they learn, go on exactly where they stopped, and stop when they must."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pce_jax.errors import FinetuneError
from pce_jax.finetune.config import FinetuneConfig
from pce_jax.finetune.loop import Outcome
from pce_jax.finetune.run import finetune
from pce_jax.finetune.track import read_rows

TIMES = ("seconds", "tokens_per_second")


@pytest.fixture(scope="module")
def train(loaded: Any) -> Callable[..., Outcome]:
    def run(config: FinetuneConfig, stop_after: int | None = None, **options: Any) -> Outcome:
        steps = 0

        def stop() -> bool:
            nonlocal steps
            steps += 1
            return steps == stop_after

        model, tokenizer = loaded
        return finetune(config, model, tokenizer, "hash", stop=stop, **options)

    return run


@pytest.fixture(scope="module")
def unbroken(
    train: Callable[..., Outcome],
    config: Callable[..., FinetuneConfig],
    tmp_path_factory: pytest.TempPathFactory,
) -> tuple[Path, Outcome]:
    folder = tmp_path_factory.mktemp("unbroken")
    return folder, train(config(folder))


def rows(folder: Path) -> list[dict[str, Any]]:
    """All but the times."""
    return [
        {key: value for key, value in row.items() if key not in TIMES} for row in read_rows(folder)
    ]


def test_a_run_says_what_it_did(unbroken):
    folder, outcome = unbroken
    found = rows(folder)
    steps = [row for row in found if row["kind"] == "step"]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert {row["degree"] for row in steps} == {4}
    assert [row["targets"] for row in steps] == [30] * 6
    for row in steps:
        weights = row["weights"]
        terms = {"ce": "ce", "kl": "kl", "entropy": "excess"}
        loss = sum(weights[name] * row[term] for name, term in terms.items())
        np.testing.assert_allclose(row["loss"], loss, rtol=1e-5)
        assert row["excess"] >= 0
    held = [(row["who"], row["step"]) for row in found if row["kind"] == "heldout"]
    assert held == [("base", 0), ("student", 2), ("student", 4), ("tuned", 6)]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["text"]["tuned"]["4"]["texts"] == 3
    assert outcome.done
    assert outcome.summary["text"]["tuned"][4].log_ppl == summary["text"]["tuned"]["4"]["log_ppl"]


def test_it_learns(unbroken):
    _, outcome = unbroken
    base, tuned = (outcome.summary["text"][who] for who in ("base", "tuned"))
    assert tuned[4].log_ppl < base[4].log_ppl  # of the very text that it read


@pytest.mark.parametrize("stop_after", [1, 2, 5])
def test_going_on_gives_the_numbers_of_an_unbroken_run(
    unbroken, train, config, tmp_path, stop_after
):
    folder, outcome = unbroken
    first = train(config(tmp_path), stop_after)
    assert (first.done, int(first.state.step)) == (False, stop_after)
    second = train(config(tmp_path))
    assert rows(tmp_path) == rows(folder)
    for mine, other in zip(*map(jax.tree.leaves, (second.state, outcome.state)), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_rows_behind_the_checkpoint_are_written_anew(unbroken, train, config, tmp_path):
    """A killed run has rows of steps that no checkpoint holds, and a torn last one."""
    train(config(tmp_path), 3)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "step", "step": 4, "loss": 99.0}\n{"kind": "st')
    train(config(tmp_path))
    assert rows(tmp_path) == rows(unbroken[0])


def test_a_finished_run_is_left_alone(unbroken, train, config):
    folder, outcome = unbroken
    again = train(config(folder))
    assert again.done
    assert again.summary["text"]["base"] == outcome.summary["text"]["base"]


def test_a_folder_of_other_settings_is_refused(unbroken, train, config):
    folder, _ = unbroken
    with pytest.raises(FinetuneError, match=r"(?s)other settings:\n  loss.kl: 1.0 there, 0.5 now"):
        train(config(folder, "loss.kl=0.5"))


def test_a_folder_that_a_live_run_holds_is_refused(train, config, tmp_path):
    with (
        filelock.FileLock(tmp_path / ".lock"),
        pytest.raises(FinetuneError, match="another run is writing into"),
    ):
        train(config(tmp_path))


def test_a_loss_that_is_not_finite_stops_the_run(train, config, tmp_path):
    config = config(tmp_path, "loss.ce={peak=3e38, warmup=5}", "checkpoint.every=1")
    with pytest.raises(FinetuneError) as error:  # the first step has a weight of 0
        train(config)
    message = str(error.value)
    assert "step 2: loss is inf" in message or "step 2: slope_norm is " in message
    assert "examples text/0:letters.txt:0:" in message
    assert "the last good checkpoint is that of step 1" in message
    assert [row["step"] for row in rows(tmp_path) if row["kind"] == "step"] == [1]


def test_full_attention_is_read_again_only_where_it_changes(train, config, tmp_path):
    """Of adapters that it does without, its old numbers stand: they are the same to the bit."""
    said = []
    changes = ("train=['temperature']", "steps=3")
    outcome = train(config(tmp_path, *changes), on_progress=lambda *now: said.append(now[2]))
    base, tuned = (outcome.summary["text"][who] for who in ("base", "tuned"))
    assert tuned[1] == base[1]
    assert tuned[4] != base[4]
    full = [now for now in said if now == "Measuring text at degree 1"]
    segments = [now for now in said if now == "Measuring text at degree 4"]
    assert 0 < len(full) < len(segments)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        ["train=['weights']", "optimizer.weight_decay=0.1", "teacher='live'", "degrees.1=1"],
        ["train=['sink']", "remat='products'"],
        ["train=['temperature']", "teacher='none'", "loss.kl=0", "loss.entropy=0"],
    ],
)
def test_everything_that_can_be_trained_trains(train, config, tmp_path, changes):
    outcome = train(config(tmp_path, *changes, "steps=3", "evaluate.every=0"))
    row = [row for row in rows(tmp_path) if row["kind"] == "step"][-1]
    assert outcome.done
    assert row["slope_norm"] > 0


@pytest.mark.slow
def test_masters_stay_float32_where_bfloat16_is_computed(train, config, tmp_path):
    outcome = train(
        config(tmp_path, "train=['weights']", "steps=1", "evaluate.final=1"),
        dtype=jnp.dtype("bfloat16"),
    )
    trained = outcome.state.trained
    assert {x.dtype.name for x in jax.tree.leaves(trained)} == {"float32"}
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["dtype"] == "bfloat16"
