"""Compiled programs, kept from one command to the next in a folder that only the user can write.

They are machine code that is run without a further look, so a folder that others can write is not
used. The bound on the folder's size makes jax lock it, so that no process reads a file that another
is still writing.
"""

import contextlib
import logging
import os
import re
import stat
import warnings
from collections.abc import Generator
from pathlib import Path

from pce_jax.errors import CacheError

LOG = logging.getLogger("pce_jax.compiled")

MAX_BYTES = 1 << 30  # the entries used longest ago make room
MIN_SECONDS = 0.1  # what compiles faster is not worth a file
OFF = "JAX_ENABLE_COMPILATION_CACHE=0"

_FAILED = re.compile(r"Error (reading|writing) persistent compilation cache entry for '(.*?)': ")


def compiled_folder() -> Path:
    """Where they are kept, whether or not it exists.

    Raises:
        CacheError: There is no home folder.
    """
    from pce_jax.hub.cache import cache_folder

    return cache_folder() / "compiled"


def distrust(folder: Path) -> str | None:
    """Why an existing folder is not to be trusted, or `None`.

    Raises:
        OSError: It cannot be looked at.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        return f"{folder} is not a folder"
    if found.st_uid != os.getuid():
        return f"{folder} belongs to another user"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        return f"{folder} can be written by others, who may have put programs there: remove it"
    return None


def chosen_by_user() -> bool:
    """Whether jax has been told what to keep and where, or to keep nothing."""
    import jax

    values = jax.config.values
    told = values["jax_compilation_cache_dir"] is not None
    return told or not values["jax_enable_compilation_cache"]


@contextlib.contextmanager
def programs_kept() -> Generator[None]:
    """Keep compiled programs while this lasts, unless the user has told jax what to do.

    Where that is not possible, a warning says why, and nothing else changes.
    """
    folder = None if chosen_by_user() else _prepared_folder()
    if folder is None:
        yield
        return
    import jax
    from jax.experimental.compilation_cache import compilation_cache

    settings = {
        "jax_compilation_cache_dir": str(folder),
        "jax_compilation_cache_max_size": MAX_BYTES,
        "jax_persistent_cache_min_compile_time_secs": MIN_SECONDS,
    }
    told = [name for name in settings if name.upper() in os.environ]
    before = {name: jax.config.values[name] for name in settings}
    for name in settings.keys() - told:
        jax.config.update(name, settings[name])
    try:
        with _damage_repaired(folder):
            yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)
        compilation_cache.reset_cache()


def _prepared_folder() -> Path | None:
    try:
        folder = compiled_folder()
        folder.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        why = distrust(folder)
        if why is None:
            _sweep(folder)
            return folder
    except (OSError, NotImplementedError, CacheError) as error:  # no room, or no locks, say
        why = str(error)
    LOG.warning("Compiled programs are not kept (%s is the switch): %s", OFF, why)
    return None


def _sweep(folder: Path) -> None:
    """Remove entries that a killed process left half written.

    jax writes an entry and then, still holding the lock, a file with the time.
    """
    import filelock

    with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / ".lockfile", timeout=0):
        for entry in folder.glob("*-cache"):
            if not entry.with_name(entry.name.removesuffix("-cache") + "-atime").exists():
                entry.unlink()


@contextlib.contextmanager
def _damage_repaired(folder: Path) -> Generator[None]:
    """Say in one line what jax could not read or write, and remove an entry that is damaged.

    It is then compiled again and kept anew, as are other sizes of the same function.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("always", _FAILED.pattern, UserWarning)
        show = warnings.showwarning

        def repair(message: Warning | str, *rest: object, **more: object) -> None:
            failed = _FAILED.match(str(message))
            if failed is None:
                show(message, *rest, **more)  # type: ignore[bad-argument-type]
                return
            what, name = failed.groups()
            LOG.warning("%s: %s of a compiled program, %s, failed.", folder, what, name)
            for file in folder.glob(f"{name}-*") if what == "reading" else ():
                file.unlink(missing_ok=True)

        warnings.showwarning = repair
        yield
