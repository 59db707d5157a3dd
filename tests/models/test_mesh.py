"""Meshes, and models that do not fit onto them."""

import dataclasses

import jax
import pytest

from pce_jax.models import SHAPES, ConfigError, MeshLayout, MeshSizes, Rules
from pce_jax.models.mesh import AXES, check_mesh

LLAMA = SHAPES["llama-3.1-8b"]


def abstract(**sizes: int) -> MeshLayout:
    """A mesh without devices."""
    shape = tuple(sizes.get(name, 1) for name in AXES)
    mesh = jax.sharding.AbstractMesh(shape, AXES)
    return MeshLayout(mesh)  # type: ignore[bad-argument-type]


def test_sizes_multiply_to_the_devices():
    assert MeshSizes(fsdp=2, segment=-1).of(8) == (1, 2, 4, 1)
    with pytest.raises(ConfigError, match=r"make 3 devices, and there are 8\. They must"):
        MeshSizes(tensor=3).of(8)
    with pytest.raises(ConfigError, match="make 4 devices, and there are 8"):
        MeshSizes(tensor=4).of(8)
    with pytest.raises(ConfigError, match="which one axis at most can be"):
        MeshSizes(fsdp=-1, segment=-1).of(8)
    with pytest.raises(ConfigError, match="each size is at least 1"):
        MeshSizes(data=0).of(8)


def test_a_model_that_divides_fits():
    check_mesh(LLAMA, abstract(data=2, fsdp=4, segment=4, tensor=8))


def test_sizes_that_do_not_divide_are_named_all_at_once():
    with pytest.raises(ConfigError) as error:
        check_mesh(SHAPES["smollm2-135m"], abstract(tensor=2, fsdp=5))
    message = str(error.value)
    assert "heads: 9 do not divide over the 2 devices of tensor: use 1 there" in message
    assert "kv_heads: 3 do not divide over the 2 devices of tensor" in message
    assert "embed: 576 do not divide over the 5 devices of fsdp: use 4 there" in message


def test_two_axes_of_one_array_cannot_lie_on_one_of_the_mesh():
    layout = abstract(fsdp=4)
    layout = dataclasses.replace(layout, rules=Rules(batch=("data", "fsdp")))
    with pytest.raises(ConfigError, match="batch and segment both go over fsdp, and arrays have"):
        check_mesh(LLAMA, layout)
    layout = dataclasses.replace(layout, rules=Rules(heads=("tensor",), kv_heads=()))
    with pytest.raises(ConfigError, match="queries must lie where their keys are"):
        check_mesh(LLAMA, layout)
