"""Weights go from files straight to where they lie on a mesh."""

from typing import Any

import numpy as np
import pytest
from tiny_folder import write_folder
from tiny_gguf import gguf_tensors, write_gguf
from tiny_models import random_parameters, tiny_config

import pce_jax as pce
from pce_jax.models import Llama, MeshLayout, MeshSizes, Rules, load_gguf, make_mesh
from pce_jax.models.llama import parameters_of


def layout() -> MeshLayout:
    return MeshLayout(make_mesh(MeshSizes(fsdp=2, segment=2, tensor=2)), Rules(vocab=()))


def check(mine: Llama, whole: Llama) -> None:
    shardings = layout().shardings(whole.config)
    for name, array in parameters_of(whole).items():
        found = parameters_of(mine)[name]
        assert found.sharding == shardings[name]
        np.testing.assert_array_equal(np.asarray(found), np.asarray(array))


def test_a_folder_is_read_onto_a_mesh(tmp_path):
    folder = write_folder(tmp_path / "tiny", bos_token_id=None)
    seen: list[Any] = []
    mine, _ = pce.load(str(folder), layout=layout(), progress=lambda *both: seen.append(both))
    check(mine, pce.load(str(folder))[0])
    assert mine.rules == layout().rules
    assert seen[-1] == (mine.config.num_parameters,) * 2


@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
def test_a_gguf_file_is_read_onto_a_mesh(tmp_path, kind):
    """Its rows are reordered, and quantised in blocks: a part of them is still the right part."""
    config = tiny_config(hidden_size=64, num_heads=4, num_kv_heads=4, bos_token_id=None)
    file = tmp_path / "tiny.gguf"
    write_gguf(file, config, gguf_tensors(config, random_parameters(config)), kind)
    check(load_gguf(file, layout=layout()), load_gguf(file))
