"""A close look at one instance of each task: what is measured, kept and drawn."""

import json
from pathlib import Path
from typing import Any

import pytest
from evals.stub import config_of

from pce_jax.errors import EvalError
from pce_jax.evals.profiles import choose, path_of, read_profiles
from pce_jax.evals.report import report_folder
from pce_jax.evals.run import evaluate
from pce_jax.method import METHODS

TASKS = {"ask": {"kind": "stub", "count": 1}}


def run(folder: Path, tiny: Path, loaded: tuple, **changes: Any) -> tuple[Path, list[str]]:
    """The results folder, and what was looked at closely."""
    model, tokenizer = loaded
    said: list[str] = []
    config = config_of(folder, tiny, profile=True, batch=1, task=TASKS, **changes)
    on_progress = lambda done, total, now: said.append(now)  # noqa: E731
    evaluate(model, tokenizer, config, "hash", on_progress=on_progress)
    return config.out, [title for title in said if "close look" in title]


def test_of_the_degrees_full_attention_and_the_highest_are_chosen():
    naive, sink = METHODS["naive"], METHODS["sink"]
    methods = {("naive", 1): naive, ("sink", 1): sink, ("naive", 2): naive, ("sink", 4): sink}
    assert list(choose(methods)) == [("naive", 1), ("sink", 4)]
    assert list(choose({("sink", 4): sink})) == [("sink", 4)]  # full attention did not fit


@pytest.mark.slow
@pytest.mark.usefixtures("stub")
def test_full_attention_and_the_highest_degree_are_looked_at_once(tmp_path, tiny, loaded):
    folder, looked = run(tmp_path, tiny, loaded, degrees=[1, 3], methods=["naive"])
    assert len(looked) == 2
    found = read_profiles(folder, "ask")
    assert found is not None
    assert list(found.by_cell()) == [("naive", 1), ("naive", 3)]
    assert [one.full for one in found.profiles] == [True, False]
    tokens = len("ada. bob. cleo. ") + len("Who")
    for one in found.profiles:
        assert len(one.curves["entropy"]) == tokens
        assert sum(one.segments) == tokens - len("Who")
    assert run(tmp_path, tiny, loaded, degrees=[1, 3], methods=["naive"])[1] == []

    pictures = report_folder(folder)
    assert {"ask-heads.png", "ask-entropy-P3.png"} <= pictures.keys()
    assert (
        "![ask: attention entropy by token](ask-entropy-P3.png)" in pictures["report.md"].decode()
    )


def test_a_malformed_file_is_named(tmp_path):
    path = path_of(tmp_path, "ask")
    path.parent.mkdir()
    path.write_text(json.dumps({"instance": "a", "profiles": [{"method": "naive"}]}))
    with pytest.raises(EvalError, match=r"ask\.json cannot be read .*Delete it"):
        read_profiles(tmp_path, "ask")
