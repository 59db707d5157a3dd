"""Where downloaded models are kept."""

import os
import tempfile
from pathlib import Path

from pce_jax.errors import CacheError

CACHE_VARIABLE = "PCE_JAX_CACHE"


def cache_folder() -> Path:
    """Returns the cache folder, without creating it.

    The environment variable `PCE_JAX_CACHE` if set, else `pce-jax` under `XDG_CACHE_HOME` (which
    counts only if absolute, as its specification asks), else `~/.cache/pce-jax`.

    Raises:
        CacheError: the variable starts with a `~` that cannot be expanded, or there is no home.
    """
    own, shared = os.environ.get(CACHE_VARIABLE), os.environ.get("XDG_CACHE_HOME")
    try:
        if own:
            return Path(own).expanduser().absolute()
        if shared and Path(shared).is_absolute():
            return Path(shared) / "pce-jax"
        return Path.home() / ".cache" / "pce-jax"
    except RuntimeError as error:
        raise CacheError(
            f"There is no home folder to keep models under ({error}). Set the environment variable "
            f"{CACHE_VARIABLE} to a folder that can be written."
        ) from error


def writable_cache_folder() -> Path:
    """Returns the cache folder, created if absent and tried by writing an unnamed file to it.

    Raises:
        CacheError: the folder cannot be created or written.
    """
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise cache_error(folder, error) from error
    return folder


def cache_error(folder: Path, reason: OSError) -> CacheError:
    """Returns the error that says why `folder` cannot be used and how to name another."""
    return CacheError(
        f"The cache folder {folder} cannot be created or written: {reason.strerror or reason}. Set "
        f"the environment variable {CACHE_VARIABLE} to a folder that can be written and has room."
    )
