"""From tensors in files to a model: check them all, then read them one by one into stacked arrays.

What both file formats share. Memory stays at the finished parameters, the one being stacked, and
the tensor being read: files are read in chunks, and each parameter leaves for its device as soon
as it is whole.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .config import LlamaConfig
from .errors import WeightsError
from .llama import Llama, parameter_shapes
from .mesh import MeshLayout
from .problems import Problems
from .sharding import READING

Part = tuple[slice, ...]
"""A part of a tensor: a slice of each axis, without steps."""

Progress = Callable[[int, int], None]
"""`progress(done, total)` is told, after each tensor, how many weights have been read."""

CHUNK = 1 << 16
"""Elements to read at a time: a multiple of every quantisation block, and small enough for the
allocator to hand out the same pages again; larger chunks fault in new ones, which costs seconds."""

_DTYPES = (jnp.float32, jnp.bfloat16, jnp.float16)
_ALIGNMENT = 64  # XLA's CPU client takes arrays so aligned without copying them


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file.

    Attributes:
        file: Where it is.
        shape: Its shape, slowest axis first.
        pieces: Reads a part of it as consecutive pieces of any shape, about `CHUNK` elements each,
            in the dtype they are stored in (float32 if quantised).
        reorder: Puts the rows of the finished array in our order, in place.
    """

    file: Path
    shape: tuple[int, ...]
    pieces: Callable[[Part], Iterator[np.ndarray]]
    reorder: Callable[[np.ndarray], None] | None = None

    @property
    def whole(self) -> Part:
        """All of it."""
        return tuple(slice(0, size) for size in self.shape)

    def chunks(self, part: Part | None = None) -> Iterator[tuple[slice, np.ndarray]]:
        """All elements in order, as flat pieces with the flat positions they belong to.

        Args:
            part: Only of this part; its positions are its own.

        Raises:
            WeightsError: The file ends before the tensor does.
        """
        part = self.whole if part is None else part
        size, done = math.prod(each.stop - each.start for each in part), 0
        for values in self.pieces(part):
            yield slice(done, done + values.size), values.reshape(-1)
            done += values.size
        if done != size:
            raise WeightsError(f"{self.file} ended while it was read. Fetch it anew.")


def check_dtype(dtype: Any) -> np.dtype:
    """The numpy dtype of weights.

    Raises:
        ValueError: It is not float32, bfloat16 or float16.
    """
    checked = np.dtype(dtype)
    if checked not in _DTYPES:
        raise ValueError(f"dtype must be float32, bfloat16 or float16, got {checked}")
    return checked


def check_tensors(
    config: LlamaConfig,
    stored: Mapping[str, StoredTensor],
    tensor_names: Callable[[str], list[str]],
    problems: Problems,
) -> None:
    """Compare the tensors that `config` asks for with those stored, both ways.

    Args:
        config: The model.
        stored: Tensors of the files by their name there, without those to be ignored.
        tensor_names: The file's names for one of our parameters, a layer each when it is stacked.
        problems: Takes what is missing, unexpected or wrongly shaped.
    """
    expected: dict[str, tuple[int, ...]] = {}
    for parameter, shape in parameter_shapes(config).items():
        each = shape[1:] if parameter.startswith("blocks.") else shape
        expected |= dict.fromkeys(tensor_names(parameter), each)
    for name, shape in expected.items():
        if name not in stored:
            problems.add("missing", name)
        elif stored[name].shape != shape:
            found = f"expected {list(shape)}, found {list(stored[name].shape)}"
            problems.add("wrong shape", f"{name}: {found} in {stored[name].file.name}")
    for name, tensor in stored.items():
        if name not in expected:
            problems.add("unexpected", f"{name} in {tensor.file.name}")


def assemble(
    config: LlamaConfig,
    stored: Mapping[str, StoredTensor],
    tensor_names: Callable[[str], list[str]],
    dtype: np.dtype,
    layout: MeshLayout | None = None,
    progress: Progress | None = None,
) -> Llama:
    """Read checked tensors into a model, one parameter at a time.

    Args:
        config: The model.
        stored: Tensors by their name in the file; `check_tensors` found nothing wrong with them.
        tensor_names: As in `check_tensors`.
        dtype: Of the model's weights.
        layout: How they lie on a mesh; each process then reads only what its devices hold. JAX's
            default device by default.
        progress: Told how far the reading is.

    Raises:
        ConfigError: The model cannot be spread so.
        WeightsError: A file ends early, or a value is too large for `dtype`.
    """
    shapes = parameter_shapes(config)
    shardings = {} if layout is None else layout.shardings(config)
    total, done = sum(math.prod(shape) for shape in shapes.values()), 0
    parameters: dict[str, jax.Array] = {}

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(done, total)

    for parameter, shape in shapes.items():
        stacked = parameter.startswith("blocks.")
        tensors = [(name, stored[name]) for name in tensor_names(parameter)]
        sharding = shardings.get(parameter)
        if sharding is None:
            array = _read(tensors, stacked, tuple(slice(0, size) for size in shape), dtype, told)
            parameters[parameter] = jax.device_put(array).block_until_ready()
            del array
            continue
        parameters[parameter] = _read_spread(tensors, stacked, shape, sharding, dtype)
        told(math.prod(shape))
    return Llama(config, parameters, rules=READING if layout is None else layout.rules)


def _read_spread(
    tensors: list[tuple[str, StoredTensor]],
    stacked: bool,
    shape: tuple[int, ...],
    sharding: jax.sharding.Sharding,
    dtype: np.dtype,
) -> jax.Array:
    """A parameter of which each device gets its part; copies of a part are read once."""
    read: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def part_of(index: tuple[slice, ...] | None) -> np.ndarray:
        assert index is not None
        bounds = [each.indices(size)[:2] for each, size in zip(index, shape, strict=True)]
        part = tuple(slice(*both) for both in bounds)
        if tuple(bounds) not in read:
            read[tuple(bounds)] = _read(tensors, stacked, part, dtype, lambda _: None)
        return read[tuple(bounds)]

    return jax.make_array_from_callback(shape, sharding, part_of, dtype=dtype).block_until_ready()


def _read(
    tensors: list[tuple[str, StoredTensor]],
    stacked: bool,
    part: Part,
    dtype: np.dtype,
    told: Callable[[int], None],
) -> np.ndarray:
    """A part of a parameter, from one tensor or from one a layer."""
    array = _aligned(tuple(each.stop - each.start for each in part), dtype)
    layers, inner = (part[0], part[1:]) if stacked else (slice(0, 1), part)
    for (name, tensor), layer in zip(
        tensors[layers], array if stacked else array[None], strict=True
    ):
        fill(name, tensor, layer, inner)
        told(layer.size)
    array.flags.writeable = False  # JAX may use this very memory
    return array


def fill(name: str, tensor: StoredTensor, out: np.ndarray, part: Part | None = None) -> None:
    """Read a tensor, or a part of it, into `out`, converting to its dtype.

    Raises:
        WeightsError: The file ends early, or a value is too large for the dtype.
    """
    if tensor.reorder is not None and part not in (None, tensor.whole):
        whole = np.empty(tensor.shape, out.dtype)  # rows of a part may come from anywhere
        fill(name, tensor, whole)
        out[...] = whole[part]
        return
    flat = out.reshape(-1)
    try:
        with np.errstate(over="raise"):
            for place, values in tensor.chunks(part):
                if out.dtype == np.float16 and values.dtype != np.float16:
                    values = values.astype(np.float32)  # bfloat16 itself overflows silently
                flat[place] = values
    except FloatingPointError:
        raise WeightsError(
            f"{tensor.file}: {name} has values too large for {out.dtype}. "
            "Load it as bfloat16 or float32."
        ) from None
    if tensor.reorder is not None:
        tensor.reorder(out)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = math.prod(shape) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
