"""The folder of a run.

OUT/run.json        the settings and the model
OUT/metrics.jsonl   a line a step, and one a measurement
OUT/checkpoints/    states to go on from, and the best
OUT/summary.json    before and after, once it is done
"""

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import filelock

from pce_jax.errors import FinetuneError

RUN, SUMMARY, CHECKPOINTS = "run.json", "summary.json", "checkpoints"


@contextmanager
def locked(folder: Path) -> Generator[None]:
    """Hold a run's folder, for one process at a time; a killed one holds nothing.

    Args:
        folder: Created if absent.

    Raises:
        FinetuneError: Another run holds it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(folder / ".lock", timeout=0)
        with lock:
            yield
    except filelock.Timeout as error:
        raise FinetuneError(
            f"another run is writing into {folder}. Wait for its end, or use another folder "
            "(--out)."
        ) from error
    except OSError as error:
        raise FinetuneError(
            f"the folder {folder} cannot be written: {error.strerror or error}. Use another "
            "(--out)."
        ) from error


def describe(folder: Path, model: str, settings: Mapping[str, Any]) -> None:
    """Write down what the run is, or check that it is the one that the folder holds.

    Args:
        folder: Of the run.
        model: As in `pce_jax.load`.
        settings: All that its numbers follow from.

    Raises:
        FinetuneError: It is another one; the settings that differ are named.
    """
    now = json.loads(json.dumps(settings))
    if not (folder / RUN).exists():
        write_json(folder / RUN, {"model": model, "settings": now})
        return
    before = read_run(folder)["settings"]
    differ = [
        f"  {key}: {json.dumps(before.get(key))} there, {json.dumps(now.get(key))} now"
        for key in dict.fromkeys([*before, *now])
        if before.get(key) != now.get(key)
    ]
    if differ:
        raise FinetuneError(
            f"{folder} holds a run of other settings:\n"
            + "\n".join(differ)
            + "\nUse another folder (--out), or the settings of this one."
        )


def read_run(folder: Path) -> dict[str, Any]:
    """What `describe` has written.

    Args:
        folder: Of the run.

    Raises:
        FinetuneError: There is no run, or it cannot be read.
    """
    path = folder / RUN
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return {"model": str(found["model"]), "settings": dict(found["settings"])}
    except FileNotFoundError as error:
        raise FinetuneError(
            f"{folder} holds no run: there is no {RUN}. Name a folder of `pce-jax finetune`."
        ) from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FinetuneError(f"{path} cannot be read: {error}.") from error


def write_json(path: Path, value: Any) -> None:
    """Write JSON so that the file appears whole or not at all.

    Args:
        path: The file.
        value: JSON values.

    Raises:
        FinetuneError: It cannot be written.
    """
    new = path.with_suffix(".new")
    try:
        new.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
        new.replace(path)
    except OSError as error:
        raise FinetuneError(f"{path} cannot be written: {error.strerror or error}.") from error
