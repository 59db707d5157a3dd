from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from smollm2 import smollm2_path
from tiny_folder import CHAT_TEMPLATE, write_folder

from pce_jax.cli import main

__all__ = ["smollm2_path"]


class Ran(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., Ran]:
    """Run a command in an empty folder, and return its status and what it printed."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    monkeypatch.setenv("COLUMNS", "80")

    def run(*args: object) -> Ran:
        capsys.readouterr()
        status = main([str(arg) for arg in args])
        return Ran(status, *capsys.readouterr())

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with 512 positions and a chat template."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_folder(folder, CHAT_TEMPLATE, max_positions=512)


@pytest.fixture
def docs(tmp_path: Path) -> list[Path]:
    """Three documents of different lengths."""
    files = []
    for number, text in enumerate(("Ada wrote code.", "Bob baked.", "Cleo sang all day."), 1):
        files.append(tmp_path / f"{number}.txt")
        files[-1].write_text(text + "\n", encoding="utf-8")
    return files
