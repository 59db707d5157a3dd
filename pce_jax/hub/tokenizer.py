"""A model's tokenizer, as `transformers` reads it. PyTorch is not needed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pce_jax.errors import TokenizerError, WeightsError
from pce_jax.hub.source import Source
from pce_jax.models.gguf_format import read_gguf_header
from pce_jax.models.problems import Problems

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_SPECIAL_TOKENS = {
    "bos_token": "bos_token_id",
    "eos_token": "eos_token_id",
    "unk_token": "unknown_token_id",
    "pad_token": "padding_token_id",
}


def load_tokenizer(source: Source) -> "PreTrainedTokenizerBase":
    """Returns the tokenizer of a model folder or of a GGUF file.

    From a GGUF file the ids are those of `AutoTokenizer.from_pretrained(..., gguf_file=...)`, also
    where these differ from the model's original tokenizer.

    Raises:
        TokenizerError: there is none, or it is of a kind that `transformers` cannot build.
        WeightsError: the GGUF file is damaged.
    """
    _import_transformers()
    try:
        if source.kind == "gguf":
            return _from_gguf(source.path)
        return _auto(source.path)
    except WeightsError:
        raise
    except Exception as error:  # tokenizers raises no narrower class for a file it cannot read
        raise TokenizerError(
            f"The tokenizer of {source.path} cannot be loaded: {error}\nA model folder needs its "
            "tokenizer.json (or tokenizer.model) and tokenizer_config.json; a GGUF file needs its "
            "tokenizer.ggml.* metadata."
        ) from error


def encode_text(tokenizer: "PreTrainedTokenizerBase", text: str) -> list[int]:
    """Returns the token ids of `text`, with no special token added.

    Special tokens written out in the text, as in `<|im_start|>`, become their own ids. The text may
    be longer than the model's window: nothing is cut and nothing is said about it, since it is
    going to be split.

    Example:
        >>> pce.encode_text(tokenizer, "Ada wrote code.")
        [4503, 81, 4150, 2909, 30]
    """
    return tokenizer.encode(text, add_special_tokens=False, verbose=False)


def _auto(folder: Path, **options: str) -> "PreTrainedTokenizerBase":
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(
        folder, local_files_only=True, trust_remote_code=False, **options
    )


def _from_gguf(path: Path) -> "PreTrainedTokenizerBase":
    """Builds the tokenizer that a GGUF file's metadata describes.

    `AutoTokenizer` does the same, but imports PyTorch for its GGUF reader; what it calls after
    reading does not. That part is not a public interface: where it is not found, `AutoTokenizer`
    is asked after all.
    """
    from transformers import PreTrainedTokenizerFast

    metadata = read_gguf_header(path, Problems()).metadata  # the tensors are no concern here
    try:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import (
            GGUF_TOKENIZER_MAPPING,
            convert_gguf_tokenizer,
        )
    except ImportError:
        return _auto(path.parent, gguf_file=path.name)
    settings: dict[str, dict[str, Any]] = {
        group: {
            name: metadata[f"tokenizer.{key}"]
            for key, name in names.items()
            if f"tokenizer.{key}" in metadata
        }
        for group, names in GGUF_TOKENIZER_MAPPING.items()
    }
    vocabulary, config = settings["tokenizer"], settings["tokenizer_config"]
    if vocabulary.get("tokenizer_type") == "llama":
        config.setdefault("add_bos_token", True)  # what a sentencepiece file means by silence
    for name, key in _SPECIAL_TOKENS.items():
        token = metadata.get(f"tokenizer.ggml.{key}")
        config[name] = None if token is None else vocabulary["tokens"][token]
    backend, extra = convert_gguf_tokenizer(metadata["general.architecture"], vocabulary)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **(config | extra))


def _import_transformers() -> None:
    """Imports `transformers` without its advice to install PyTorch.

    The variable is its documented switch for advice; warnings proper are not touched.
    """
    name = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(name)
    os.environ[name] = "1"
    try:
        import transformers  # noqa: F401

    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
