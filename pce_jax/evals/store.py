"""The folder of results: a manifest, and one JSON line per instance in a file per cell.

    DIR/manifest.json
    DIR/cells/TASK/METHOD/DEGREE.jsonl

Lines are appended and flushed to disk batch by batch. A process that is killed in between leaves at
most a torn last line, which the next run cuts off. A cell is complete when it has as many rows as
the manifest counts instances of its task. The manifest names the cells that were skipped.
"""

import contextlib
import dataclasses
import errno
import fcntl
import json
import logging
import os
import platform
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

from pce_jax.errors import EvalError
from pce_jax.evals.rows import Row

LOG = logging.getLogger(__name__)
MANIFEST = "manifest.json"
CELLS = "cells"
FORMAT = 1

Cell = tuple[str, str, int]
"""Task, method, degree."""


class Results:
    """A results folder that is being written; made by `open_results`."""

    def __init__(self, folder: Path, manifest: dict[str, Any]):
        self.folder = folder
        self.manifest = manifest

    def ids(self, cell: Cell) -> set[str]:
        """Ids of a cell's complete rows; a torn last line is cut off first.

        Raises:
            EvalError: A line in the middle is malformed.
        """
        path = cell_path(self.folder, cell)
        if not path.exists():
            return set()
        rows, good = _parse(path)
        if good < path.stat().st_size:
            LOG.warning("%s ended in a torn line, of a run that was killed: cut off.", path)
            os.truncate(path, good)
        return {row.id for row in rows}

    def rows(self, cell: Cell) -> list[Row]:
        """A cell's rows."""
        return _parse(cell_path(self.folder, cell))[0]

    def append(self, rows: Sequence[Row]) -> None:
        """Add rows of one or more cells, so that they are on disk when this returns.

        Raises:
            EvalError: They cannot be written (the disk is full, say); the files are as before.
        """
        cells: dict[Cell, list[Row]] = {}
        for row in rows:
            cells.setdefault((row.task, row.method, row.degree), []).append(row)
        for cell, some in cells.items():
            lines = "".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in some)
            _append(cell_path(self.folder, cell), lines.encode())

    def count(
        self, task: str, instances: int, skipped: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """Note in the manifest how many instances a task has, and which cells are left out.

        Args:
            task: Name of the task.
            instances: How many.
            skipped: By method and degree, positions that the cell needs and the model lacks.

        Raises:
            EvalError: It had another number before, so its data have changed.
        """
        entry = self.manifest["tasks"][task]
        if entry.get("instances") not in (None, instances):
            raise EvalError(
                f"{self.folder} has results for {entry['instances']} instances of task {task!r}, "
                f"which now has {instances}: its data have changed. Use another folder (--out)."
            )
        said = {
            f"{method}/{degree}": needed for (method, degree), needed in (skipped or {}).items()
        }
        noted = {"instances": instances, "skipped": entry.get("skipped", {}) | said}
        if entry != entry | noted:
            entry |= noted
            write_json(self.folder / MANIFEST, self.manifest)


@contextlib.contextmanager
def open_results(folder: Path, manifest: Mapping[str, Any]) -> Generator[Results]:
    """Create or continue a results folder, for one process at a time.

    Further tasks, methods and degrees may join a folder. Whatever changes rows that are there may
    not.

    Args:
        folder: Where.
        manifest: From `pce_jax.evals.manifest.describe`.

    Raises:
        EvalError: The folder cannot be written, another run writes into it, or it holds results of
            another config; the message names the fields that differ.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("a+", encoding="utf-8")
    except OSError as error:
        raise _unwritable(folder, error) from error
    with lock:
        _lock(lock, folder)
        path = folder / MANIFEST
        merged = dict(manifest)
        if path.exists():
            try:
                merged = _join(_read_manifest(folder), manifest, folder)
            except (KeyError, TypeError, AttributeError) as error:
                raise EvalError(
                    f"{path} is not as `pce-jax eval` writes it ({error!r}). Use another folder "
                    "(--out)."
                ) from error
        elif any((folder / CELLS).glob("*/*/*.jsonl")):
            raise EvalError(f"{folder} has {CELLS} but no {MANIFEST}. Use another folder (--out).")
        write_json(path, merged)
        try:
            yield Results(folder, merged)
        finally:
            lock.truncate(0)


def read_results(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Everything in a results folder, also of a run that is going on.

    Returns:
        The manifest, and the rows in the order of its tasks, its methods, and degrees.

    Raises:
        EvalError: It is no results folder, a file among its cells is none, or a line in the middle
            of a file is malformed.
    """
    manifest = _read_manifest(folder)
    for path in cell_files(folder):
        if not _is_cell(path.relative_to(folder / CELLS)):
            raise EvalError(
                f"{path} is no cell of results: they are {CELLS}/TASK/METHOD/DEGREE.jsonl. Remove "
                "it, or move it out of the folder."
            )
    rows: list[Row] = []
    for task in manifest["tasks"]:
        for method in manifest["methods"]:
            files = (folder / CELLS / task / method).glob("[!.]*.jsonl")
            for path in sorted(files, key=lambda file: int(file.stem)):
                rows += _parse(path)[0]
    return manifest, rows


def cell_path(folder: Path, cell: Cell) -> Path:
    """The file of a cell."""
    task, method, degree = cell
    return folder / CELLS / task / method / f"{degree}.jsonl"


def cell_files(folder: Path) -> list[Path]:
    """Everything that lies among a folder's cells, hidden files apart."""
    found = (folder / CELLS).rglob("*")
    return sorted(path for path in found if path.is_file() and not path.name.startswith("."))


def _is_cell(path: Path) -> bool:
    """Whether a path below the cells is TASK/METHOD/DEGREE.jsonl."""
    stem = path.stem
    in_place = len(path.parts) == 3 and path.suffix == ".jsonl"
    return in_place and stem.isascii() and stem.isdecimal() and str(int(stem)) == stem


def _parse(path: Path) -> tuple[list[Row], int]:
    """The rows, and how many bytes of the file they take (less than all if its end is torn)."""
    lines = path.read_bytes().split(b"\n")
    rows: list[Row] = []
    good = 0
    for number, line in enumerate(lines[:-1], 1):
        try:
            values = json.loads(line)
            rows.append(Row(**(values | {"answers": tuple(values["answers"])})))
        except (ValueError, TypeError, KeyError) as error:
            if number == len(lines) - 1 and not lines[-1]:
                break  # written in part, as after a power failure
            raise EvalError(
                f"{path}, line {number}: this is no row of results ({error}). Delete the file, and "
                "the same command fills it again."
            ) from error
        good += len(line) + 1
    return rows, good


def _append(path: Path, data: bytes) -> None:
    try:
        if fresh := not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab", buffering=0) as file:
            size = os.fstat(file.fileno()).st_size
            try:
                while data:
                    data = data[os.write(file.fileno(), data) :]
                os.fsync(file.fileno())
            except BaseException:
                os.ftruncate(file.fileno(), size)
                raise
        if fresh:
            _sync_folder(path.parent)
    except OSError as error:
        raise _unwritable(path, error) from error


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a file as a whole.

    Raises:
        EvalError: It cannot be written; it is as before.
    """
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(values, file, indent=2)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
            _sync_folder(path.parent)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _unwritable(path: Path, error: OSError) -> EvalError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return EvalError(
            f"{path}: there is no room left to write ({error.strerror}). Everything "
            "before is kept. Make room, and the same command goes on from there."
        )
    return EvalError(
        f"{path} cannot be written: {error.strerror or error}. Name another folder with --out."
    )


def _lock(file: Any, folder: Path) -> None:
    """Hold the folder's lock as long as `file` is open: the system drops it with the process."""
    file.seek(0)
    holder = file.read().strip()
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise EvalError(
            f"another run writes into {folder} ({holder or 'it has just begun'}). Wait for it or "
            "end it, or use another folder (--out)."
        ) from error
    except OSError as error:  # some network file systems have no locks
        LOG.warning("%s cannot be locked (%s): start no second run on it.", folder, error.strerror)
    if holder:
        LOG.warning("Taking over %s from a run that has ended (%s).", folder, holder)
    file.truncate(0)
    file.write(f"process {os.getpid()} on {platform.node()}, {time.strftime('%F %T')}\n")
    file.flush()


def _read_manifest(folder: Path) -> dict[str, Any]:
    path = folder / MANIFEST
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise EvalError(f"{path} has format {manifest['format']}; this version reads {FORMAT}.")
        return manifest
    except FileNotFoundError as error:
        raise EvalError(
            f"{folder} is no folder of results: there is no {MANIFEST}. Name one that "
            "`pce-jax eval` has written."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, EvalError):
            raise
        raise EvalError(f"{path} cannot be read: {error}.") from error


def _join(old: dict[str, Any], new: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The manifest of a folder that a further run adds to."""
    before, now = _settings(old), _settings(new)
    differ = [
        f"  {key}: {json.dumps(before[key])} there, {json.dumps(now[key])} now"
        for key in before
        if key in now and before[key] != now[key]
    ]
    if differ:
        raise EvalError(
            f"{folder} holds results of another config:\n"
            + "\n".join(differ)
            + "\nUse another folder (--out), or the settings of this one."
        )
    for key in ("versions", "device"):
        if old[key] != new[key]:
            LOG.warning("%s was begun with another %s: %s.", folder, key, json.dumps(old[key]))
    tasks = dict(old["tasks"])
    for name, task in new["tasks"].items():
        kept = tasks.get(name, {"methods": {}})
        tasks[name] = task | kept | {"methods": kept["methods"] | task["methods"]}
    return old | {
        "degrees": sorted({*old["degrees"], *new["degrees"]}),
        "methods": list(dict.fromkeys([*old["methods"], *new["methods"]])),
        "tasks": tasks,
    }


def _settings(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """What rows depend on, as flat names and values."""
    keys = ("sha256", "adapters", "dtype", "weights", "cache")
    model = {f"model {key}": manifest["model"].get(key) for key in keys}
    found = model | {"chat": manifest["chat"]}
    for name, task in manifest["tasks"].items():
        for key in ("kind", "limit", "max_new_tokens"):
            found[f"task {name}: {key}"] = task[key]
        for key, value in task["fields"].items():
            found[f"task {name}: {key}"] = value
        for method, values in task["methods"].items():
            for key, value in values.items():
                found[f"task {name}: method {method}: {key}"] = value
    return found
