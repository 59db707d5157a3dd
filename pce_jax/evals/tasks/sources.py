"""Reading data files and Hugging Face datasets, with errors that name file and line."""

import csv
import dataclasses
import gzip
import importlib
import io
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from pce_jax.errors import SettingsError

HUGGING_FACE = "hf:"
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Record:
    """One row of data and where it stands.

    Attributes:
        where: File and line, as said in errors.
        number: Position in its file, from 0.
        values: Field names and values.
    """

    where: str
    number: int
    values: Mapping[str, Any]

    def error(self, problem: str) -> SettingsError:
        """An error about this row."""
        return SettingsError(f"{self.where}: {problem}")

    def get(self, *names: str) -> Any:
        """The value of the first of these fields that is there.

        Raises:
            SettingsError: None of them is.
        """
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        wanted = " or ".join(f'"{name}"' for name in names)
        raise self.error(
            f"there is no field {wanted}; the row has {', '.join(map(str, self.values)) or 'none'}."
        )

    def text(self, *names: str) -> str:
        """As `get`, for a field that must hold text.

        Raises:
            SettingsError: It is missing, holds something else, or is empty.
        """
        value = self.get(*names)
        if not isinstance(value, str) or not value.strip():
            raise self.error(f'"{names[0]}" must be text, and not empty; it is {value!r:.60}.')
        return value


def is_hugging_face(source: str) -> bool:
    """Whether this names a dataset rather than a file: `hf:OWNER/NAME[/CONFIG]:SPLIT`."""
    return source.startswith(HUGGING_FACE)


def read_bytes(source: str) -> bytes:
    """The contents of a file, unpacked if its name ends in `.gz`.

    Raises:
        SettingsError: It is missing, unreadable, damaged or empty.
    """
    path = Path(source)
    try:
        data = path.read_bytes()
        if path.suffix == ".gz":
            data = gzip.decompress(data)
    except FileNotFoundError as error:
        raise SettingsError(
            f"there is no data file {path} (looked in {Path.cwd()}). Check the spelling."
        ) from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise SettingsError(f"{path} is no whole gzip file: {error}. Fetch it again.") from error
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror or error}.") from error
    if not data.strip():
        raise SettingsError(f"{path} is empty. Leave it out, or put data into it.")
    return data


def read_text(source: str) -> str:
    """The contents of a UTF-8 file; line ends as they are.

    Raises:
        SettingsError: As `read_bytes`, or it is not UTF-8 text.
    """
    data = read_bytes(source)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise SettingsError(
            f"{source}, line {line}: this is not UTF-8 text ({error.reason}). Convert the file, or "
            "name a text file."
        ) from error


def records(source: str) -> Iterator[Record]:
    """The rows of a `.jsonl`, `.json` or `.csv` file (`.gz` behind it or not) or of a dataset.

    A `.json` file holds a list of objects, by itself or under the key `data`.

    Raises:
        SettingsError: It cannot be read, or a row is malformed; the message names the line.
    """
    if is_hugging_face(source):
        return dataset_records(source, load_dataset(source))
    name = source.removesuffix(".gz")
    if name.endswith(".csv"):
        return csv_records(source)
    if name.endswith(".json"):
        return _json_records(source)
    return _jsonl_records(source)


def csv_records(source: str, delimiter: str = ",") -> Iterator[Record]:
    """The rows of a CSV file by its header.

    Raises:
        SettingsError: It cannot be read, or a row has another number of fields than the header.
    """
    reader = csv.DictReader(
        io.StringIO(read_text(source), newline=""), delimiter=delimiter, skipinitialspace=True
    )
    try:
        for number, row in enumerate(reader):
            where = f"{source}, line {reader.line_num}"
            if None in row or None in row.values():
                raise SettingsError(
                    f"{where}: the header has {len(reader.fieldnames or ())} fields, "
                    "this row another number. Check its quotes."
                )
            yield Record(where=where, number=number, values=row)
    except csv.Error as error:
        raise SettingsError(f"{source}, line {reader.line_num}: malformed CSV: {error}.") from error


def _jsonl_records(source: str) -> Iterator[Record]:
    lines = read_text(source).split("\n")  # `splitlines` would cut at U+2028 too
    filled = ((line, text) for line, text in enumerate(lines, 1) if text.strip())
    for number, (line, text) in enumerate(filled):
        where = f"{source}, line {line}"
        yield _record(where, number, parse_json(text, where))


def _json_records(source: str) -> Iterator[Record]:
    data = parse_json(read_text(source), source)
    rows = data.get("data") if isinstance(data, dict) else data
    if not isinstance(rows, list):
        raise SettingsError(
            f'{source}: a .json file must hold a list of objects, or one under the key "data".'
        )
    for number, row in enumerate(rows):
        yield _record(f"{source}, row {number + 1}", number, row)


def parse_json(text: str, where: str) -> Any:
    """What a JSON text holds.

    Raises:
        SettingsError: It is malformed.
    """
    try:
        value = json.loads(text)
        if _SURROGATE.search(text):  # half of a pair passes as JSON, but is no text
            json.dumps(value, ensure_ascii=False).encode()
        return value
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{where}: malformed JSON: {error}.") from error


def _record(where: str, number: int, row: Any) -> Record:
    if not isinstance(row, dict):
        raise SettingsError(f"{where}: a JSON object is wanted here, this is {row!r:.60}.")
    return Record(where=where, number=number, values=row)


def dataset_records(source: str, rows: Iterable[Mapping[str, Any]]) -> Iterator[Record]:
    """The rows of a loaded dataset."""
    for number, row in enumerate(rows):
        yield Record(where=f"{source}, row {number + 1}", number=number, values=row)


def load_dataset(source: str) -> Any:
    """A split of a Hugging Face dataset: `hf:OWNER/NAME:SPLIT` or `hf:OWNER/NAME/CONFIG:SPLIT`.

    Raises:
        SettingsError: The name is malformed, `datasets` is not installed, or it cannot load this.
    """
    name, colon, split = source.removeprefix(HUGGING_FACE).partition(":")
    parts = name.split("/")
    if not colon or not split or not 2 <= len(parts) <= 3 or not all(parts):
        raise SettingsError(
            f"{source!r} names no dataset. Write hf:OWNER/NAME:SPLIT or "
            "hf:OWNER/NAME/CONFIG:SPLIT, as in hf:PolyAI/banking77:train."
        )
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise SettingsError(
            f"{source} needs the package datasets: pip install 'pce-jax[data]'. Or name a file."
        ) from error
    try:
        return datasets.load_dataset("/".join(parts[:2]), *parts[2:], split=split)
    except Exception as error:  # a dozen kinds, from its own to those of HTTP clients
        reason = (str(error).splitlines() or [""])[0]
        raise SettingsError(
            f"{source} cannot be loaded: {type(error).__name__}: {reason}\n"
            "Check its name, config and split, and the network; or name a file."
        ) from error
