"""Tasks from plain values, as a config file has them."""

import dataclasses
from typing import Any

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Task
from pce_jax.evals.tasks.icl import IclTask
from pce_jax.evals.tasks.lm import LmTask
from pce_jax.evals.tasks.rag import RagTask
from pce_jax.evals.tasks.recall import RecallTask
from pce_jax.settings import checked, hints_of, nearest

TASKS: dict[str, type] = {"lm": LmTask, "icl": IclTask, "rag": RagTask, "recall": RecallTask}
"""The task families by the name of their kind."""


def make_task(kind: str, **fields: Any) -> Task:
    """A task of a family from its fields.

    Args:
        kind: A key of `TASKS`.
        **fields: Fields of that class; a list stands for a tuple, and a whole number for a
            fraction, as TOML has them.

    Raises:
        SettingsError: There is no such kind or field, a field is missing, or has a value of another
            type or without a meaning.

    Example:
        >>> make_task("recall", name="kv", variant="kv", size=50)
        RecallTask(name='kv', variant='kv', ...)
    """
    if kind not in TASKS:
        raise SettingsError(f"there is no kind of task {kind!r}.{nearest(kind, TASKS)}")
    cls = TASKS[kind]
    where = f"task {fields.get('name', '')!r} ({kind})"
    values = checked(hints_of(cls), fields, where)
    missing = [
        field.name
        for field in dataclasses.fields(cls)
        if field.name not in values and field.default is dataclasses.MISSING
    ]
    if missing:
        raise SettingsError(f"{where}: {', '.join(missing)} must be given.")
    return cls(**values)
