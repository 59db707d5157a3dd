"""What is kept, what comes back, and what is said of a checkpoint that cannot be used."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from core.cases import TINY

from pce_jax.adapters import Adapters, log_temperature
from pce_jax.errors import FinetuneError
from pce_jax.finetune.checkpoint import Checkpoints
from pce_jax.finetune.step import Trained, TrainState, begin
from pce_jax.models import init_lora

ADAM = optax.adam(0.1)


def state(step: int = 0, rank: int = 2) -> TrainState:
    adapters = Adapters(init_lora(TINY, jax.random.key(step), rank=rank), log_temperature(TINY))
    found = begin(Trained(None, adapters), ADAM)
    return TrainState(jnp.asarray(step, jnp.int32), found.trained, found.optimizer)


def same(one: Any, other: Any) -> bool:
    assert jax.tree.structure(one) == jax.tree.structure(other)
    pairs = zip(*map(jax.tree.leaves, (one, other)), strict=True)
    return all(np.array_equal(*pair) for pair in pairs)


def save(folder: Path, *scores: float | None, **settings: Any) -> None:
    with Checkpoints(folder, **settings) as checkpoints:
        for number, score in enumerate(scores, 1):
            checkpoints.save(state(number), score)


def test_a_state_comes_back_as_it_was(tmp_path):
    save(tmp_path, None, None)
    with Checkpoints(tmp_path) as checkpoints:
        assert same(checkpoints.load_last(state()), state(2))
        assert same(checkpoints.load_trained(state().trained, 1), state(1).trained)


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    save(tmp_path, None, 3.0, 2.0, None, 2.5, None, keep=2)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [3, 5, 6]
        assert checkpoints.best() == 3


def test_only_the_last_ones_are_kept_if_asked(tmp_path):
    save(tmp_path, 1.0, 3.0, 2.0, keep=1, best=False)
    with Checkpoints(tmp_path) as checkpoints:
        assert checkpoints.steps == [3]


def test_looking_changes_nothing(tmp_path):
    """A live run may be in the middle of writing."""
    save(tmp_path, 2.0, 1.0, 3.0, keep=3)
    unfinished = tmp_path / "4.orbax-checkpoint-tmp"
    unfinished.mkdir()
    with Checkpoints(tmp_path, keep=1, read_only=True) as checkpoints:
        assert same(checkpoints.load_trained(state().trained, 3), state(3).trained)
        assert (checkpoints.steps, checkpoints.best()) == ([1, 2, 3], 2)
    assert unfinished.exists()


def test_nothing_to_go_on_from(tmp_path):
    with Checkpoints(tmp_path / "new") as checkpoints:
        assert checkpoints.load_last(state()) is None


@pytest.mark.parametrize("item", ["trained", "rest"])
def test_a_torn_checkpoint_is_said_and_the_one_before_taken(tmp_path, item, caplog):
    save(tmp_path, None, None)
    for file in (tmp_path / "2" / item).rglob("*"):
        if file.is_file():
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with Checkpoints(tmp_path) as checkpoints:
        assert same(checkpoints.load_last(state()), state(1))
        assert checkpoints.steps == [1]
        checkpoints.save(state(2), None)  # its place is free again
    assert "2 is damaged" in caplog.text


def test_without_a_whole_one_it_stops_and_removes_nothing(tmp_path):
    save(tmp_path, None)
    for file in (tmp_path / "1" / "trained").rglob("*"):
        if file.is_file():
            file.write_bytes(b"")
    with Checkpoints(tmp_path) as checkpoints, pytest.raises(FinetuneError, match="damaged"):
        checkpoints.load_last(state())
    assert (tmp_path / "1").exists()


def test_one_of_another_adapter_is_refused_by_the_name_of_its_array(tmp_path):
    save(tmp_path, None)
    with Checkpoints(tmp_path) as checkpoints:
        with pytest.raises(
            FinetuneError,
            match=r"lora.a\['down'\] as float32\[3, 2, 40\], and .*\[3, 3",
        ):
            checkpoints.load(state(rank=3), 1)
        only = begin(Trained(None, Adapters(log_temperature=log_temperature(TINY))), ADAM)
        with pytest.raises(FinetuneError, match=r"holds adapters.lora.* which is unknown"):
            checkpoints.load(only, 1)
        more = Trained(None, Adapters(state().trained.adapters.lora, None))
        more = Trained(None, Adapters(more.adapters.lora, jnp.zeros((9, 9))))
        with pytest.raises(FinetuneError, match=r"log_temperature as float32\[3, 4\]"):
            checkpoints.load_trained(more, 1)


def test_an_unwritable_folder_stops_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises((FinetuneError, OSError)), Checkpoints(tmp_path / "file") as checkpoints:
        checkpoints.save(state(1), None)


MESHES = """
import sys, jax, jax.numpy as jnp
jax.config.update("jax_num_cpu_devices", 4)
from jax.sharding import NamedSharding, PartitionSpec as P
from pathlib import Path
from pce_jax.adapters import Adapters
from pce_jax.finetune.checkpoint import Checkpoints
from pce_jax.finetune.step import Trained, TrainState

def state(shape, spec):
    mesh = jax.make_mesh(shape, ("data", "model"))
    x = jnp.arange(32.0).reshape(4, 8)
    x = jax.device_put(x, NamedSharding(mesh, spec))
    return TrainState(jnp.asarray(1), Trained(None, Adapters(log_temperature=x)), (x + 1,))

with Checkpoints(Path(sys.argv[1])) as checkpoints:
    checkpoints.save(state((2, 2), P("data", "model")), None)
    like = state((1, 4), P("model", None))
    found = checkpoints.load(like, 1)
for mine, other in zip(jax.tree.leaves(found), jax.tree.leaves(like), strict=True):
    assert mine.sharding == other.sharding, (mine.sharding, other.sharding)
    assert (mine == other).all()
print("resharded")
"""


def test_a_state_comes_back_onto_another_mesh(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MESHES, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "resharded\n", done.stderr
