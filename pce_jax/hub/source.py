"""A model that lies on this machine, and the check that it can be loaded."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pce_jax.errors import ModelFolderError

GGUF_MAGIC = b"GGUF"
PICKLES = (".bin", ".pt", ".pth", ".ckpt")

TO_SAFETENSORS = (
    "Convert them once, where PyTorch is installed: `AutoModelForCausalLM.from_pretrained(NAME)"
    ".save_pretrained(FOLDER, safe_serialization=True)` and `AutoTokenizer.from_pretrained(NAME)"
    ".save_pretrained(FOLDER)`; then give FOLDER"
)


@dataclass(frozen=True)
class Source:
    """Where a model lies.

    Attributes:
        kind: "gguf" for one `.gguf` file; "folder" for a Hugging Face folder with `config.json`
            and `*.safetensors`.
        path: The file or the folder.
    """

    kind: Literal["gguf", "folder"]
    path: Path


def local_source(path: Path) -> Source:
    """Returns the model at an existing path, after a look at the names of its files.

    Raises:
        ModelFolderError: it is neither a `.gguf` file nor a folder with a config and safetensors.
    """
    if path.is_dir():
        _check_folder(path)
        return Source("folder", path)
    if path.suffix.lower() == ".gguf":
        _check_gguf(path)
        return Source("gguf", path)
    raise ModelFolderError(
        f"{path} is a file, but not a .gguf. For a Hugging Face model give the folder that holds "
        "config.json and the *.safetensors files."
    )


def _check_folder(folder: Path) -> None:
    try:
        names = sorted(entry.name for entry in folder.iterdir())
    except OSError as error:
        raise ModelFolderError(f"{folder} cannot be read: {error.strerror or error}.") from error
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    if "config.json" not in names:
        if ggufs:
            hint = f"To load a GGUF file, name the file itself, as in {folder / ggufs[0]}."
        elif "adapter_config.json" in names:
            hint = "It holds a PEFT adapter: give its base model, or merge the two first."
        else:
            hint = "Give the folder of a Hugging Face model, or the path of a .gguf file."
        raise ModelFolderError(f"The folder {folder} has no config.json. {hint}")
    if any(name.endswith(".safetensors") for name in names):
        return
    if any(name.endswith(PICKLES) for name in names):
        raise ModelFolderError(
            f"The folder {folder} holds its weights as pickle files only, which can run code when "
            f"opened and are not read here. {TO_SAFETENSORS}."
        )
    hint = f" To load a GGUF file, name it: {folder / ggufs[0]}." if ggufs else ""
    raise ModelFolderError(
        f"The folder {folder} has a config.json but no weights (*.safetensors).{hint}"
    )


def _check_gguf(path: Path) -> None:
    try:
        with path.open("rb") as file:
            start = file.read(len(GGUF_MAGIC))
    except OSError as error:
        raise ModelFolderError(f"{path} cannot be read: {error.strerror or error}.") from error
    if start != GGUF_MAGIC:
        raise ModelFolderError(
            f"{path} is not a GGUF file: it starts with {start!r}, not {GGUF_MAGIC!r}. It may be "
            "half downloaded, or a Git LFS pointer (run `git lfs pull`)."
        )
