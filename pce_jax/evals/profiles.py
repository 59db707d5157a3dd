"""A close look at one instance of each task, which reports draw: entropy by layer, head and token.

    DIR/profiles/TASK.json

Measured at the highest degree and with full attention, where the config asks for these.
"""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from pce_jax.analysis.profile import Profile, profile
from pce_jax.analysis.study import Cell, measure
from pce_jax.errors import EvalError
from pce_jax.evals.prepare import Prepared
from pce_jax.evals.store import write_json
from pce_jax.method import Method
from pce_jax.models import Llama

FOLDER = "profiles"

Wanted = dict[tuple[str, int], Method]
"""Methods by name and degree."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskProfile:
    """Profiles of one instance.

    Attributes:
        instance: Its id.
        profiles: By method and degree.
    """

    instance: str
    profiles: tuple[Profile, ...]

    def by_cell(self) -> dict[tuple[str, int], Profile]:
        """By method and degree."""
        return {(one.method, one.degree): one for one in self.profiles}

    def to_dict(self) -> dict[str, Any]:
        """As JSON values."""
        return {"instance": self.instance, "profiles": [one.to_dict() for one in self.profiles]}


def choose(methods: Wanted) -> Wanted:
    """Full attention, if it is there, and every method at the highest degree above 1."""
    highest = max((degree for _, degree in methods), default=1)
    full = [key for key, method in methods.items() if key[1] == 1 and not method.sink]
    last = [key for key in methods if key[1] == highest > 1]
    return {key: methods[key] for key in (*full[:1], *last)}


def update_profiles(
    model: Llama,
    folder: Path,
    task: str,
    one: Prepared,
    wanted: Wanted,
    encode: Callable[[str], Sequence[int]],
    on_title: Callable[[str], object] = lambda title: None,
) -> None:
    """Measure what a results folder does not have of a task yet.

    Args:
        model: The decoder.
        folder: The results folder.
        task: Name of the task.
        one: An instance; it fits the model at each degree.
        wanted: From `choose`.
        encode: From a sink's text to token ids.
        on_title: Called with each method before it is measured.

    Raises:
        EvalError: The file cannot be read or written.
    """
    there = read_profiles(folder, task)
    have = {} if there is None or there.instance != one.source.id else there.by_cell()
    for (name, degree), method in wanted.items():
        if (name, degree) not in have:
            on_title(f"{task}: a close look, {name} P={degree}")
            have[name, degree] = _measure(model, one, name, degree, method, encode)
            found = TaskProfile(instance=one.source.id, profiles=tuple(have.values()))
            write_json(path_of(folder, task), found.to_dict())


def _measure(
    model: Llama,
    one: Prepared,
    name: str,
    degree: int,
    method: Method,
    encode: Callable[[str], Sequence[int]],
) -> Profile:
    cell = Cell(
        name=name,
        degree=degree,
        method=method,
        sink=encode(method.sink) if method.sink else (),
        segments=one.segments(degree),
        query=one.query,
    )
    [(measured, _)] = measure(model, [cell])
    return profile(measured)


def path_of(folder: Path, task: str) -> Path:
    """The file of a task."""
    return folder / FOLDER / f"{task}.json"


def read_profiles(folder: Path, task: str) -> TaskProfile | None:
    """What a results folder has of a task, if anything.

    Raises:
        EvalError: The file is malformed.
    """
    path = path_of(folder, task)
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        return TaskProfile(
            instance=str(values["instance"]),
            profiles=tuple(map(Profile.from_dict, values["profiles"])),
        )
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise EvalError(
            f"{path} cannot be read ({error!r}). Delete it: the same `pce-jax eval` writes it "
            "again."
        ) from error
