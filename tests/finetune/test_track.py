"""Where numbers go."""

import sys
from pathlib import Path
from typing import Any

import pytest

from pce_jax.errors import FinetuneError
from pce_jax.finetune.config import TrackSettings
from pce_jax.finetune.track import read_rows, trackers

ROW = {"kind": "step", "step": 3, "loss": 1.5, "weights": {"ce": 1.0}, "examples": ["a"]}


def write(folder: Path, *steps: int, since: int = 0, **settings: Any) -> None:
    wanted = TrackSettings(**settings)
    with trackers(folder, wanted, since, {"steps": 4}) as found:
        for step in steps:
            for tracker in found:
                tracker.write(ROW | {"step": step})


def test_rows_are_lines_and_later_ones_are_dropped_when_a_run_goes_on(tmp_path):
    write(tmp_path, 1, 2, 3)
    write(tmp_path, 3, 4, since=2)
    assert [row["step"] for row in read_rows(tmp_path)] == [1, 2, 3, 4]
    write(tmp_path, 1)
    assert read_rows(tmp_path) == [ROW | {"step": 1}]


def test_a_torn_last_line_is_no_row_and_a_malformed_one_is_named(tmp_path):
    write(tmp_path, 1)
    file = tmp_path / "metrics.jsonl"
    file.write_text(file.read_text() + '{"kind"')
    assert len(read_rows(tmp_path)) == 1
    file.write_text('{"kind"\n' + file.read_text())
    with pytest.raises(FinetuneError, match="line 1: malformed JSON"):
        read_rows(tmp_path)


@pytest.mark.parametrize(
    ("package", "settings"),
    [("tensorboardX", {"tensorboard": True}), ("wandb", {"wandb": "project"})],
)
def test_a_missing_package_is_named_with_its_extra(tmp_path, monkeypatch, package, settings):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(FinetuneError, match=rf"{package}: pip install 'pce-jax\[track\]'"):
        write(tmp_path, **settings)


def test_tensorboard_gets_every_number(tmp_path):
    pytest.importorskip("tensorboardX", reason="needs the extra: pip install 'pce-jax[track]'")
    write(tmp_path, 1, 2, tensorboard=True)
    (events,) = (tmp_path / "tensorboard").iterdir()
    raw = events.read_bytes()
    assert raw.count(b"step/loss") == 2
    assert raw.count(b"step/weights/ce") == 2


def test_weights_and_biases_keeps_a_run_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb", reason="needs the extra: pip install 'pce-jax[track]'")
    monkeypatch.setenv("WANDB_MODE", "offline")
    write(tmp_path, 1, wandb="project")
    assert list((tmp_path / "wandb").glob("offline-run-*"))
