"""Compiled programs are kept between commands, in a folder that nobody else can write."""

import json
import logging

import jax
import numpy as np
import pytest
from jax.experimental.compilation_cache import compilation_cache

from pce_jax.cli import compiled


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The folder of a user who has told jax nothing."""
    names = ("JAX_COMPILATION_CACHE_DIR", "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PCE_JAX_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(compiled, "MIN_SECONDS", 0.0)
    before = jax.config.values["jax_compilation_cache_dir"]
    jax.config.update("jax_compilation_cache_dir", None)
    compilation_cache.reset_cache()
    yield tmp_path / "cache/compiled"
    jax.config.update("jax_compilation_cache_dir", before)
    compilation_cache.reset_cache()


@pytest.fixture
def events():
    """What jax tells of its cache: each time the last part of an event's name."""
    seen = []

    def note(event, **_):
        if event.startswith("/jax/compilation_cache/cache_"):
            seen.append(event.rpartition("_")[2])

    jax.monitoring.register_event_listener(note)
    yield seen
    jax.monitoring.unregister_event_listener(note)


def compile_once() -> None:
    """Compile the same program as every other call, as a process of its own would."""

    def twice_and_one(x):
        return 2 * x + 1

    assert float(jax.jit(twice_and_one)(np.float32(3))) == 7


def entries(folder):
    return sorted(folder.glob("jit_twice_and_one-*-cache"))


def test_a_program_is_compiled_once(folder, events):
    with compiled.programs_kept():
        compile_once()
    assert folder.stat().st_mode & 0o777 == 0o700 and len(entries(folder)) == 1
    with compiled.programs_kept():
        compile_once()
    assert events == ["misses", "hits"]
    assert jax.config.values["jax_compilation_cache_dir"] is None
    compile_once()
    assert len(events) == 2


def test_a_damaged_entry_is_said_and_replaced(folder, events, caplog):
    with compiled.programs_kept():
        compile_once()
    (entry,) = entries(folder)
    whole = entry.stat().st_size
    entry.write_bytes(entry.read_bytes()[: whole // 2])
    with compiled.programs_kept():
        compile_once()
    assert [record.message.count(str(folder)) for record in caplog.records] == [1]
    assert entry.stat().st_size > whole // 2
    with compiled.programs_kept():
        compile_once()
    assert events == ["misses", "misses", "hits"] and len(caplog.records) == 1


def test_what_a_killed_process_left_is_removed(folder):
    folder.mkdir(mode=0o700, parents=True)
    (folder / "jit_f-1-cache").write_bytes(b"half")
    for end in ("cache", "atime"):
        (folder / f"jit_g-1-{end}").write_bytes(b"whole")
    with compiled.programs_kept():
        pass
    assert {path.name for path in folder.glob("jit_*")} == {"jit_g-1-cache", "jit_g-1-atime"}


@pytest.mark.parametrize("kind", ["writable", "link", "file"])
def test_a_folder_that_others_may_have_filled_is_not_used(folder, events, caplog, kind):
    folder.parent.mkdir()
    if kind == "file":
        folder.touch()
    elif kind == "link":
        (folder.parent / "other").mkdir()
        folder.symlink_to("other")
    else:
        folder.mkdir()
        folder.chmod(0o770)
    with compiled.programs_kept():
        compile_once()
    assert not events
    (record,) = caplog.records
    assert record.levelno == logging.WARNING and str(folder) in record.message


def test_another_users_folder_is_not_used(folder, monkeypatch, caplog):
    monkeypatch.setattr("os.getuid", lambda: folder.stat().st_uid + 1)
    with compiled.programs_kept():
        compile_once()
    assert not entries(folder) and "belongs to another user" in caplog.text


def test_what_the_user_told_jax_wins(folder, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path / "own"))
    with compiled.programs_kept():
        assert jax.config.values["jax_compilation_cache_dir"] == str(tmp_path / "own")
    jax.config.update("jax_compilation_cache_dir", None)
    jax.config.update("jax_enable_compilation_cache", False)
    try:
        with compiled.programs_kept():
            compile_once()
    finally:
        jax.config.update("jax_enable_compilation_cache", True)
    assert not folder.exists()


def test_doctor_shows_it(folder, run):
    def found():
        return json.loads(run("doctor", "--json").out)["folders"]["compiled"]

    assert found()["path"] == str(folder) and not found()["exists"]
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    assert "can be written by others" in found()["unused"]
    folder.chmod(0o700)
    assert found()["unused"] is None
