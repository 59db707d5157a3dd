"""`pce-jax doctor`: what is installed, what it runs on, and what is missing."""

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from .console import console
from .flags import MaybeText

if TYPE_CHECKING:
    from rich.table import Table


@dataclasses.dataclass(frozen=True, kw_only=True)
class Doctor:
    """Show versions, devices, memory and caches, and what is missing for each extra.

    Exits with status 1 if something is wrong that keeps pce-jax from working.

    Attributes:
        json: Print everything as one JSON object.
        model: Also look at this model (fetched if need be): its size, and whether it can be read.
    """

    json: bool = False
    model: MaybeText = None

    def run(self) -> int:
        """Do it; whatever is broken is reported, not raised."""
        facts = self._facts()
        if self.json:
            console().print_json(json.dumps(facts))
        else:
            _print(facts)
        return 1 if facts["problems"] else 0

    def _facts(self) -> dict[str, Any]:
        import platform

        from . import facts as look
        from .packages import installed

        packages, pair = installed(), look.pair_problem()
        facts: dict[str, Any] = {
            "python": platform.python_version(),
            "platform": platform.platform(terse=True),
            "versions": look.versions() | (packages.versions if packages else {}),
            "installed": packages is not None,
            "extras": packages.extras if packages else {},
            "host": look.host(),
            "problems": [pair] if pair else [],
        }
        if packages:
            facts["problems"] += [f"missing: {what}" for what in packages.problems]
        if pair:  # what follows imports jax and flax
            return facts
        facts |= {"jax": look.devices(), "folders": look.folders(), "embedded": look.embedded()}
        if "error" in facts["jax"]:
            facts["problems"].append(f"jax finds no device: {facts['jax']['error']}")
        for name, model in facts["embedded"].items():
            if model["intact"] is False:
                facts["problems"].append(
                    f"{model['path']} is damaged; it is fetched again when {name} is next used."
                )
        cache = facts["folders"]["models"]
        if not cache.get("writable") and not all(m["intact"] for m in facts["embedded"].values()):
            facts["problems"].append(
                f"the cache folder {cache['path']} cannot be written: set PCE_JAX_CACHE to another."
            )
        if self.model is not None:
            from .inspect_model import inspect_model

            facts["model"] = inspect_model(self.model)
            if "error" in facts["model"]:
                facts["problems"].append(facts["model"]["error"])
        return facts


def _print(facts: dict[str, Any]) -> None:
    out = console()

    def section(title: str, rows: "Table") -> None:
        out.print(f"[bold]{title}[/]")
        out.print(rows)
        out.print()

    versions = {"python": facts["python"]} | facts["versions"]
    section("Versions", _table(*((name, ver or "not installed") for name, ver in versions.items())))
    host = facts["host"]
    memory = f"{_size(host['memory'])}, {_size(host['available'])} available"
    section(
        "Machine",
        _table(
            ("platform", facts["platform"]),
            ("cores", str(host["cores"])),
            ("memory", memory),
            *_devices(facts.get("jax", {})),
        ),
    )
    if "folders" in facts:
        section("Caches", _table(*_folders(facts)))
    if "model" in facts:
        rows = [(key, str(value)) for key, value in facts["model"].items() if key != "error"]
        section("Model", _table(*rows))
    if facts["installed"]:
        section("Extras", _table(*(_extra(*item) for item in facts["extras"].items())))
    else:
        out.print("pce-jax is run from its source tree, not installed, so that its requirements")
        out.print("are not known here. To install it: pip install -e .\n")
    for problem in facts["problems"]:
        out.print("[bold red]problem:[/]", end=" ")
        out.print(problem, markup=False, soft_wrap=not out.is_terminal)
    if not facts["problems"]:
        out.print("No problems found.")


def _table(*rows: tuple[str, str]) -> "Table":
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True, min_width=14)
    table.add_column(overflow="fold")
    for name, value in rows:
        table.add_row(Text(f"  {name}"), Text(value))
    return table


def _devices(jax: dict[str, Any]) -> list[tuple[str, str]]:
    if not jax or "error" in jax:
        return [("devices", "unknown: jax does not start")]
    rows = [
        ("backend", f"{jax['backend']}; devices: {jax['devices']}, processes: {jax['processes']}")
    ]
    for device in jax["local_devices"]:
        memory = device["memory"] or {}
        used = _size(memory.get("bytes_in_use"))
        extra = (
            f", {used} of {_size(memory['bytes_limit'])} used" if "bytes_limit" in memory else ""
        )
        rows.append((f"device {device['id']}", device["kind"] + extra))
    return [*rows, ("note", jax["note"])] if jax["note"] else rows


def _folders(facts: dict[str, Any]) -> list[tuple[str, str]]:
    titles = {"models": "pce-jax models", "hub": "Hugging Face", "compiled": "compiled code"}
    rows = []
    for name, folder in facts["folders"].items():
        if folder["path"] is None:
            rows.append((titles[name], folder.get("error") or "off, by a JAX_... variable"))
            continue
        state = _size(folder["bytes"]) if folder["exists"] else "not there yet"
        state += "" if folder["writable"] else ", read-only"
        state += f"; not used: {folder['unused']}" if folder.get("unused") else ""
        rows.append((titles[name], f"{folder['path']} ({state})"))
    for name, model in facts["embedded"].items():
        state = {True: "present, hash right", False: "DAMAGED", None: "not fetched yet"}
        rows.append((name, state[model["intact"]]))
    return rows


def _extra(name: str, missing: list[str]) -> tuple[str, str]:
    if not missing:
        return name, "complete"
    return name, f"missing {', '.join(missing)}\npip install 'pce-jax[{name}]'"


def _size(count: int | None) -> str:
    if count is None:
        return "unknown"
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
