"""Fetching models from the Hugging Face Hub, into its own cache (`HF_HOME`)."""

import difflib
import glob
from collections.abc import Sequence
from pathlib import Path

from pce_jax.errors import DownloadError, ModelFolderError, UnknownModelError
from pce_jax.hub.source import PICKLES, TO_SAFETENSORS

CONFIGS = ("config.json", "generation_config.json")
WEIGHTS = ("*.safetensors", "*.safetensors.index.json")
TOKENIZER = (
    "tokenizer*",
    "vocab.*",
    "merges.txt",
    "*.model",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
)
# A second copy of the weights in another layout, and anything in a subfolder: never loaded here.
IGNORED = ("consolidated*", "*/*")


def fetch_folder(repo: str) -> Path:
    """Returns the local folder of a repository's config, safetensors and tokenizer files.

    Pickle files are never fetched.

    Raises:
        UnknownModelError: there is no such repository, or it is not open to this user.
        ModelFolderError: the repository holds no `*.safetensors`.
        DownloadError: the Hub cannot be reached and no earlier download is complete.
    """
    folder = _snapshot(repo, [*CONFIGS, *WEIGHTS, *TOKENIZER], list(IGNORED))
    if not any(folder.glob("*.safetensors")):
        raise ModelFolderError(_why_no_weights(repo, _file_names(repo)))
    return folder


def fetch_file(repo: str, filename: str) -> Path:
    """Returns the local path of one file of a repository.

    Raises:
        UnknownModelError: there is no such repository or file, or it is not open to this user.
        DownloadError: the Hub cannot be reached and there is no earlier download.
    """
    path = _snapshot(repo, [glob.escape(filename)]) / filename
    if path.is_file():
        return path
    ggufs = [name for name in _file_names(repo) if name.lower().endswith(".gguf")]
    near = difflib.get_close_matches(filename, ggufs, n=1, cutoff=0.3)
    hint = f" Did you mean {repo}:{near[0]}?" if near else ""
    raise UnknownModelError(
        f"The Hugging Face repository {repo} has no file {filename}.{hint} Its GGUF files: "
        f"{_shown(ggufs) or 'none'}."
    )


def _snapshot(repo: str, allow: list[str], ignore: list[str] | None = None) -> Path:
    """Downloads the matching files, turning what can fail into errors that say what to do."""
    from huggingface_hub import errors, snapshot_download

    try:
        return Path(snapshot_download(repo, allow_patterns=allow, ignore_patterns=ignore))
    except errors.GatedRepoError as error:
        raise UnknownModelError(
            f"The Hugging Face repository {repo} is gated: accept its terms on its page, then log "
            "in here with `hf auth login`."
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise UnknownModelError(
            f"There is no Hugging Face repository {repo} open to this user, and no local folder of "
            "that name. Check the spelling; for a private one run `hf auth login`."
        ) from error
    except errors.HFValidationError as error:
        raise UnknownModelError(f"{repo!r} is not a valid Hugging Face id: {error}") from error
    except Exception as error:  # the base class of network errors depends on the Hub's HTTP client
        raise _unreachable(repo, error) from error


def _unreachable(repo: str, error: Exception) -> DownloadError:
    reason = str(error.__cause__ or error).strip().splitlines() or ["no details"]
    return DownloadError(
        f"{repo} is no local folder, so it was looked up on the Hugging Face Hub; it could not be "
        f"fetched, and the Hub's cache on this machine has no complete copy "
        f"({type(error).__name__}: {reason[0]}). Check the network (and HF_HUB_OFFLINE), or give a "
        "local folder or a .gguf file instead."
    )


def _file_names(repo: str) -> list[str]:
    """Returns the names of a repository's files.

    Raises:
        DownloadError: the Hub cannot be asked.
    """
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(repo)
    except Exception as error:  # as above
        raise _unreachable(repo, error) from error


def _why_no_weights(repo: str, names: Sequence[str]) -> str:
    ggufs = [name for name in names if name.lower().endswith(".gguf")]
    pickles = [name for name in names if name.endswith(PICKLES)]
    text = f"The Hugging Face repository {repo} holds no *.safetensors file"
    if ggufs:
        return f"{text}, but GGUF files. Name one: {_shown([f'{repo}:{name}' for name in ggufs])}."
    if pickles:
        return (
            f"{text}, only pickle files ({_shown(pickles)}), which can run code when opened and "
            f"are not read here. {TO_SAFETENSORS}."
        )
    return f"{text} at its top level, so it cannot be loaded. Give another repository."


def _shown(names: Sequence[str], count: int = 8) -> str:
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
