import importlib
import subprocess
import sys

import pytest

from pce_jax.errors import USER_ERRORS, ModelFolderError, PceError, UnknownModelError
from pce_jax.hub import Source, resolve
from pce_jax.models.errors import ConfigError


def folder_with(path, *files):
    path.mkdir(parents=True, exist_ok=True)
    for name in files:
        (path / name).write_bytes(b"GGUF" if name.endswith(".gguf") else b"{}")
    return path


@pytest.mark.parametrize("name", ["smollm2-135m", "smollm2", "SmolLM2-135M"])
def test_embedded_names_and_aliases(monkeypatch, tmp_path, name):
    module = importlib.import_module("pce_jax.hub.resolve")  # the package's name is the function
    monkeypatch.setattr(module, "fetch_embedded", lambda _: tmp_path)
    assert resolve(name) == Source("gguf", tmp_path)


def test_existing_paths(tmp_path):
    folder = folder_with(tmp_path, "config.json", "model.safetensors", "a.gguf")
    assert resolve(str(folder)) == Source("folder", folder)
    assert resolve(str(folder / "a.gguf")) == Source("gguf", folder / "a.gguf")


def test_a_tilde_is_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    folder_with(tmp_path, "a.gguf")
    assert resolve("~/a.gguf").path == tmp_path / "a.gguf"


def test_a_local_folder_comes_before_a_hub_id(monkeypatch, tmp_path):
    folder_with(tmp_path / "org" / "name", "config.json", "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert resolve("org/name").kind == "folder"


@pytest.mark.parametrize("name", ["./absent", "~nobody-here/x", "a/b/c", "absent.gguf", "/absent"])
def test_a_path_that_does_not_exist_is_said_to_be_one(name):
    with pytest.raises(UnknownModelError, match=r"no file or folder /.*ORG/NAME"):
        resolve(name)


@pytest.mark.parametrize("name", ["smolm2", "SmolLM2-135M-Instruct"])
def test_an_unknown_name_gets_the_nearest_known_one(name):
    with pytest.raises(UnknownModelError, match=r"Did you mean .*smollm2-135m.*\.gguf.*ORG/NAME"):
        resolve(name)


@pytest.mark.parametrize("name", ["", " ", "qqq"])
def test_a_hopeless_name_gets_the_accepted_forms_only(name):
    with pytest.raises(UnknownModelError, match=r"no model '.*'\. A model is given as"):
        resolve(name)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ([], "no config.json"),
        (["model.safetensors"], "no config.json"),
        (["m.gguf"], r"no config\.json.*/m\.gguf"),
        (["adapter_config.json", "adapter_model.safetensors"], "PEFT adapter"),
        (["config.json"], "no weights"),
        (["config.json", "m.gguf"], r"no weights.*/m\.gguf"),
        (["config.json", "pytorch_model.bin"], "pickle.*safe_serialization=True"),
    ],
)
def test_a_folder_that_cannot_be_loaded_says_why(tmp_path, files, message):
    with pytest.raises(ModelFolderError, match=message):
        resolve(str(folder_with(tmp_path, *files)))


def test_a_file_of_another_kind_says_so(tmp_path):
    folder_with(tmp_path, "model.safetensors")
    with pytest.raises(ModelFolderError, match=r"not a \.gguf"):
        resolve(str(tmp_path / "model.safetensors"))


def test_a_pointer_in_place_of_a_gguf_says_so(tmp_path):
    (tmp_path / "a.gguf").write_text("version https://git-lfs.github.com/spec/v1")
    with pytest.raises(ModelFolderError, match="git lfs pull"):
        resolve(str(tmp_path / "a.gguf"))


def test_user_errors_cover_both_floors_and_are_value_errors():
    assert issubclass(UnknownModelError, PceError)
    assert issubclass(ConfigError, USER_ERRORS)
    assert all(issubclass(error, ValueError) for error in USER_ERRORS)


def test_importing_the_hub_imports_nothing_heavy():
    code = (
        "import sys, pce_jax.hub;"
        "print({'transformers', 'huggingface_hub', 'torch', 'gguf'} & set(sys.modules))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "set()\n"
