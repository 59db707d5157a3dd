"""From the name a user gives to a model on this machine."""

import difflib
import os
import re
from pathlib import Path

from pce_jax.errors import UnknownModelError
from pce_jax.hub.embedded import ALIASES, EMBEDDED, fetch_embedded
from pce_jax.hub.huggingface import fetch_file, fetch_folder
from pce_jax.hub.source import Source, local_source

_WORD = r"[A-Za-z0-9][\w.-]*"
_HUB_NAME = re.compile(rf"(?P<repo>{_WORD}/{_WORD})(?::(?P<file>[^:]+\.gguf))?", re.ASCII)


def resolve(name: str) -> Source:
    """Returns the model that `name` stands for, downloading it if need be.

    Tried in this order (write `./NAME` for a folder that is called like an embedded model):

        smollm2-135m          the embedded default model (alias: smollm2)
        PATH.gguf             an existing GGUF file
        FOLDER                an existing folder with config.json and *.safetensors
        ORG/NAME              a Hugging Face id
        ORG/NAME:FILE.gguf    one GGUF file of a Hugging Face repository

    Raises:
        UnknownModelError: nothing goes by this name.
        ModelFolderError: what is there is not a model that can be loaded.
        DownloadError, CacheError: it had to be fetched and could not be.
    """
    embedded = name.strip().lower()
    if embedded in EMBEDDED or embedded in ALIASES:
        return Source("gguf", fetch_embedded(embedded))
    path = _path(name)
    if name.strip() and path.exists():
        return local_source(path)
    if hub := _HUB_NAME.fullmatch(name):
        if hub["file"]:
            return Source("gguf", fetch_file(hub["repo"], hub["file"]))
        if not name.lower().endswith(".gguf"):
            return local_source(fetch_folder(name))
    if _looks_like_path(name):
        raise UnknownModelError(f"There is no file or folder {path.absolute()}. {_accepted()}")
    near = difflib.get_close_matches(embedded, [*EMBEDDED, *ALIASES], n=3, cutoff=0.5)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UnknownModelError(f"There is no model {name!r}.{hint} {_accepted()}")


def _path(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # ~user of nobody
        return Path(name)


def _looks_like_path(name: str) -> bool:
    separators = {os.sep, os.altsep, "/"} - {None}
    return (
        name.startswith((".", "~"))
        or name.lower().endswith(".gguf")
        or any(separator in name for separator in separators if separator)
    )


def _accepted() -> str:
    names = ", ".join([*EMBEDDED, *ALIASES])
    return (
        f"A model is given as an embedded name ({names}), a path to a .gguf file, a folder with "
        "config.json and *.safetensors, a Hugging Face id (ORG/NAME), or one GGUF file of a "
        "Hugging Face repository (ORG/NAME:FILE.gguf)."
    )
