"""A report on a results folder: what its manifest says, and which of its cells are not there."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pce_jax.errors import EvalError
from pce_jax.evals.profiles import read_profiles
from pce_jax.evals.rows import Row
from pce_jax.evals.store import CELLS, cell_files, read_results

from .report import render
from .stats import Bootstrap


def report_folder(folder: Path, bootstrap: Bootstrap | None = None) -> dict[str, bytes]:
    """Make a report on a results folder; nothing is written.

    Args:
        folder: What `pce-jax eval` has written, also while it still does.
        bootstrap: Resampling for intervals.

    Returns:
        See `render`.

    Raises:
        EvalError: It is no results folder, it has no rows yet, or something in it is malformed or
            does not belong to it.
    """
    manifest, rows = _read(folder)
    if not rows:
        raise EvalError(
            f"{folder} has a manifest but no rows yet. Run the `pce-jax eval` that made it again: "
            "it goes on where it stopped."
        )
    model, tasks = manifest["model"], manifest["tasks"]
    versions, device = manifest["versions"], manifest["device"]
    return render(
        rows,
        title=Path(model["name"]).name,
        facts={
            "model": f"{model['name']}, {model['dtype']}, SHA-256 {model['sha256']}",
            "begun": manifest["created"],
            "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
            "device": f"{device['count']} x {device['kind']} ({device['backend']})",
            "seed of the tasks": str(manifest["seed"]),
            "chat template": "yes" if manifest["chat"] else "no",
        },
        metrics={name: task["metric"] for name, task in tasks.items()},
        families={name: task["kind"] for name, task in tasks.items()},
        remarks=list(_unfinished(manifest, rows)),
        profiles={task: one for task in tasks if (one := read_profiles(folder, task))},
        bootstrap=bootstrap,
    )


def _read(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """Manifest and rows, after a check that the folder has nothing else."""
    try:
        manifest, rows = read_results(folder)
        known = {(task, method) for task in manifest["tasks"] for method in manifest["methods"]}
        for key in ("model", "versions", "device", "seed", "chat", "created", "degrees"):
            manifest[key]
    except (KeyError, TypeError, AttributeError) as error:
        raise EvalError(
            f"{folder / 'manifest.json'} is not as `pce-jax eval` writes it ({error!r}). Run the "
            "evaluation again into another folder."
        ) from error
    for path in cell_files(folder):
        task, method, _ = path.relative_to(folder / CELLS).parts
        if (task, method) not in known:
            raise EvalError(
                f"{path}: the manifest of {folder} knows no task {task!r} with a method "
                f"{method!r}, so this file is of another evaluation. Move it out of the folder."
            )
    return manifest, rows


def _unfinished(manifest: Mapping[str, Any], rows: Sequence[Row]) -> Iterable[str]:
    """Cells without all their rows, a remark for each task."""
    have: dict[tuple[str, str, int], int] = {}
    for row in rows:
        key = (row.task, row.method, row.degree)
        have[key] = have.get(key, 0) + 1
    for name, task in manifest["tasks"].items():
        wanted = task.get("instances")
        if wanted is None:
            yield f"{name}: not begun. Run the `pce-jax eval` that made the folder again."
            continue
        part, absent, skipped = [], [], []
        for method, settings in task["methods"].items():
            for degree in [1] if settings.get("full") else manifest["degrees"]:
                found = have.get((name, method, degree), 0)
                needed = task.get("skipped", {}).get(f"{method}/{degree}")
                if needed is not None:
                    skipped.append(f"{method} P={degree} (needs {needed})")
                elif found == 0:
                    absent.append(f"{method} P={degree}")
                elif found < wanted:
                    part.append(f"{method} P={degree} ({found} of {wanted} instances)")
        if part:
            yield (
                f"{name}: not finished: {', '.join(part)}. Run the `pce-jax eval` that made the "
                "folder again: it goes on where it stopped."
            )
        if skipped:
            yield (
                f"{name}: skipped, as they do not fit the model's positions: {', '.join(skipped)}."
            )
        if absent:
            yield f"{name}: not measured: {', '.join(absent)}."
