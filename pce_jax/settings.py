"""Config files: reading TOML, and checking it against the fields of frozen dataclasses."""

import dataclasses
import difflib
import os
import re
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

from .errors import SettingsError


def read_toml(path: Path, examples: str) -> dict[str, Any]:
    """What a TOML file holds.

    Args:
        path: The file.
        examples: Folder with examples, for errors.

    Raises:
        SettingsError: It is missing, unreadable, or no TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise SettingsError(
            f"there is no config {path} (looked in {Path.cwd()}). Examples are in {examples}."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"the config {path} cannot be read: {error.strerror or error}."
        ) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"{path} is not TOML: {error}.") from error


def expand(text: str, folder: Path, where: str) -> str:
    """A path with `~` and variables expanded, relative to `folder`.

    Raises:
        SettingsError: A variable is not set.
    """
    full = os.path.expandvars(text)
    if unset := re.search(r"\$(\w+|\{\w+\})", full):
        raise SettingsError(
            f"{where} = {text!r}: the variable {unset[0]} is not set. Set it to a folder, as in "
            f"`export {unset[1].strip('{}')}=FOLDER`."
        )
    return str(folder / Path(full).expanduser())


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
    """Check names and types of values as TOML gives them.

    Lists become what the hint asks for, and tables the dataclass that it asks for.

    Args:
        hints: Type of each known key.
        values: The table.
        where: File and table, for errors.

    Raises:
        SettingsError: An unknown key (the nearest known one is named), or a value of another type.
    """
    for key in values:
        if key not in hints:
            raise SettingsError(f"{where}: there is no key {key!r}.{nearest(key, hints)}")
    return {key: convert(value, hints[key], f"{where}: {key}") for key, value in values.items()}


def convert(value: Any, hint: Any, where: str) -> Any:
    """One value as `hint` wants it.

    Raises:
        SettingsError: It is something else.
    """
    try:
        return _convert(value, hint, where)
    except TypeError:
        raise SettingsError(f"{where} must be {_words(hint)}, it is {value!r:.60}.") from None


def _convert(value: Any, hint: Any, where: str) -> Any:
    origin, args = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin in (Union, types.UnionType):
        for one in args:
            try:
                return _convert(value, one, where)
            except TypeError:
                continue
    elif dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if isinstance(value, hint):
            return value
        if isinstance(value, Mapping):
            return hint(**checked(hints_of(hint), value, where))
    elif origin is Literal:
        if any(value == one and type(value) is type(one) for one in args):
            return value
    elif origin in (tuple, frozenset):
        if isinstance(value, list | tuple | set | frozenset):
            return origin(_convert(one, args[0], where) for one in value)
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
