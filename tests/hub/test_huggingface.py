"""The Hub's own functions are replaced: nothing here touches a network."""

import fnmatch

import huggingface_hub
import pytest
from huggingface_hub import errors

from pce_jax.errors import DownloadError, ModelFolderError, UnknownModelError
from pce_jax.hub import Source, resolve


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Returns a function that sets the files of the one repository there is."""
    files: list[str] = []

    def download(repo, *, allow_patterns, ignore_patterns):
        for name in files:
            wanted = any(fnmatch.fnmatch(name, pattern) for pattern in allow_patterns)
            if wanted and not any(fnmatch.fnmatch(name, p) for p in ignore_patterns or ()):
                (tmp_path / name).parent.mkdir(exist_ok=True)
                (tmp_path / name).write_bytes(b"GGUF")
        return str(tmp_path)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub.HfApi, "list_repo_files", lambda self, repo: files)
    return files.extend


def fail_with(monkeypatch, error):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)


def http(kind):
    return kind.__new__(kind)  # without the response that the constructor asks for


def test_fetches_config_safetensors_and_tokenizer_and_nothing_else(hub, tmp_path):
    wanted = {
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "vocab.json",
        "merges.txt",
        "chat_template.jinja",
    }
    hub(wanted)
    hub(["pytorch_model.bin", "consolidated.safetensors", "original/model.safetensors", "a.gguf"])
    hub(["README.md", "training_args.bin", "onnx/tokenizer.json"])
    assert resolve("org/name") == Source("folder", tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == wanted


def test_one_gguf_file_of_a_repository(hub, tmp_path):
    hub(["a.Q4_0.gguf", "a.Q8_0.gguf", "sub/b.gguf"])
    assert resolve("org/name:a.Q8_0.gguf") == Source("gguf", tmp_path / "a.Q8_0.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["a.Q8_0.gguf"]
    assert resolve("org/name:sub/b.gguf").path == tmp_path / "sub" / "b.gguf"


def test_an_absent_gguf_file_gets_the_nearest_one(hub):
    hub(["a.Q4_0.gguf", "config.json"])
    with pytest.raises(UnknownModelError, match=r"Did you mean org/name:a\.Q4_0\.gguf\?"):
        resolve("org/name:a.Q4_1.gguf")


def test_a_gguf_repository_says_how_to_name_a_file(hub):
    hub(["config.json", "a.gguf"])
    with pytest.raises(ModelFolderError, match=r"Name one: org/name:a\.gguf"):
        resolve("org/name")


def test_a_pickle_repository_is_refused_with_the_way_to_convert(hub, tmp_path):
    hub(["config.json", "pytorch_model.bin"])
    with pytest.raises(ModelFolderError, match=r"pytorch_model\.bin.*safe_serialization=True"):
        resolve("org/name")
    assert not (tmp_path / "pytorch_model.bin").exists()


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (http(errors.GatedRepoError), UnknownModelError, "gated.*hf auth login"),
        (http(errors.RepositoryNotFoundError), UnknownModelError, "no local folder of that name"),
        (errors.HFValidationError("bad"), UnknownModelError, "not a valid"),
        (errors.OfflineModeIsEnabled("offline"), DownloadError, "HF_HUB_OFFLINE.*local folder"),
        (errors.LocalEntryNotFoundError("no copy"), DownloadError, "no copy.*local folder"),
        (TimeoutError("slow"), DownloadError, "slow"),
    ],
)
def test_failures_of_the_hub_say_what_to_do(monkeypatch, error, kind, message):
    fail_with(monkeypatch, error)
    for name in ("org/name", "org/name:a.gguf"):
        with pytest.raises(kind, match=message):
            resolve(name)


@pytest.mark.network
def test_a_repository_that_does_not_exist():
    with pytest.raises(UnknownModelError, match="open to this user"):
        resolve("pce-jax-no-such-org/no-such-model")
