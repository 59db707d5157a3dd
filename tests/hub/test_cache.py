from pathlib import Path

import pytest

from pce_jax.errors import CacheError
from pce_jax.hub.cache import cache_folder, writable_cache_folder


def test_own_variable_comes_first_and_expands_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", "/elsewhere")
    monkeypatch.setenv("PCE_JAX_CACHE", "~/models")
    assert cache_folder() == tmp_path / "models"


@pytest.mark.parametrize(
    ("xdg", "expected"),
    [("/xdg", "/xdg/pce-jax"), ("", "/h/.cache/pce-jax"), ("not/absolute", "/h/.cache/pce-jax")],
)
def test_then_the_shared_cache_then_the_home(monkeypatch, xdg, expected):
    monkeypatch.setenv("HOME", "/h")
    monkeypatch.setenv("XDG_CACHE_HOME", xdg)
    monkeypatch.setenv("PCE_JAX_CACHE", "")
    assert cache_folder() == Path(expected)


def test_without_a_home_the_variable_is_named(monkeypatch):
    def no_home():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("PCE_JAX_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    with pytest.raises(CacheError, match="PCE_JAX_CACHE"):
        cache_folder()


def test_asking_for_the_folder_does_not_create_it(cache):
    assert cache_folder() == cache
    assert not cache.exists()
    assert writable_cache_folder() == cache
    assert list(cache.iterdir()) == []


def test_a_folder_that_cannot_be_created_is_named_with_the_variable(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("PCE_JAX_CACHE", str(tmp_path / "file" / "cache"))
    with pytest.raises(CacheError, match=r"file/cache cannot .*Not a directory.*PCE_JAX_CACHE"):
        writable_cache_folder()


def test_a_read_only_folder_is_named_with_the_variable(monkeypatch, cache):
    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)  # root may write anywhere
    with pytest.raises(CacheError, match=r"cache cannot .*Permission denied.*PCE_JAX_CACHE"):
        writable_cache_folder()
