"""What `doctor` finds out, as plain values. Nothing here fails where jax or flax is broken."""

import hashlib
import os
from pathlib import Path
from typing import Any

from .packages import version

GPU_NOTE = (
    "JAX reserves 75% of a GPU's memory at its first use. To share a GPU set "
    "XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=0.5 for half."
)


def pair_problem() -> str | None:
    """Why the installed jax and flax cannot be imported together, if so."""
    from pce_jax._versions import check_installed

    try:
        check_installed()
    except ImportError as error:
        return str(error)
    return None


def host() -> dict[str, Any]:
    """Processor cores and memory in bytes of this machine (as far as it tells)."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {"cores": cores, "memory": None, "available": None}
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in lines if " kB" in line}
        facts |= {"memory": sizes.get("MemTotal"), "available": sizes.get("MemAvailable")}
    except (OSError, ValueError):  # not Linux
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            facts["memory"] = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return facts


def devices() -> dict[str, Any]:
    """JAX's backend, processes and devices, or `{"error": ...}`.

    Looking must not reserve a GPU's memory, which others may be using.
    """
    name = "XLA_PYTHON_CLIENT_PREALLOCATE"
    before = os.environ.get(name)
    os.environ[name] = "false"
    try:
        import jax

        found = [
            {"id": device.id, "kind": device.device_kind, "memory": _memory(device)}
            for device in jax.local_devices()
        ]
        backend = jax.default_backend()
        return {
            "backend": backend,
            "processes": jax.process_count(),
            "devices": jax.device_count(),
            "local_devices": found,
            "note": GPU_NOTE if backend == "gpu" else None,
        }
    except Exception as error:  # a broken driver or plugin fails in its own way
        return {"error": f"{type(error).__name__}: {error}"}
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _memory(device: Any) -> dict[str, int] | None:
    stats = device.memory_stats()  # None on CPU
    if not stats:
        return None
    return {key: stats[key] for key in ("bytes_in_use", "bytes_limit") if key in stats}


def folders() -> dict[str, dict[str, Any]]:
    """The caches: where they are, whether they can be written, and how large they are.

    That of compiled programs may be off (no path), or not be used (`unused` says why).
    """
    found: dict[str, dict[str, Any]] = {}
    for name, find in (("models", _models), ("hub", _hub), ("compiled", _compiled)):
        try:
            path = find()
        except Exception as error:  # such as: no home folder, or a package that is missing
            found[name] = {"path": None, "error": str(error)}
            continue
        if path is None:
            found[name] = {"path": None}
            continue
        found[name] = {
            "path": str(path),
            "exists": path.is_dir(),
            "writable": _writable(path),
            "bytes": _size(path),
        }
    found["compiled"]["unused"] = _unused(found["compiled"])
    return found


def embedded() -> dict[str, dict[str, Any]]:
    """The embedded models: whether they are in the cache and undamaged."""
    from pce_jax.hub.cache import cache_folder
    from pce_jax.hub.embedded import EMBEDDED

    found = {}
    for name, model in EMBEDDED.items():
        path = cache_folder() / model.filename
        intact = None
        if path.is_file():
            with path.open("rb") as file:
                intact = hashlib.file_digest(file, "sha256").hexdigest() == model.member_sha256
        found[name] = {"path": str(path), "present": path.is_file(), "intact": intact}
    return found


def versions() -> dict[str, str | None]:
    """Versions of what decides whether anything runs at all."""
    names = ("pce-jax", "jax", "jaxlib", "flax", "transformers", "numpy")
    return {name: version(name) for name in names}


def _models() -> Path:
    from pce_jax.hub.cache import cache_folder

    return cache_folder()


def _hub() -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def _compiled() -> Path | None:
    """Where compiled programs are kept: in our folder, unless jax has been told otherwise."""
    import jax

    from .compiled import chosen_by_user, compiled_folder

    if not chosen_by_user():
        return compiled_folder()
    enabled = jax.config.values["jax_enable_compilation_cache"]
    folder = jax.config.values["jax_compilation_cache_dir"]
    return Path(folder) if enabled and folder and "://" not in folder else None


def _unused(folder: dict[str, Any]) -> str | None:
    """Why the folder of compiled programs is not used although it is there."""
    from .compiled import chosen_by_user, distrust

    if not folder.get("exists") or chosen_by_user():
        return None
    return distrust(Path(folder["path"]))


def _writable(path: Path) -> bool:
    while not path.exists() and path != path.parent:  # it would be created in what exists
        path = path.parent
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def _size(path: Path) -> int:
    total = 0
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            if not file.is_symlink():  # the Hub's snapshots link to its blobs
                total += file.stat().st_size if file.exists() else 0
    return total
