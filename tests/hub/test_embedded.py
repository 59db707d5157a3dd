"""pip really runs here, on a small wheel in a folder and with no index."""

import dataclasses
import importlib.util
import subprocess
import sys
import zipfile

import pytest
from fake_wheel import CONTENT

from pce_jax.errors import CacheError, DownloadError, UnknownModelError
from pce_jax.hub import embedded
from pce_jax.hub.embedded import EMBEDDED, fetch, fetch_embedded


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_fetches_once_and_keeps_only_the_model_file(cache, index, monkeypatch):
    path = fetch(index.model())
    assert path == cache / "tiny.gguf"
    assert path.read_bytes() == CONTENT
    assert names(cache) == ["tiny.gguf"]
    monkeypatch.setattr(embedded, "download_wheel", None)
    assert fetch(index.model()) == path


def test_a_damaged_cached_file_is_reported_and_fetched_again(cache, index, caplog):
    cache.mkdir()
    (cache / "tiny.gguf").write_bytes(CONTENT[:-1])
    assert fetch(index.model()).read_bytes() == CONTENT
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "tiny.gguf is damaged" in caplog.text


def test_a_wheel_with_another_hash_is_refused(cache, index):
    with pytest.raises(
        DownloadError, match=r"damaged or is another file(.|\n)*Expected sha256 0000"
    ):
        fetch(index.model(wheel_sha256="0" * 64))
    assert names(cache) == []


def test_a_truncated_wheel_is_refused(cache, index):
    model = index.model()
    index.wheel.write_bytes(index.wheel.read_bytes()[:-100])
    with pytest.raises(DownloadError, match=r"tiny-model==1\.0"):
        fetch(model)
    assert names(cache) == []


def test_a_wheel_that_is_damaged_inside_is_refused(cache, index, monkeypatch):
    data = bytearray(index.wheel.read_bytes())
    data[100] ^= 255  # within the compressed member
    index.wheel.write_bytes(data)
    monkeypatch.setattr(embedded, "download_wheel", lambda *_: index.wheel)
    with pytest.raises(DownloadError, match=r"tiny_model-1\.0.*(damaged|SHA-256)"):
        fetch(index.model())
    assert names(cache) == []


def test_a_wheel_without_the_file_is_refused(cache, index):
    with pytest.raises(DownloadError, match=r"holds no file other/tiny\.gguf"):
        fetch(index.model(member="other/tiny.gguf"))
    assert names(cache) == []


def test_a_file_with_another_hash_is_refused(cache, index):
    with pytest.raises(DownloadError, match=f"expected {'1' * 64}"):
        fetch(index.model(member_sha256="1" * 64))
    assert names(cache) == []


def test_without_a_network_the_message_says_what_to_do(cache, index):
    model = index.model()
    index.wheel.unlink()
    with pytest.raises(DownloadError) as raised:
        fetch(model)
    for part in ("could not be reached", "No matching distribution", "proxy", f"{cache}/tiny.gguf"):
        assert part in str(raised.value)
    assert names(cache) == []


def test_without_pip_the_message_says_how_to_get_it(cache, index, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="ensurepip"):
        fetch(index.model())


def test_pip_shows_its_progress_only_on_a_terminal(cache, index, capfd, monkeypatch):
    fetch(index.model())
    assert capfd.readouterr() == ("", "")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "fileno", lambda: 2)
    (cache / "tiny.gguf").unlink()
    fetch(index.model())
    out, err = capfd.readouterr()
    assert out == ""
    assert "tiny_model-1.0" in err


def test_an_interrupted_extraction_leaves_nothing(cache, index, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fetch(index.model())
    assert names(cache) == []


def test_a_full_disk_names_the_folder_and_leaves_nothing(cache, index, monkeypatch):
    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(CacheError, match=r"No space left.*PCE_JAX_CACHE"):
        fetch(index.model())
    assert names(cache) == []


def test_a_good_file_in_a_read_only_cache_is_enough(cache, index, monkeypatch):
    fetch(index.model())
    monkeypatch.setattr(embedded, "writable_cache_folder", None)
    assert fetch(index.model()) == cache / "tiny.gguf"


def test_two_processes_at_once_both_get_the_file(cache, index):
    # With a pip or cache that were shared between the two, one would see the other's half a file.
    model = dataclasses.asdict(index.model())
    code = f"from pce_jax.hub.embedded import *; print(fetch(EmbeddedModel(**{model!r})))"
    running = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert {process.communicate()[0] for process in running} == {f"{cache / 'tiny.gguf'}\n"}
    assert (cache / "tiny.gguf").read_bytes() == CONTENT
    assert names(cache) == ["tiny.gguf"]


def test_an_unknown_name_lists_the_known_ones():
    with pytest.raises(UnknownModelError, match="smollm2-135m, smollm2"):
        fetch_embedded("gpt-5")


def test_every_embedded_model_is_pinned():
    for model in EMBEDDED.values():
        assert "==" in model.requirement
        assert len(model.wheel_sha256) == len(model.member_sha256) == 64


def test_the_real_model_is_whole(smollm2_path):
    assert smollm2_path.name == "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert smollm2_path.stat().st_size == 98_362_432
    assert not zipfile.is_zipfile(smollm2_path)
