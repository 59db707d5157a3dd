"""Configs of runs: those of the project load, and what is wrong in one is said."""

from pathlib import Path

import pytest

from pce_jax.errors import FinetuneError, SettingsError
from pce_jax.finetune.config import change, load_config, settings
from pce_jax.finetune.schedules import Schedule
from pce_jax.method import METHODS

FOLDER = Path(__file__).parents[2] / "configs" / "finetune"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.toml")), ids=lambda path: path.stem)
def test_every_config_of_the_project_loads(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PCE_DATA", str(tmp_path))
    config = load_config(path)
    assert config.data
    assert config.heldout


def test_a_config_says_all_there_is(config, tmp_path):
    found = config(tmp_path)
    assert found.degrees == {4: 1.0}
    assert found.optimizer.learning_rate == Schedule(peak=0.01, warmup=2, decay="cosine")
    assert (found.method, found.train) == (METHODS["naive"], ("lora", "temperature"))
    assert (found.data[0].kind, found.out) == ("lm", tmp_path)


def test_any_value_can_be_changed(config, tmp_path):
    found = config(
        tmp_path,
        "loss.entropy={peak=0.5, warmup=1}",
        "train=['sink']",
        "method.base=naive",
        "degrees.2=1",
    )
    assert found.loss.entropy == Schedule(peak=0.5, warmup=1)
    assert (found.train, set(found.degrees)) == (("sink",), {2, 4})
    assert change({}, "out=some/folder") == {"out": "some/folder"}


def test_settings_tell_runs_apart_that_give_other_numbers(config, tmp_path):
    def said(*changes: str) -> dict:
        return settings(config(tmp_path, *changes))

    assert said() == said("checkpoint.every=1", "evaluate.windows=1")
    for one in ("loss.kl=0.1", "lora.rank=4", "data.text.scored=8", "degrees.2=2", "method=sel"):
        assert said(one) != said()


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        (["loss.entrpy=1"], r"tiny.toml: loss: there is no key 'entrpy'. Did you mean 'entropy'"),
        (["stepps=1"], "there is no key 'stepps'. Did you mean 'steps'"),
        (["steps=1.5"], "steps must be a whole number"),
        (["steps=0"], "steps must be at least 1, it is 0"),
        (["optimizer.learning_rate.peek=1"], "there is no key 'peek'. Did you mean 'peak'"),
        (["optimizer.learning_rate.warmup=9"], "optimizer.learning_rate: warmup must lie"),
        (["train=['lora','heat']"], "train must be a list, each one of 'weights', 'lora'"),
        (["train=['weights','lora']"], "stands alone"),
        (["train=[]"], "train is empty"),
        (["batch=3"], "batch 3 cannot be cut into microbatches of 2"),
        (["degrees.x=1"], "'x' is no number of segments"),
        (["degrees.4=0"], r"\[degrees\] names none"),
        (
            ["degrees.4=0", "degrees.1=1", "train=['temperature']"],
            "does anything in full attention",
        ),
        (["lora.full=false", "degrees.1=1"], "so degree 1 would teach nothing"),
        (["teacher=none"], "without a teacher there is nothing to compare with"),
        (["method=nave"], "there is no method 'nave'. Did you mean 'naive'"),
        (["method=full"], "full attention is degree 1"),
        (["method=sink", "train=['sink']"], "Leave one of them out"),
        (["lora.targets=['q','z']"], "there is no 'z'"),
        (["data.text.kind=lmm"], r"\[data.text\]: there is no kind 'lmm'"),
        (["steps"], "write KEY=VALUE"),
        (["steps.more=1"], "'steps' is a value, no table"),
    ],
)
def test_what_is_wrong_is_said(config, tmp_path, changes, problem):
    with pytest.raises((SettingsError, FinetuneError), match=problem):
        config(tmp_path, *changes)
