"""Training over a mesh: the losses of one device, and checkpoints that go from one to the other."""

from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import pytest
from tiny_folder import write_folder

import pce_jax as pce
from pce_jax.errors import FinetuneError
from pce_jax.finetune.config import load_config
from pce_jax.finetune.loop import Outcome
from pce_jax.finetune.run import finetune
from pce_jax.finetune.track import read_rows

CONFIG = """
model = "{model}"
steps = 4
batch = 4
microbatch = 2
sink = "x"
train = {train}
degrees = {{ 4 = 1.0 }}
optimizer.learning_rate = 0.01
checkpoint.every = 2

[lora]
rank = 2

[data.text]
kind = "lm"
files = ["{text}"]
length = 48
scored = 15
"""
MESH = ("mesh.fsdp=2", "mesh.segment=2", "mesh.tensor=2", "mesh.rules.vocab=[]")


@pytest.fixture(scope="module")
def train(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Outcome]:
    folder = tmp_path_factory.mktemp("data")
    model = write_folder(folder / "tiny", max_positions=128)
    text = folder / "letters.txt"
    letters = np.random.default_rng(0).choice(list("abcde "), 2000)
    text.write_text("".join(letters))

    def run(out: Path, parts: str, *changes: str, stop: int | None = None) -> Outcome:
        file = out.parent / f"{out.name}.toml"
        file.write_text(CONFIG.format(model=model, text=text, train=parts))
        config = load_config(file, changes, out)
        loaded, tokenizer = pce.load(str(model), layout=config.mesh.layout())
        taken = 0

        def stopped() -> bool:
            nonlocal taken
            taken += 1
            return taken == stop

        return finetune(config, loaded, tokenizer, "hash", stop=stopped)

    return run


def losses(folder: Path) -> np.ndarray:
    rows = [row for row in read_rows(folder) if row["kind"] == "step"]
    names = ("loss", "ce", "kl", "entropy", "slope_norm")
    return np.array([[row[name] for name in names] for row in rows])


@pytest.mark.slow
@pytest.mark.parametrize("parts", ['["lora", "temperature", "sink"]', '["weights"]'])
def test_losses_over_a_mesh_are_those_of_one_device(train, tmp_path, parts):
    train(tmp_path / "one", parts)
    train(tmp_path / "many", parts, *MESH)
    np.testing.assert_allclose(
        losses(tmp_path / "many"), losses(tmp_path / "one"), rtol=1e-5, atol=1e-5
    )


@pytest.mark.slow
def test_a_run_goes_on_over_another_mesh(train, tmp_path):
    parts = '["lora", "temperature"]'
    train(tmp_path / "whole", parts)
    first = train(tmp_path / "moved", parts, stop=2)
    assert not first.done
    second = train(tmp_path / "moved", parts, *MESH)
    assert second.done
    a = next(iter(jax.tree.leaves(second.state.trained.adapters.lora)))
    assert len(a.sharding.device_set) == 8
    np.testing.assert_allclose(
        losses(tmp_path / "moved"), losses(tmp_path / "whole"), rtol=1e-5, atol=1e-5
    )


def test_a_batch_that_the_devices_cannot_share_is_refused(train, tmp_path):
    with pytest.raises(FinetuneError, match="microbatch is 2, and 4 devices share a batch"):
        train(tmp_path / "a", '["lora"]', "mesh.fsdp=4", "mesh.tensor=2", "mesh.rules.vocab=[]")
    with pytest.raises(FinetuneError, match="4 segments are spread over 8 devices"):
        train(tmp_path / "b", '["lora"]', "mesh.segment=8")
