"""The GGUF file format: metadata, then where each tensor is, then the tensors.

The `gguf` package's reader maps the file and spends seconds on a vocabulary; a straight walk
through the header takes half a second. What the package does best is kept: undoing quantisation.
"""

import dataclasses
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from .assemble import CHUNK, Part, StoredTensor
from .errors import WeightsError
from .problems import Problems

_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_STRING, _ARRAY = 8, 9
_VERSIONS = (2, 3)
_MAX_DIMENSIONS = 4
_DAMAGE = (EOFError, LookupError, ValueError, TypeError, ArithmeticError, MemoryError, struct.error)

SUPPORTED_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")


@dataclasses.dataclass(frozen=True)
class GgufHeader:
    """What a file says before its tensors.

    Attributes:
        metadata: Keys and values; arrays are lists.
        tensors: Tensors by name.
    """

    metadata: dict[str, Any]
    tensors: dict[str, StoredTensor]


def read_gguf_header(file: Path, problems: Problems) -> GgufHeader:
    """Read everything of a file but its tensors.

    Args:
        file: A GGUF file, little-endian, version 2 or 3.
        problems: Takes tensors of unsupported types or past the end of the file; they are returned
            all the same, so that they are not called missing.

    Raises:
        WeightsError: This is no GGUF file, one of another version, or cut short in its header.
        OSError: The file cannot be read.
    """
    with file.open("rb") as stream:
        magic, version = stream.read(4), int.from_bytes(stream.read(4), "little")
        if magic != b"GGUF":
            raise WeightsError(f"{file} is not a GGUF file (it does not start with 'GGUF').")
        if version not in _VERSIONS:
            raise WeightsError(
                f"{file} is GGUF version {version}; only little-endian versions 2 and 3 are read. "
                "Convert the model again with a current llama.cpp."
            )
        try:
            num_tensors, num_keys = _numbers(stream, "QQ")
            metadata = {}
            for _ in range(num_keys):
                key = _string(stream)
                metadata[key] = _value(stream, *_numbers(stream, "I"))
            infos = [_tensor_info(stream) for _ in range(num_tensors)]
            alignment = metadata.get("general.alignment", 32)
            base = stream.tell() + -stream.tell() % alignment
        except _DAMAGE as error:
            raise WeightsError(
                f"{file} is cut short or damaged in its header ({error!r}). Fetch it anew."
            ) from error
    size = file.stat().st_size
    tensors: dict[str, StoredTensor] = {}
    for name, shape, kind, offset in infos:
        if name in tensors:
            problems.add("twice", name)
        tensors[name] = _tensor(file, name, shape, kind, base + offset, size, problems)
    return GgufHeader(metadata, tensors)


def _numbers(stream: BinaryIO, codes: str) -> tuple[Any, ...]:
    size = struct.calcsize(f"<{codes}")
    data = stream.read(size)
    if len(data) < size:
        raise EOFError("the file ends")
    return struct.unpack(f"<{codes}", data)


def _string(stream: BinaryIO) -> str:
    (length,) = _numbers(stream, "Q")
    data = stream.read(length)
    if len(data) < length:
        raise EOFError("the file ends within a string")
    return data.decode("utf-8")


def _strings(stream: BinaryIO, count: int) -> list[str]:
    """As many times `_string`, without its overhead: a vocabulary has a hundred thousand."""
    read, strings = stream.read, []
    for _ in range(count):
        head = read(8)
        data = read(int.from_bytes(head, "little"))
        strings.append(data.decode("utf-8"))
        if len(head) < 8 or len(data) < int.from_bytes(head, "little"):
            raise EOFError("the file ends within a string")
    return strings


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind != _ARRAY:
        return _numbers(stream, _SCALARS[kind])[0]
    inner, count = _numbers(stream, "IQ")
    if inner in _SCALARS:
        return list(_numbers(stream, f"{count}{_SCALARS[inner]}"))
    if inner == _STRING:
        return _strings(stream, count)
    return [_value(stream, inner) for _ in range(count)]


def _tensor_info(stream: BinaryIO) -> tuple[str, tuple[int, ...], int, int]:
    name = _string(stream)
    (dimensions,) = _numbers(stream, "I")
    if dimensions > _MAX_DIMENSIONS:
        raise ValueError(f"{name!r} has {dimensions} dimensions")
    shape = _numbers(stream, f"{dimensions}Q")[::-1]  # the file has the fastest axis first
    kind, offset = _numbers(stream, "IQ")
    return name, shape, kind, offset


def _tensor(
    file: Path,
    name: str,
    shape: tuple[int, ...],
    kind: int,
    begin: int,
    file_size: int,
    problems: Problems,
) -> StoredTensor:
    import gguf  # here, because most users never read a GGUF

    known = {int(member) for member in gguf.GGMLQuantizationType}
    type_name = gguf.GGMLQuantizationType(kind).name if kind in known else f"type {kind}"
    if type_name not in SUPPORTED_TYPES:
        what = f"{name} is {type_name}; supported: {', '.join(SUPPORTED_TYPES)}"
        problems.add("unsupported type", what)
        type_name = "F32"
    quantization = gguf.GGMLQuantizationType[type_name]
    block, block_bytes = gguf.GGML_QUANT_SIZES[quantization]
    end = begin + math.prod(shape) // block * block_bytes
    if shape and shape[-1] % block:
        problems.add("damaged", f"{name}: rows of {shape[-1]} are not whole {type_name} blocks")
    elif end > file_size:
        problems.add("cut short", f"{name} ends at byte {end}, {file.name} at {file_size}")

    def pieces(part: Part) -> Iterator[np.ndarray]:
        row = math.prod(shape[1:])
        rows, columns = (part[0], part[1:]) if part else (slice(0, 1), ())
        cut = any(each != slice(0, size) for each, size in zip(columns, shape[1:], strict=True))
        start, stop = (begin + at * row // block * block_bytes for at in (rows.start, rows.stop))
        at_once = max(1, CHUNK // row) * row if cut else CHUNK  # whole rows, to cut columns from
        with file.open("rb") as stream:
            stream.seek(start)
            while (left := stop - stream.tell()) > 0:
                data = stream.read(min(left, at_once // block * block_bytes))
                if not data or len(data) % block_bytes:
                    return  # the file has shrunk since its header was read
                # One long row: the package works on 16 rows at a time; short rows are slow.
                values = gguf.dequantize(np.frombuffer(data, np.uint8)[None], quantization)[0]
                yield values.reshape(-1, *shape[1:])[:, *columns] if cut else values

    return StoredTensor(file, shape, pieces)
