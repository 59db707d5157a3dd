"""What to evaluate: a TOML file, checked, with changes from the command line."""

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pce_jax.cache import Store
from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Task
from pce_jax.evals.methods import MethodSpec, method_spec
from pce_jax.method import Method
from pce_jax.selection import Dim
from pce_jax.settings import checked, convert, expand, hints_of, nearest, read_toml

DEGREES = (1, 2, 4, 8, 16)
METHOD_NAMES = ("naive", "sink", "sel", "sink+sel")
DTYPES = Literal["float32", "bfloat16", "float16"]

_NAME = re.compile(r"[A-Za-z0-9][\w.+-]*", re.ASCII)
_KEYS: dict[str, Any] = {
    "model": str,
    "adapters": str | None,
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
            SettingsError: Its fields have no meaning.
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
        adapters: Folder of adapters to put on the model, see `pce_jax.load_adapters`.
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
    adapters: Path | None
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
        SettingsError: The file cannot be read, a key is unknown (the nearest one is named), or a
            value has no meaning.
    """
    values = read_toml(path, "configs/eval")
    changes = {key: value for key, value in (overrides or {}).items() if value is not None}
    keep = changes.pop("tasks", None)
    out = changes.pop("out", None)
    values = checked(_KEYS, values | changes, str(path))
    folder, seed, limit = path.absolute().parent, values.get("seed", 42), values.get("limit")
    for key in ("batch", "limit", "at_once"):
        if values.get(key) is not None and values[key] < 1:
            raise SettingsError(f"{path}: {key} must be at least 1, it is {values[key]}.")
    if "model" not in values:
        raise SettingsError(
            f'{path}: no model is named. Write model = "smollm2-135m", or --model NAME.'
        )
    if out is None and "out" in values:
        out = expand(values["out"], folder, f"{path}: out")
    return EvalConfig(
        path=path,
        model=model_name(values["model"], Path.cwd() if "model" in changes else folder, path),
        adapters=_adapters(values, "adapters" in changes, path),
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
        tasks=read_tasks("task", values.get("task", {}), keep, seed, limit, path),
    )


def model_name(name: str, folder: Path, path: Path) -> str:
    """A model as `pce_jax.load` takes it: a path is made absolute, another name stays.

    Raises:
        SettingsError: A variable in the path is not set.
    """
    if name.startswith((".", "~", "/", "$")) or (
        name.lower().endswith(".gguf") and ":" not in name
    ):
        return expand(name, folder, f"{path}: model")
    return name


def _adapters(values: Mapping[str, Any], from_flag: bool, path: Path) -> Path | None:
    if values.get("adapters") is None:
        return None
    folder = Path.cwd() if from_flag else path.absolute().parent
    return Path(expand(values["adapters"], folder, f"{path}: adapters"))


def _degrees(degrees: tuple[int, ...], path: Path) -> tuple[int, ...]:
    if not degrees:
        raise SettingsError(f"{path}: degrees is empty. Write degrees = [1, 2, 4, 8].")
    if min(degrees) < 1:
        raise SettingsError(
            f"{path}: a degree must be at least 1 (1 is full attention), got {min(degrees)}."
        )
    return tuple(sorted(set(degrees)))


def _methods(values: Mapping[str, Any], path: Path) -> tuple[MethodSpec, ...]:
    tables = values.get("method", {})
    for name, table in tables.items():
        _check_table(name, table, "method", path)
    names = values.get("methods", (*METHOD_NAMES, *(n for n in tables if n not in METHOD_NAMES)))
    if not names:
        raise SettingsError(f'{path}: methods is empty. Write methods = ["naive", "sink+sel"].')
    sink = values.get("sink")
    specs = {name: method_spec(name, tables, sink, str(path)) for name in (*names, *tables)}
    return tuple(specs[name] for name in dict.fromkeys(names))


def read_tasks(
    kind: str, tables: Mapping[str, Any], keep: Any, seed: int, limit: int | None, path: Path
) -> tuple[TaskSpec, ...]:
    """Tasks that tables `[KIND.NAME]` describe.

    Args:
        kind: What the tables are called.
        tables: By name.
        keep: Names of those to keep; all with `None`.
        seed: Of tasks that draw and have no seed of their own.
        limit: Instances of a task at most.
        path: The file, for errors and relative paths.

    Raises:
        SettingsError: There is none, or one is malformed.
    """
    if not tables:
        raise SettingsError(
            f"{path}: no tasks. Describe each in a table [{kind}.NAME] with its kind."
        )
    if keep is not None and not keep:
        raise SettingsError(f"{path}: --tasks names none. Known: {', '.join(tables)}.")
    for name in keep or ():
        if name not in tables:
            raise SettingsError(f"{path}: there is no task {name!r}.{nearest(name, tables)}")
    return tuple(
        _task(kind, name, table, seed, limit, path)
        for name, table in tables.items()
        if not keep or name in keep
    )


def _task(called: str, name: str, table: Any, seed: int, limit: int | None, path: Path) -> TaskSpec:
    from pce_jax.evals.tasks import TASKS

    _check_table(name, table, called, path)
    where, written = f"{path}: [{called}.{name}]", dict(table)
    kind = written.pop("kind", None)
    if kind not in TASKS:
        raise SettingsError(f"{where}: there is no kind {kind!r}.{nearest(str(kind), TASKS)}")
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
            raise SettingsError(f"{where}: {key} must be at least {least}, it is {value}.")
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
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error
    return spec


def _paths(value: Any, path: Path, where: str) -> Any:
    if isinstance(value, tuple):
        return tuple(_paths(one, path, where) for one in value)
    if not value or value.startswith(_NOT_FILES):
        return value
    return expand(value, path.absolute().parent, where)


def _check_table(name: str, table: Any, kind: str, path: Path) -> None:
    if not isinstance(table, dict):
        raise SettingsError(f"{path}: {kind}.{name} must be a table: write [{kind}.{name}].")
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"{path}: [{kind}.{name}]: the name becomes a folder of results. Use letters, digits "
            "and any of _ . + - only."
        )
