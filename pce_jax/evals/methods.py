"""Methods as plain values, and what a method means for a task."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pce_jax.errors import MethodError, SettingsError
from pce_jax.method import METHODS, Method
from pce_jax.positions import Positions
from pce_jax.selection import Dim, Select
from pce_jax.settings import checked, hints_of, nearest

PAPER = "paper"
"""As a sink: the prompt that the paper puts in front for the task at hand."""

_KEYS: dict[str, Any] = {
    "base": str,
    "sink": str,
    "positions": dict,
    "select": dict | bool,
    "full": bool,
}


def method_to_dict(method: Method) -> dict[str, Any]:
    """A method as JSON values; `method_from_dict` reads them.

    Example:
        >>> method_to_dict(Method())["positions"]["span"]
        'max'
    """
    select = method.select
    chosen = None
    if select is not None:
        chosen = dataclasses.asdict(select) | {"aggregate": sorted(select.aggregate)}
    return dataclasses.asdict(method) | {"select": chosen}


def method_from_dict(values: Mapping[str, Any], where: str = "method") -> Method:
    """The inverse of `method_to_dict`; what is left out has its default.

    Args:
        values: Fields by name.
        where: How to call it in errors.

    Raises:
        SettingsError: An unknown field, or a value without a meaning.
    """
    table = checked(
        {"sink": str, "positions": dict, "select": dict | None, "full": bool}, values, where
    )
    select = table.get("select")
    return Method(
        sink=table.get("sink", ""),
        positions=_part(Positions, Positions(), table.get("positions", {}), f"{where}: positions"),
        select=None if select is None else _part(Select, Select(), select, f"{where}: select"),
        full=table.get("full", False),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodSpec:
    """A method as the config names it, before it is known which task it is for.

    Attributes:
        name: Names it in results.
        method: All but the sink.
        sink: Text of the sink, `"paper"` for the task's own, empty for none.
        own_aggregate: Selection aggregates as `method` says, not as the paper does for the task.
    """

    name: str
    method: Method
    sink: str = ""
    own_aggregate: bool = False

    def for_task(self, sink: str, aggregate: frozenset[Dim]) -> Method:
        """The method for a task.

        Args:
            sink: The task's own sink text.
            aggregate: Dimensions that the task's selection aggregates over.
        """
        select = self.method.select
        if select is not None and not self.own_aggregate:
            select = dataclasses.replace(select, aggregate=aggregate)
        text = sink if self.sink == PAPER else self.sink
        return dataclasses.replace(self.method, sink=text, select=select)


def method_spec(
    name: str, tables: Mapping[str, Mapping[str, Any]], sink: str | None, where: str
) -> MethodSpec:
    """A preset, or what the table `[method.NAME]` defines.

    Args:
        name: Of the method.
        tables: All such tables.
        sink: The config's own sink for methods whose table does not give one.
        where: The file.

    Raises:
        SettingsError: There is no such method, or its table is malformed.
    """
    if name not in tables:
        if name not in METHODS:
            known = dict.fromkeys([*METHODS, *tables])
            raise SettingsError(f"{where}: there is no method {name!r}.{nearest(name, known)}")
        return _preset(name, name, sink)
    return method_from_table(name, tables[name], sink, f"{where}: [method.{name}]")


def method_from_table(
    name: str, values: Mapping[str, Any], sink: str | None, where: str
) -> MethodSpec:
    """What a table defines: a preset (`base`) and changes to it.

    Args:
        name: Of the method.
        values: The table.
        sink: As in `method_spec`.
        where: The table, for errors.

    Raises:
        SettingsError: The table is malformed.
    """
    table = checked(_KEYS, values, where)
    base = table.get("base", name if name in METHODS else "naive")
    if base not in METHODS:
        raise SettingsError(f"{where}: there is no method {base!r} (base).{nearest(base, METHODS)}")
    spec = _preset(name, base, sink)
    method, own = spec.method, False
    if "positions" in table:
        positions = _part(Positions, method.positions, table["positions"], f"{where}: positions")
        method = dataclasses.replace(method, positions=positions)
    if "select" in table:
        chosen = table["select"]
        own = isinstance(chosen, dict) and "aggregate" in chosen
        changes = chosen if isinstance(chosen, dict) else {}
        select = _part(Select, method.select or Select(), changes, f"{where}: select")
        method = dataclasses.replace(method, select=None if chosen is False else select)
    if "full" in table:
        method = dataclasses.replace(method, full=table["full"])
    return MethodSpec(
        name=name, method=method, sink=table.get("sink", spec.sink), own_aggregate=own
    )


def _preset(name: str, base: str, sink: str | None) -> MethodSpec:
    method = METHODS[base]
    text = method.sink if sink is None or not method.sink else sink
    return MethodSpec(name=name, method=dataclasses.replace(method, sink=""), sink=text)


def _part(cls: Any, start: Any, values: Mapping[str, Any], where: str) -> Any:
    try:
        return dataclasses.replace(start, **checked(hints_of(cls), values, where))
    except MethodError as error:
        raise SettingsError(f"{where}: {error}") from error
