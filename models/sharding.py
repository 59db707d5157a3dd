"""Where arrays lie on a mesh of devices: one table, and the one helper that puts them there.

Every axis of an array has a meaning (its heads, the segments of a context). A table says which axes
of the mesh each meaning is spread over; the same code then runs on one device and on a pod. The
mesh is the one that `jax.set_mesh` has set; without one, nothing here does anything.
"""

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, PartitionSpec
from jaxtyping import Array, Float, Int

Axis = Literal[
    "segment", "batch", "heads", "kv_heads", "mlp", "embed", "vocab", "layers", "width", "head_dim"
]
"""What an axis means. `embed` is a weight's axis of the model's width, `width` that of activations
and norms; the latter and `head_dim` are never spread."""

Axes = Sequence[Axis | None]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rules:
    """The table: from what an axis means to axes of the mesh, outermost first.

    Those that a mesh lacks count for nothing, so that one table serves meshes of all kinds. Spread
    along `embed`, weights are gathered where they are used, layer by layer (FSDP).

    Attributes:
        segment: Segments of a context.
        batch: Examples, texts and rows side by side.
        heads: Query heads.
        kv_heads: Key and value heads; the same as `heads`.
        mlp: Inner axis of the MLPs.
        embed: Weights, along the model's width.
        vocab: Embedding and output head, along the vocabulary.
        layers: Weights, along the layers.
    """

    segment: tuple[str, ...] = ("segment", "fsdp")
    batch: tuple[str, ...] = ("data",)
    heads: tuple[str, ...] = ("tensor",)
    kv_heads: tuple[str, ...] = ("tensor",)
    mlp: tuple[str, ...] = ("tensor",)
    embed: tuple[str, ...] = ("fsdp",)
    vocab: tuple[str, ...] = ("tensor",)
    layers: tuple[str, ...] = ()

    def on(self, axis: Axis | None, mesh: Any) -> tuple[str, ...]:
        """Axes of a mesh that one of an array is spread over.

        Args:
            axis: What it means; `None` for one that is never spread.
            mesh: Concrete or abstract.
        """
        wanted = () if axis is None else getattr(self, axis, ())
        return tuple(name for name in wanted if name in mesh.axis_names)

    def spec(self, axes: Axes, mesh: Any) -> PartitionSpec:
        """How an array lies on a mesh.

        Args:
            axes: What each of its axes means.
            mesh: Concrete or abstract.
        """
        return PartitionSpec(*(self.on(axis, mesh) or None for axis in axes))

    def over(self, axis: Axis) -> int:
        """Over how many devices of the mesh in use an axis is spread; 1 without a mesh."""
        mesh = mesh_in_use()
        return 1 if mesh is None else math.prod(mesh.shape[name] for name in self.on(axis, mesh))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingRules(Rules):
    """The table for batches of examples: these are spread first."""

    segment: tuple[str, ...] = ("segment",)
    batch: tuple[str, ...] = ("data", "fsdp")


READING, TRAINING = Rules(), TrainingRules()
"""For what reads a context at a time, whose segments are spread first; and for training."""


def mesh_in_use() -> Any:
    """The abstract mesh that a program is traced under, or `None`."""
    mesh = jax.sharding.get_abstract_mesh()
    return None if mesh.empty else mesh


def shard(x: Array, axes: Axes, rules: Rules) -> Array:
    """An array as the table wants it; the same array where there is no mesh.

    Args:
        x: The array; axes of an outer `vmap` are not among its own.
        axes: What each axis means.
        rules: The table.
    """
    mesh = mesh_in_use()
    if mesh is None or mesh.are_all_axes_manual:
        return x
    spec = rules.spec(axes, mesh)
    if any(kind is AxisType.Auto for kind in mesh.axis_types):
        return jax.lax.with_sharding_constraint(x, spec)
    return jax.reshard(x, spec)


def product(
    x: Float[Array, "*batch in_"],
    weight: Float[Array, "out in_"],
    axes: tuple[Axis | None, Axis | None],
    rules: Rules,
    dtype: Any = None,
) -> Float[Array, "*batch out"]:
    """Activations times a weight, which is gathered along `embed` first.

    Where the inner axis is spread, every device has a part of each sum, and these are added up.

    Args:
        x: Activations, spread along the inner axis as the weight is.
        weight: In the dtype of `x`.
        axes: What the weight's axes mean.
        rules: The table.
        dtype: Of the result; that of `x` by default.
    """
    used: list[Axis | None] = [None if axis == "embed" else axis for axis in axes]
    weight = shard(weight, used, rules)
    return jnp.einsum(
        "...i,oi->...o",
        x,
        weight,
        preferred_element_type=dtype,
        out_sharding=_behind(x, used[0], rules),
    )


def lookup(
    table: Float[Array, "rows width"], index: Int[Array, "*batch"], rules: Rules
) -> Float[Array, "*batch width"]:
    """Rows of a table that is spread along `vocab` and `embed`."""
    table = shard(table, ("vocab", None), rules)
    spec = _behind(index[..., None], None, rules)
    return table[index] if spec is None else table.at[index].get(out_sharding=spec)


def picked(x: Float[Array, " vocab"], index: Int[Array, ""], rules: Rules) -> Float[Array, ""]:
    """One element of an array that is spread along `vocab`; it stays where it is."""
    if rules.over("vocab") == 1:
        return x[index]
    return jnp.sum(jnp.where(jnp.arange(x.shape[0]) == index, x, 0.0))


def _behind(x: Array, last: Axis | None, rules: Rules) -> PartitionSpec | None:
    """How a result lies that has the axes of `x` but for its last one."""
    mesh = mesh_in_use()
    if mesh is None or not any(kind is AxisType.Explicit for kind in mesh.axis_types):
        return None
    return PartitionSpec(*jax.typeof(x).sharding.spec[:-1], rules.on(last, mesh) or None)
