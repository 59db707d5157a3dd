"""What the device can do: a large matrix product, a copy, and the products of the model alone."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from pce_jax.models import LlamaConfig

from .flops import linear_shapes
from .timing import Case, interleaved


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The best of what was measured.

    Attributes:
        flops: Operations a second in a square matrix product.
        bytes: Bytes a second, read and written, in a copy.
    """

    flops: float
    bytes: float

    def best(self, other: "Roofline | None") -> "Roofline":
        """The better of two measurements, in each respect."""
        if other is None:
            return self
        return Roofline(max(self.flops, other.flops), max(self.bytes, other.bytes))


def measure(dtype: Any, size: int, copied: int, repeats: int, **timing: Any) -> Roofline:
    """Multiply two square matrices, and read and write an array, `repeats` times.

    Args:
        dtype: Of the numbers.
        size: Rows of the matrices.
        copied: Bytes of the array.
        repeats: How often.
        timing: `step` and `clock` of `interleaved`.
    """
    square = jnp.ones((size, size), dtype)
    array = jnp.ones(copied // square.itemsize, dtype)

    def copy() -> jax.Array:
        nonlocal array
        array = _copied(array)
        return array

    cases = {
        "matrix product": Case(functools.partial(_product, square, square), cost=2.0 * size**3),
        "copy": Case(copy, cost=20.0 * copied),
    }
    found = interleaved(cases, repeats, **timing)
    return Roofline(
        2 * size**3 / found["matrix product"].sample.low,
        2 * array.nbytes / found["copy"].sample.low,
    )


@jax.jit
def _product(left: jax.Array, right: jax.Array) -> jax.Array:
    return left @ right


@functools.partial(jax.jit, donate_argnums=0)
def _copied(array: jax.Array) -> jax.Array:
    """Every number read, and written where it was: new memory would cost more than the copy."""
    return -array


def layer_products(config: LlamaConfig, rows: int, dtype: Any) -> Callable[[], None]:
    """The projections of one layer as plain products, one after another, of `rows` tokens."""
    shapes = linear_shapes(config).values()
    inputs = {into: jnp.ones((rows, into), dtype) for _, into in shapes}
    weights = [jnp.ones((into, out), dtype) for out, into in shapes]

    def run() -> None:
        for weight in weights:
            jax.block_until_ready(_product(inputs[weight.shape[0]], weight))

    return run
