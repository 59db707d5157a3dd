from pathlib import Path
from typing import Any

import pytest
from evals.stub import StubTask, pretend_to_read
from tiny_folder import CHAT_TEMPLATE, write_folder

import pce_jax as pce
from pce_jax.evals.tasks import TASKS


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with 512 positions and a chat template."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_folder(folder, CHAT_TEMPLATE, max_positions=512)


@pytest.fixture(scope="session")
def loaded(tiny: Path) -> tuple[Any, Any]:
    return pce.load(str(tiny))


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kind `stub`, beside the real ones."""
    monkeypatch.setitem(TASKS, "stub", StubTask)


@pytest.fixture
def pretend(monkeypatch: pytest.MonkeyPatch) -> None:
    """The model reads nothing, so that what is around it is tested quickly."""
    monkeypatch.setattr("pce_jax.evals.run.read_batch", pretend_to_read)
