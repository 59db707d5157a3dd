"""Settings for the session: the compilation cache, and markers that skip what cannot run here."""

import functools
import importlib.util
import os
import socket
from pathlib import Path

import pytest

# One compilation cache per worker: jax does not write cache files atomically, so two workers that
# share a folder can read half a file. Set before jax is imported; child processes inherit it.
_cache = os.environ.get("JAX_COMPILATION_CACHE_DIR")
_worker = os.environ.get("PYTEST_XDIST_WORKER")
if _cache and _worker and Path(_cache).name != _worker:
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(Path(_cache) / _worker)


def _missing(module: str) -> bool:
    return importlib.util.find_spec(module) is None


@functools.cache
def _no_gpu() -> str | None:
    import jax

    try:
        jax.devices("gpu")
    except RuntimeError:
        return f"jax sees no GPU (JAX_PLATFORMS={os.environ.get('JAX_PLATFORMS', '')!r})"
    return None


@functools.cache
def _no_network() -> str | None:
    if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0"):
        return "HF_HUB_OFFLINE is set"
    try:
        socket.create_connection(("huggingface.co", 443), timeout=5).close()
    except OSError as error:
        return f"cannot reach huggingface.co: {error}"
    return None


# marker -> why tests that bear it cannot run here, or None
_OBSTACLES = {
    "parity": lambda: "PyTorch is not installed (pce-jax[parity])" if _missing("torch") else None,
    "tpu_backend": lambda: "libtpu is not installed (pce-jax[tpu])" if _missing("libtpu") else None,
    "gpu": _no_gpu,
    "network": _no_network,
}


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name, obstacle in _OBSTACLES.items():
        if item.get_closest_marker(name) is not None and (reason := obstacle()):
            pytest.skip(reason)
