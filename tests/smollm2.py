"""The default model itself, for tests: `from smollm2 import smollm2_path` in a conftest."""

import functools
from pathlib import Path

import pytest

from pce_jax.errors import DownloadError
from pce_jax.hub import fetch_embedded


@functools.cache
def _fetched() -> Path | str:
    try:
        return fetch_embedded("smollm2-135m")
    except DownloadError as error:
        return f"the model smollm2-135m cannot be downloaded: {str(error).splitlines()[0]}"


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The cached `.gguf` (the first run downloads 93 MB); skips if it cannot be had."""
    found = _fetched()
    if isinstance(found, str):
        pytest.skip(found)
    return found
