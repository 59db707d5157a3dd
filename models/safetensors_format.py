"""What is in a safetensors file, by the `safetensors` package, without reading the tensors.

Tensors are fetched by rows from a file that is opened for one tensor at a time: the package maps
files into memory, and closing one gives its pages back.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

from .assemble import CHUNK, Part, StoredTensor
from .problems import Problems

_DTYPES = ("F32", "F16", "BF16")


def stored_tensors(file: Path, problems: Problems) -> dict[str, StoredTensor]:
    """The tensors of a file by name.

    Args:
        file: A `.safetensors` file.
        problems: Takes unsupported dtypes and a file that is damaged or cut short. The tensors
            concerned are returned all the same, so that they are not called missing.

    Raises:
        OSError: The file cannot be read.
    """
    try:
        with safe_open(file, "np") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            found = {name: (tuple(s.get_shape()), s.get_dtype()) for name, s in slices.items()}
    except SafetensorError as error:
        found = _claimed(file)
        problems.add("broken file", f"{file.name} ({error}){_listing(list(found))}")
    for name, (_, dtype) in found.items():
        if dtype not in _DTYPES:
            what = f"{name} is {dtype} in {file.name}; supported: {', '.join(_DTYPES)}"
            problems.add("unsupported dtype", what)
    return {name: _tensor(file, name, shape) for name, (shape, _) in found.items()}


def _tensor(file: Path, name: str, shape: tuple[int, ...]) -> StoredTensor:
    def pieces(part: Part) -> Iterator[np.ndarray]:
        with safe_open(file, "np") as opened:
            tensor = opened.get_slice(name)
            if not part:
                yield tensor[...]
                return
            rows, *inner = part
            at_once = max(1, CHUNK // max(1, math.prod(each.stop - each.start for each in inner)))
            for start in range(rows.start, rows.stop, at_once):
                yield tensor[(slice(start, min(start + at_once, rows.stop)), *inner)]

    return StoredTensor(file, shape, pieces)


def _claimed(file: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """What the header of a file that the package refuses still says is in it."""
    try:
        with file.open("rb") as stream:
            header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
        header.pop("__metadata__", None)
        return {name: (tuple(each["shape"]), each["dtype"]) for name, each in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, MemoryError):
        return {}


def _listing(names: list[str]) -> str:
    shown = ", ".join(names[:5])
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f": it holds {shown}{more}" if names else ""
