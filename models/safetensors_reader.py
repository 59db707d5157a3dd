"""Hugging Face folders in: config.json and safetensors, one file or many."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from .assemble import Progress, StoredTensor, assemble, check_dtype, check_tensors
from .config import LlamaConfig
from .errors import ConfigError, WeightsError
from .families import hf_tensor_names
from .llama import Llama
from .mesh import MeshLayout
from .problems import Problems
from .safetensors_format import stored_tensors

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

_PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")


def load_folder(
    folder: Path | str,
    dtype: Any = jnp.float32,
    progress: Progress | None = None,
    layout: MeshLayout | None = None,
) -> Llama:
    """Read a model from a Hugging Face folder, one tensor at a time.

    On one device, the peak of memory is the weights in `dtype`, plus one stacked parameter where
    the device does not share the host's memory, plus the tensor being read.

    Args:
        folder: Holds `config.json` with `model.safetensors`, or shards with their index, or
            (without an index) any `.safetensors` files.
        dtype: Of the weights: float32, bfloat16 or float16, whatever the files mix. Bit for bit
            when it is the stored one.
        progress: Called as `progress(done, total)` with numbers of weights.
        layout: How the weights lie on a mesh; each process then reads only what its devices hold.
            JAX's default device by default.

    Raises:
        ConfigError: `config.json` is missing, not JSON, or asks for what `Llama` does not compute.
        WeightsError: Weights are missing, unexpected, wrongly shaped, of an unsupported dtype, cut
            short, or only there as pickles. One error names everything that is wrong.
        ValueError: `dtype` is another one.
    """
    folder, dtype = Path(folder), check_dtype(dtype)
    config = load_config(folder)
    problems = Problems()
    stored = _stored_tensors(folder, problems)

    def names(parameter: str) -> list[str]:
        return hf_tensor_names(parameter, config.num_layers)

    copied_head = _tied_head(config, stored)
    check_tensors(config, stored, names, problems)
    advice = "Fetch the files anew, or check that config.json belongs to these weights."
    problems.raise_if_any(folder, advice)
    if copied_head is not None:
        _check_tied(folder, stored[hf_tensor_names("embed", 0)[0]], copied_head, problems)
    return assemble(config, stored, names, dtype, layout, progress)


def load_config(folder: Path | str) -> LlamaConfig:
    """Read a folder's `config.json`, with the end tokens of `generation_config.json` if it has any.

    The latter win because chat models end turns with tokens that `config.json` often omits.

    Raises:
        ConfigError: `config.json` is missing, either is not a JSON object, or a field is not
            supported.
    """
    folder = Path(folder)
    file, generation_file = folder / "config.json", folder / "generation_config.json"
    if not file.is_file():
        what = "there is no such folder" if not folder.is_dir() else "it has no config.json"
        raise ConfigError(
            f"{folder}: {what}. Give the folder of a Hugging Face model (a .gguf file: load_gguf)."
        )
    hf = _read_json(file)
    generation = _read_json(generation_file) if generation_file.is_file() else {}
    if generation.get("eos_token_id") is not None:
        hf["eos_token_id"] = generation["eos_token_id"]
    try:
        return LlamaConfig.from_hf(hf)
    except ConfigError as error:
        raise ConfigError(f"{file}: {error}") from error


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} is not valid JSON: {error}. Fetch it anew.") from error
    if not isinstance(value, dict):
        raise ConfigError(f"{file} must hold a JSON object, not {type(value).__name__}.")
    return value


def _stored_tensors(folder: Path, problems: Problems) -> dict[str, StoredTensor]:
    """All tensors of the folder's weight files, but for buffers that old checkpoints saved."""
    index_file = folder / INDEX
    if (folder / SINGLE).is_file():  # transformers, too, prefers it to an index
        return _headers([folder / SINGLE], problems)
    if not index_file.is_file():
        return _headers(_loose_files(folder), problems)
    weight_map = _read_json(index_file).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise WeightsError(f"{index_file} has no weight_map. Fetch it anew, or remove it.")
    files = sorted({str(name) for name in weight_map.values()})
    absent = [name for name in files if not (folder / name).is_file()]
    for name in absent:
        problems.add("missing file", name)
    stored = _headers([folder / name for name in files if name not in absent], problems)
    for name, file in weight_map.items():
        if name in stored and stored[name].file.name != file:
            found = stored[name].file.name
            problems.add("wrong index", f"{name}: said to be in {file}, found in {found}")
    return stored


def _headers(files: Iterable[Path], problems: Problems) -> dict[str, StoredTensor]:
    stored: dict[str, StoredTensor] = {}
    for file in files:
        for name, tensor in stored_tensors(file, problems).items():
            if name.endswith(".rotary_emb.inv_freq"):
                continue  # recomputed from the config
            if name in stored:
                problems.add("twice", f"{name} in {stored[name].file.name} and {file.name}")
            stored[name] = tensor
    return stored


def _loose_files(folder: Path) -> list[Path]:
    # Mistral's `consolidated` files repeat the weights under other names.
    files = [
        f for f in sorted(folder.glob("*.safetensors")) if not f.name.startswith("consolidated")
    ]
    if files:
        return files
    pickles = sorted(file.name for pattern in _PICKLES for file in folder.glob(pattern))
    if pickles:
        raise WeightsError(
            f"{folder} has its weights only as pickles ({', '.join(pickles)}), which can run any "
            "code when loaded and are not read. Re-save them with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder, "
            "safe_serialization=True)."
        )
    raise WeightsError(
        f"{folder} has no .safetensors files. Fetch the weights, or give another folder."
    )


def _tied_head(config: LlamaConfig, stored: dict[str, StoredTensor]) -> StoredTensor | None:
    """Take the output head out of `stored` if the config ties it to the embedding."""
    return stored.pop(hf_tensor_names("head", 0)[0], None) if config.tie_embeddings else None


def _check_tied(folder: Path, embed: StoredTensor, head: StoredTensor, problems: Problems) -> None:
    """Refuse a saved head that is not the embedding, in spite of a config that ties them.

    Some tools save the tied head as a copy, which is harmless; one that differs was trained apart,
    and dropping it would silently change the model.
    """
    same = head.shape == embed.shape and all(
        np.array_equal(a.astype(np.float32), b.astype(np.float32), equal_nan=True)
        for (_, a), (_, b) in zip(embed.chunks(), head.chunks(), strict=True)
    )
    if not same:
        problems.add("not tied", f"lm_head.weight in {head.file.name} differs from the embedding")
    problems.raise_if_any(folder, "Set tie_word_embeddings to false in config.json to keep both.")
