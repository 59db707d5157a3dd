"""What to evaluate: a TOML file, checked, with changes from the command line."""

import dataclasses
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pce_jax.cache import Store
from pce_jax.errors import EvalError
from pce_jax.evals.fields import checked, convert, hints_of, nearest
from pce_jax.evals.instance import Task
from pce_jax.evals.methods import MethodSpec, method_spec
from pce_jax.method import Method
from pce_jax.selection import Dim

DEGREES = (1, 2, 4, 8, 16)
METHOD_NAMES = ("naive", "sink", "sel", "sink+sel")
DTYPES = Literal["float32", "bfloat16", "float16"]

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_KEYS: dict[str, Any] = {
    "model": str,
    "dtype": DTYPES | None,
    "weights": Literal["int8"] | None,
    "cache": Store | None,
    "degrees": tuple[int, ...],
    "methods": tuple[str, ...],
    "sink": str,
    "seed": int,
    "limit": int | None,
    "batch": int,
    "at_once": int | None,
    "chat": bool,
    "profile": bool,
    "out": str,
    "task": dict,
    "method": dict,
}
_NOT_FILES = ("hf:", "python:")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TaskSpec:
    """A task as the config describes it.

    Attributes:
        name: Names it in results.
        kind: Which class of task, a key of `pce_jax.evals.tasks.TASKS`.
        fields: What it is made of; paths are absolute, seed and limit those of the config unless
            the task has its own.
        written: The same with paths as they stand in the file, for the manifest.
        limit: Instances at most.
        sink: Sink text in place of the paper's for this kind.
        aggregate: Aggregation of selection in place of the paper's for this kind.
    """

    name: str
    kind: str
    fields: Mapping[str, Any]
    written: Mapping[str, Any]
    limit: int | None = None
    sink: str | None = None
    aggregate: frozenset[Dim] | None = None

    def make(self) -> Task:
        """The task itself.

        Raises:
            EvalError: Its fields have no meaning.
        """
        from pce_jax.evals.tasks import make_task

        return make_task(self.kind, name=self.name, **self.fields)

    def method(self, spec: MethodSpec, task: Any) -> Method:
        """What a method means for this task."""
        return spec.for_task(
            task.sink_text if self.sink is None else self.sink,
            task.aggregate if self.aggregate is None else self.aggregate,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvalConfig:
    """An evaluation: tasks x methods x degrees on one model.

    Attributes:
        path: The file it comes from.
        model: As in `pce_jax.load`.
        dtype: Of weights and activations; `None` for the default of `pce_jax.load`.
        weights: What to keep the weights as; `None` for `dtype`.
        cache: What to keep the segments' keys and values as; `None` for what is computed.
        degrees: Numbers of segments, ascending.
        methods: What to compare.
        seed: Of tasks that draw and have no seed of their own.
        limit: Instances of a task at most.
        batch: Instances side by side. Results do not depend on it.
        at_once: Segments of each that are encoded side by side; `None` for all. Nor on this.
        chat: Wrap queries in the tokenizer's chat template; contexts stay plain.
        profile: Also look closely at one instance of each task, for the report's pictures.
        out: Folder of the results.
        tasks: What to read and answer.
    """

    path: Path
    model: str
    dtype: str | None
    weights: Literal["int8"] | None
    cache: Store | None
    degrees: tuple[int, ...]
    methods: tuple[MethodSpec, ...]
    seed: int
    limit: int | None
    batch: int
    at_once: int | None
    chat: bool
    profile: bool
    out: Path
    tasks: tuple[TaskSpec, ...]


def load_config(path: Path, overrides: Mapping[str, Any] | None = None) -> EvalConfig:
    """Read and check a config.

    Args:
        path: The TOML file.
        overrides: Top-level values in place of those in the file; `tasks` names the ones to keep
            of those in the file, and a relative `out` is under the current folder.

    Raises:
        EvalError: The file cannot be read, a key is unknown (the nearest one is named), or a value
            has no meaning.
    """
    values = _read(path)
    changes = {key: value for key, value in (overrides or {}).items() if value is not None}
    keep = changes.pop("tasks", None)
    out = changes.pop("out", None)
    values = checked(_KEYS, values | changes, str(path))
    folder, seed, limit = path.absolute().parent, values.get("seed", 42), values.get("limit")
    for key in ("batch", "limit", "at_once"):
        if values.get(key) is not None and values[key] < 1:
            raise EvalError(f"{path}: {key} must be at least 1, it is {values[key]}.")
    if "model" not in values:
        raise EvalError(
            f'{path}: no model is named. Write model = "smollm2-135m", or --model NAME.'
        )
    if out is None and "out" in values:
        out = expand(values["out"], folder, f"{path}: out")
    return EvalConfig(
        path=path,
        model=_model(values["model"], Path.cwd() if "model" in changes else folder, path),
        dtype=values.get("dtype"),
        weights=values.get("weights"),
        cache=values.get("cache"),
        degrees=_degrees(values.get("degrees", DEGREES), path),
        methods=_methods(values, path),
        seed=seed,
        limit=limit,
        batch=values.get("batch", 1),
        at_once=values.get("at_once"),
        chat=values.get("chat", False),
        profile=values.get("profile", True),
        out=Path(out) if out else Path("pce-eval") / path.stem,
        tasks=_tasks(values.get("task", {}), keep, seed, limit, path),
    )


def expand(text: str, folder: Path, where: str) -> str:
    """A path with `~` and variables expanded, relative to `folder`.

    Raises:
        EvalError: A variable is not set.
    """
    full = os.path.expandvars(text)
    if unset := re.search(r"\$(\w+|\{\w+\})", full):
        raise EvalError(
            f"{where} = {text!r}: the variable {unset[0]} is not set. Set it to a folder, as in "
            f"`export {unset[1].strip('{}')}=FOLDER`."
        )
    return str(folder / Path(full).expanduser())


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise EvalError(
            f"there is no config {path} (looked in {Path.cwd()}). Examples are in configs/eval."
        ) from error
    except OSError as error:
        raise EvalError(f"the config {path} cannot be read: {error.strerror or error}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise EvalError(f"{path} is not TOML: {error}.") from error


def _model(name: str, folder: Path, path: Path) -> str:
    if name.startswith((".", "~", "/", "$")) or (
        name.lower().endswith(".gguf") and ":" not in name
    ):
        return expand(name, folder, f"{path}: model")
    return name


def _degrees(degrees: tuple[int, ...], path: Path) -> tuple[int, ...]:
    if not degrees:
        raise EvalError(f"{path}: degrees is empty. Write degrees = [1, 2, 4, 8].")
    if min(degrees) < 1:
        raise EvalError(
            f"{path}: a degree must be at least 1 (1 is full attention), got {min(degrees)}."
        )
    return tuple(sorted(set(degrees)))


def _methods(values: Mapping[str, Any], path: Path) -> tuple[MethodSpec, ...]:
    tables = values.get("method", {})
    for name, table in tables.items():
        _check_table(name, table, "method", path)
    names = values.get("methods", (*METHOD_NAMES, *(n for n in tables if n not in METHOD_NAMES)))
    if not names:
        raise EvalError(f'{path}: methods is empty. Write methods = ["naive", "sink+sel"].')
    sink = values.get("sink")
    specs = {name: method_spec(name, tables, sink, str(path)) for name in (*names, *tables)}
    return tuple(specs[name] for name in dict.fromkeys(names))


def _tasks(
    tables: Mapping[str, Any], keep: Any, seed: int, limit: int | None, path: Path
) -> tuple[TaskSpec, ...]:
    if not tables:
        raise EvalError(f"{path}: no tasks. Describe each in a table [task.NAME] with its kind.")
    if keep is not None and not keep:
        raise EvalError(f"{path}: --tasks names none. Known: {', '.join(tables)}.")
    for name in keep or ():
        if name not in tables:
            raise EvalError(f"{path}: there is no task {name!r}.{nearest(name, tables)}")
    return tuple(
        _task(name, table, seed, limit, path)
        for name, table in tables.items()
        if not keep or name in keep
    )


def _task(name: str, table: Any, seed: int, limit: int | None, path: Path) -> TaskSpec:
    from pce_jax.evals.tasks import TASKS

    _check_table(name, table, "task", path)
    where, written = f"{path}: [task.{name}]", dict(table)
    kind = written.pop("kind", None)
    if kind not in TASKS:
        raise EvalError(f"{where}: there is no kind {kind!r}.{nearest(str(kind), TASKS)}")
    sink = convert(written.pop("sink", None), str | None, f"{where}: sink")
    aggregate = written.pop("aggregate", None)
    aggregate = convert(aggregate, frozenset[Dim] | None, f"{where}: aggregate")
    hints = hints_of(TASKS[kind])
    hints.pop("name", None)
    extra = {"kind": str, "sink": str, "aggregate": frozenset[Dim]}
    fields = checked(hints | extra, written, where)
    if "seed" in hints:
        fields.setdefault("seed", seed)
    if "limit" in hints:
        default = {f.name: f.default for f in dataclasses.fields(TASKS[kind])}["limit"]
        bounds = (fields.get("limit", default), limit)
        limit = min((one for one in bounds if isinstance(one, int)), default=None)
        fields["limit"] = limit
    for key, least in (("limit", 1), ("max_new_tokens", 0), ("shuffle_seed", 0)):
        if (value := fields.get(key)) is not None and value < least:
            raise EvalError(f"{where}: {key} must be at least {least}, it is {value}.")
    written = dict(fields)
    for field in getattr(TASKS[kind], "path_fields", ()):
        if field in fields:
            fields[field] = _paths(fields[field], path, f"{where}: {field}")
    spec = TaskSpec(
        name=name,
        kind=kind,
        fields=fields,
        written=written,
        limit=limit,
        sink=sink,
        aggregate=aggregate,
    )
    try:
        spec.make()  # so that what is wrong is said with the file's name, before a model is loaded
    except EvalError as error:
        raise EvalError(f"{path}: {error}") from error
    return spec


def _paths(value: Any, path: Path, where: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_paths(one, path, where) for one in value)
    if not value or value.startswith(_NOT_FILES):
        return value
    return expand(value, path.absolute().parent, where)


def _check_table(name: str, table: Any, kind: str, path: Path) -> None:
    if not isinstance(table, dict):
        raise EvalError(f"{path}: {kind}.{name} must be a table: write [{kind}.{name}].")
    if not _NAME.fullmatch(name):
        raise EvalError(
            f"{path}: [{kind}.{name}]: the name becomes a folder of results. Use letters, digits "
            "and any of _ . + - only."
        )
