"""A mesh of devices, and whether a model can be spread over it."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import jax
from jax.sharding import AxisType, Mesh, NamedSharding

from .config import LlamaConfig
from .errors import ConfigError
from .llama import parameter_axes
from .sharding import READING, Axis, Rules

AXES = ("data", "fsdp", "segment", "tensor")
"""Axes of a mesh, outermost first: what talks most lies innermost, on neighbours."""

_TOGETHER: tuple[tuple[Axis, ...], ...] = (
    ("batch", "segment", "heads"),
    ("batch", "vocab"),
    ("layers", "heads", "embed"),
    ("layers", "mlp", "embed"),
    ("vocab", "embed"),
)
"""Meanings of axes that arrays have together, each of which needs axes of the mesh of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshSizes:
    """How many devices lie along each axis; -1, of one axis, is all that are left.

    Attributes:
        data: Batches, with all weights.
        fsdp: Batches or segments, with weights that are gathered where they are used.
        segment: Segments of a context.
        tensor: Heads, and the inner axis of the MLPs.
    """

    data: int = 1
    fsdp: int = 1
    segment: int = 1
    tensor: int = 1

    def of(self, devices: int) -> tuple[int, ...]:
        """The sizes for so many devices.

        Raises:
            ConfigError: They do not multiply out.
        """
        sizes = dataclasses.astuple(self)
        told = " x ".join(f"{name} {size}" for name, size in zip(AXES, sizes, strict=True))
        if any(size < 1 and size != -1 for size in sizes) or sizes.count(-1) > 1:
            raise ConfigError(
                f"mesh {told}: each size is at least 1, or -1 for all devices that are left, which "
                "one axis at most can be."
            )
        known = math.prod(size for size in sizes if size != -1)
        rest, over = divmod(devices, known)
        if over or (-1 not in sizes and rest != 1):
            fits = [size for size in range(1, devices + 1) if devices % size == 0]
            raise ConfigError(
                f"mesh {told}: its sizes make {known} devices, and there are {devices}. They must "
                f"multiply to {devices} (whose divisors are {', '.join(map(str, fits))}); -1 takes "
                "what is left."
            )
        return tuple(rest if size == -1 else size for size in sizes)


def make_mesh(sizes: MeshSizes = MeshSizes(segment=-1), devices: Sequence | None = None) -> Mesh:
    """A mesh with explicit sharding: what lies where is part of an array's type.

    Args:
        sizes: Of its axes.
        devices: All by default.

    Raises:
        ConfigError: The sizes do not multiply to the number of devices.

    Example:
        >>> mesh = pce.make_mesh(pce.MeshSizes(segment=-1))
        >>> mesh.axis_names
        ('data', 'fsdp', 'segment', 'tensor')
    """
    devices = jax.devices() if devices is None else devices
    shape = sizes.of(len(devices))
    return jax.make_mesh(shape, AXES, (AxisType.Explicit,) * len(AXES), devices=devices)


@dataclasses.dataclass(frozen=True)
class MeshLayout:
    """How a model lies on a mesh.

    Attributes:
        mesh: The devices.
        rules: What is spread over which of its axes.
    """

    mesh: Mesh
    rules: Rules = READING

    def shardings(self, config: LlamaConfig) -> dict[str, NamedSharding]:
        """Of each parameter, by its name.

        Raises:
            ConfigError: The model cannot be spread so.
        """
        check_mesh(config, self)
        return {
            name: NamedSharding(self.mesh, self.rules.spec(axes, self.mesh))
            for name, axes in parameter_axes(config).items()
        }


def check_mesh(config: LlamaConfig, layout: MeshLayout) -> None:
    """Refuse a layout that arrays of a model cannot have; one error names all that is wrong.

    Raises:
        ConfigError: Two axes of an array want the same axis of the mesh, or a size does not divide.
    """
    mesh, rules = layout.mesh, layout.rules
    problems = []
    if rules.heads != rules.kv_heads:
        problems.append(
            f"heads go over {_names(rules.heads)} and kv_heads over {_names(rules.kv_heads)}; "
            "queries must lie where their keys are: give both the same axes"
        )
    for one, other in {pair for axes in _TOGETHER for pair in itertools.combinations(axes, 2)}:
        if both := set(rules.on(one, mesh)) & set(rules.on(other, mesh)):
            shared = sorted(name for name in both if mesh.shape[name] > 1)
            if shared:
                problems.append(
                    f"{one} and {other} both go over {_names(shared)}, and arrays have both: give "
                    "one of them another axis"
                )
    sizes: dict[Axis, int] = {
        "heads": config.num_heads,
        "kv_heads": config.num_kv_heads,
        "mlp": config.intermediate_size,
        "embed": config.hidden_size,
        "vocab": config.vocab_size,
        "layers": config.num_layers,
    }
    for axis, size in sizes.items():
        names = rules.on(axis, mesh)
        over = math.prod(mesh.shape[name] for name in names)
        if size % over:
            fits = [each for each in range(1, over + 1) if size % each == 0][-1]
            problems.append(
                f"{axis}: {size} do not divide over the {over} devices of {_names(names)}: use "
                f"{fits} there, or a rule that spreads {axis} over nothing"
            )
    if problems:
        raise ConfigError("the model cannot be spread so: " + "; ".join(sorted(problems)) + ".")


def _names(names: Sequence[str]) -> str:
    return " x ".join(names) or "no axis"
