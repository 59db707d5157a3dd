"""Checking what a TOML table holds against the fields of a frozen dataclass."""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, Literal, Union, get_args, get_origin

from pce_jax.errors import EvalError


def nearest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest known name, if any is near, and then all of them."""
    known = list(known)
    near = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.4)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"{hint} Known: {', '.join(known) or 'none'}."


def hints_of(cls: type) -> dict[str, Any]:
    """Types of a dataclass's fields by name."""
    hints = typing.get_type_hints(cls)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls)}


def checked(hints: Mapping[str, Any], values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Check names and types of values as TOML gives them; lists become what the hint asks for.

    Args:
        hints: Type of each known key.
        values: The table.
        where: File and table, for errors.

    Raises:
        EvalError: An unknown key (the nearest known one is named), or a value of another type.
    """
    for key in values:
        if key not in hints:
            raise EvalError(f"{where}: there is no key {key!r}.{nearest(key, hints)}")
    return {key: convert(value, hints[key], f"{where}: {key}") for key, value in values.items()}


def convert(value: Any, hint: Any, where: str) -> Any:
    """One value as `hint` wants it.

    Raises:
        EvalError: It is something else.
    """
    try:
        return _convert(value, hint)
    except TypeError:
        raise EvalError(f"{where} must be {_words(hint)}, it is {value!r:.60}.") from None


def _convert(value: Any, hint: Any) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for one in args:
            try:
                return _convert(value, one)
            except TypeError:
                continue
    elif origin is Literal:
        if any(value == one and type(value) is type(one) for one in args):
            return value
    elif origin in (tuple, frozenset):
        if isinstance(value, list | tuple | set | frozenset):
            return origin(_convert(one, args[0]) for one in value)
    elif hint is float:
        if isinstance(value, int | float) and not isinstance(value, bool):
            return float(value)
    elif hint in (None, type(None)):
        if value is None:
            return None
    elif isinstance(value, hint) and isinstance(value, bool) == (hint is bool):
        return value
    raise TypeError


def _words(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(one) for one in args if one is not type(None))
    if origin is Literal:
        return "one of " + ", ".join(map(repr, args))
    if origin in (tuple, frozenset):
        return f"a list, each {_words(args[0])}"
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    return names.get(hint, "a table")
