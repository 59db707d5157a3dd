from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_folder import write_folder

import pce_jax as pce
from pce_jax.finetune.config import FinetuneConfig, load_config

CONFIG = """
model = "{model}"
steps = 6
batch = 2
microbatch = 2
sink = "x"

[lora]
rank = 2

[degrees]
4 = 1.0

[optimizer]
learning_rate = {{ peak = 0.01, warmup = 2, decay = "cosine" }}

[checkpoint]
every = 2
keep = 2

[evaluate]
every = 2
windows = 2
final = 3
degrees = [4]

[data.text]
kind = "lm"
files = ["{text}"]
length = 48
scored = 15

[heldout.text]
kind = "lm"
files = ["{text}"]
length = 48
scored = 15
limit = 4
"""


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder whose tokenizer knows bytes."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    return write_folder(folder, max_positions=128)


@pytest.fixture(scope="session")
def loaded(tiny: Path) -> tuple[Any, Any]:
    return pce.load(str(tiny))


@pytest.fixture(scope="session")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten windows of random letters."""
    file = tmp_path_factory.mktemp("text") / "letters.txt"
    letters = np.random.default_rng(0).integers(97, 123, 480).astype(np.uint8)
    file.write_bytes(letters.tobytes())
    return file


@pytest.fixture(scope="session")
def config_file(tmp_path_factory: pytest.TempPathFactory, tiny: Path, text: Path) -> Path:
    file = tmp_path_factory.mktemp("configs") / "tiny.toml"
    file.write_text(CONFIG.format(model=tiny, text=text), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def config(config_file: Path) -> Callable[..., FinetuneConfig]:
    """The tiny config with changes, as `--set` takes them."""

    def make(out: Path, *changes: str) -> FinetuneConfig:
        return load_config(config_file, changes, out)

    return make
