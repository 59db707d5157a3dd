from pathlib import Path

import pytest
from tiny_folder import write_folder

from pce_jax.bench.sizes import Cut, Sizes

SMALL = Sizes(
    encode=(Cut(64, 4),),
    query=Cut(64, 4),
    query_tokens=16,
    decode=Cut(64, 4),
    steps=2,
    rows=(1, 2),
    memory=Cut(64, 4),
    train=Cut(64, 4),
    train_tokens=8,
    documents=12,
    huggingface=32,
    matrix=64,
    copied=2**16,
)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder with 128 positions."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny", max_positions=128)


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes that take no time."""
    monkeypatch.setattr("pce_jax.bench.sizes.QUICK", SMALL)
