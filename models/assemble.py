"""From tensors in files to a model: check them all, then read them one by one into stacked arrays.

What both file formats share. Memory stays at the finished parameters, the one being stacked, and
the tensor being read: files are read in chunks, and each parameter leaves for its device as soon
as it is whole.
"""

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .config import LlamaConfig
from .errors import WeightsError
from .llama import Llama, parameter_shapes
from .problems import Problems

Place = Callable[[str, np.ndarray], jax.Array]
"""`place(name, array)` puts a parameter, named as in `parameter_shapes`, on its devices."""

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
        pieces: Reads it as consecutive pieces of any shape, about `CHUNK` elements each, in the
            dtype they are stored in (float32 if quantised).
        reorder: Puts the rows of the finished array in our order, in place.
    """

    file: Path
    shape: tuple[int, ...]
    pieces: Callable[[], Iterator[np.ndarray]]
    reorder: Callable[[np.ndarray], None] | None = None

    def chunks(self) -> Iterator[tuple[slice, np.ndarray]]:
        """All elements in order, as flat pieces with the flat positions they belong to.

        Raises:
            WeightsError: The file ends before the tensor does.
        """
        size, done = int(np.prod(self.shape, dtype=np.int64)), 0
        for values in self.pieces():
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
    place: Place | None = None,
    progress: Progress | None = None,
) -> Llama:
    """Read checked tensors into a model, one parameter at a time.

    Args:
        config: The model.
        stored: Tensors by their name in the file; `check_tensors` found nothing wrong with them.
        tensor_names: As in `check_tensors`.
        dtype: Of the model's weights.
        place: Where parameters go; JAX's default device by default.
        progress: Told how far the reading is.

    Raises:
        WeightsError: A file ends early, or a value is too large for `dtype`.
    """
    place = place or (lambda _, array: jax.device_put(array))
    shapes = parameter_shapes(config)
    total, done = sum(int(np.prod(shape, dtype=np.int64)) for shape in shapes.values()), 0
    parameters: dict[str, jax.Array] = {}
    for parameter, shape in shapes.items():
        names = tensor_names(parameter)
        array = _aligned(shape, dtype)
        layers = array if parameter.startswith("blocks.") else array[None]
        for name, layer in zip(names, layers, strict=True):
            fill(name, stored[name], layer)
            done += layer.size
            if progress is not None:
                progress(done, total)
        array.flags.writeable = False  # JAX may use this very memory
        parameters[parameter] = place(parameter, array).block_until_ready()
        del array, layers, layer
    return Llama(config, parameters)


def fill(name: str, tensor: StoredTensor, out: np.ndarray) -> None:
    """Read a whole tensor into `out`, converting to its dtype.

    Raises:
        WeightsError: The file ends early, or a value is too large for the dtype.
    """
    flat = out.reshape(-1)
    try:
        with np.errstate(over="raise"):
            for part, values in tensor.chunks():
                if out.dtype == np.float16 and values.dtype != np.float16:
                    values = values.astype(np.float32)  # bfloat16 itself overflows silently
                flat[part] = values
    except FloatingPointError:
        raise WeightsError(
            f"{tensor.file}: {name} has values too large for {out.dtype}. "
            "Load it as bfloat16 or float32."
        ) from None
    if tensor.reorder is not None:
        tensor.reorder(out)


def _aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(shape)
