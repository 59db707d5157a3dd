"""The safetensors file format, both ways: 8 bytes of length, a JSON header, then the tensors.

Written here rather than with the `safetensors` package because that maps or holds whole files:
this reads any part of a tensor and writes tensor by tensor, so memory is that of one of these.
"""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from .assemble import StoredTensor
from .problems import Problems

_DTYPES: dict[str, np.dtype] = {
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_MAX_HEADER = 100_000_000  # the limit of the reference implementation


def read_header(file: Path, problems: Problems) -> dict[str, StoredTensor]:
    """The tensors of a file, without reading them.

    Args:
        file: A `.safetensors` file.
        problems: Takes a broken header, unsupported dtypes, and tensors that do not fit the file.
            The tensors concerned are returned all the same, so that they are not called missing.

    Raises:
        OSError: The file cannot be read.
    """
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > min(size - 8, _MAX_HEADER):
            problems.add("broken file", f"{file.name} is cut short or not a safetensors file")
            return {}
        text = stream.read(length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {
            name: _tensor(file, name, entry, 8 + length, size, problems)
            for name, entry in header.items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        problems.add("broken file", f"{file.name} has a damaged header ({error!r})")
        return {}


def _tensor(
    file: Path, name: str, entry: Mapping[str, Any], base: int, size: int, problems: Problems
) -> StoredTensor:
    shape, (begin, end) = tuple(entry["shape"]), entry["data_offsets"]
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        supported = ", ".join(_DTYPES)
        what = f"{name} is {entry['dtype']} in {file.name}; supported: {supported}"
        problems.add("unsupported dtype", what)
        dtype = _DTYPES["F32"]
    elif end - begin != math.prod(shape) * dtype.itemsize or begin < 0:
        what = f"{name}: {end - begin} bytes for {entry['dtype']} {list(shape)} in {file.name}"
        problems.add("damaged", what)
    elif base + end > size:
        what = f"{name} ends at byte {base + end}, {file.name} at {size}"
        problems.add("cut short", what)

    def read(start: int, count: int) -> np.ndarray:
        offset = base + begin + start * dtype.itemsize
        return np.fromfile(file, np.uint8, count * dtype.itemsize, offset=offset).view(dtype)

    return StoredTensor(file, shape, read)


def header_entry(shape: tuple[int, ...], dtype: np.dtype, begin: int) -> dict[str, Any]:
    """How a file's header describes a tensor whose data starts at `begin`."""
    end = begin + math.prod(shape) * dtype.itemsize
    return {"dtype": _NAMES[dtype], "shape": list(shape), "data_offsets": [begin, end]}


def write_file(
    file: Path, tensors: Mapping[str, tuple[tuple[int, ...], Callable[[], np.ndarray]]], dtype: Any
) -> None:
    """Write tensors of one dtype to a new file, fetching each only when its turn comes.

    Args:
        file: To be made.
        tensors: Shape and a function that gives the array, by name.
        dtype: Of all of them: float32, bfloat16 or float16.

    Raises:
        OSError: The file cannot be written, or exists.
    """
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt"}
    }  # transformers refuses files without
    begin = 0
    for name, (shape, _) in tensors.items():
        header[name] = header_entry(shape, np.dtype(dtype), begin)
        begin = header[name]["data_offsets"][1]
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # tensors start aligned
    with file.open("xb") as stream:
        stream.write(len(text).to_bytes(8, "little"))
        stream.write(text)
        for _, fetch in tensors.values():
            array = np.ascontiguousarray(fetch(), dtype)
            stream.write(array.reshape(-1).view(np.uint8).data)
