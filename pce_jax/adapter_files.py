"""Adapters as files: LoRA as the `peft` package reads and writes it, the rest beside it.

FOLDER/adapter_config.json            LoRA's rank, scale and targets
FOLDER/adapter_model.safetensors      its factors, by Hugging Face's names
FOLDER/context_adapters.safetensors   temperatures and sink, which only this package knows
FOLDER/context_adapters.json          whether LoRA works in full attention
"""

import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from .adapters import Adapters
from .cache import KV
from .errors import AdapterError
from .models import Lora
from .models.config import LlamaConfig
from .models.llama import parameter_shapes
from .models.lora import TARGETS

PEFT_CONFIG, PEFT_MODEL = "adapter_config.json", "adapter_model.safetensors"
CONTEXT, SETTINGS = "context_adapters.safetensors", "context_adapters.json"
_MODULES = {name: ("self_attn" if name in "qkvo" else "mlp", f"{name}_proj") for name in TARGETS}
_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.\w+\.(\w+)_proj\.lora_([AB])\.weight")


def save_adapters(adapters: Adapters, folder: Path | str, base: str = "") -> None:
    """Write adapters into a folder; `load_adapters` reads it, and `peft` LoRA's part of it.

    Args:
        adapters: What they are.
        folder: To be made, with its parents; may exist if it is empty.
        base: Name of the model they belong to, for `peft`.

    Raises:
        AdapterError: There is nothing to write, or the folder is not empty or cannot be written.

    Example:
        >>> import tempfile
        >>> adapters = pce.Adapters(log_temperature=pce.log_temperature(model.config))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pce.save_adapters(adapters, folder)
        ...     found = pce.load_adapters(folder, model.config)
        >>> found.size
        270
    """
    target = Path(folder)
    if not adapters.size:
        raise AdapterError("there are no adapters to write.")
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise AdapterError(f"{target} exists and is not an empty folder. Choose another.")
    unfinished = target.with_name(f".{target.name}.unfinished")
    try:
        unfinished.mkdir(parents=True, exist_ok=True)
        if adapters.lora is not None:
            save_file(_peft_tensors(adapters.lora), unfinished / PEFT_MODEL, {"format": "pt"})
            text = json.dumps(_peft_config(adapters.lora, base), indent=2) + "\n"
            (unfinished / PEFT_CONFIG).write_text(text, encoding="utf-8")
            text = json.dumps({"lora_in_full": adapters.lora_in_full}) + "\n"
            (unfinished / SETTINGS).write_text(text, encoding="utf-8")
        if rest := _context_tensors(adapters):
            save_file(rest, unfinished / CONTEXT, {"format": "pce-jax"})
        if target.exists():
            target.rmdir()
        unfinished.replace(target)
    except OSError as error:
        raise AdapterError(f"{target} cannot be written: {error.strerror or error}.") from error


def load_adapters(folder: Path | str, config: LlamaConfig) -> Adapters:
    """Read adapters: those of `save_adapters`, or LoRA as `peft` wrote it.

    Args:
        folder: Where they are.
        config: Of the model they go with.

    Raises:
        AdapterError: There are none, they belong to another model (the tensor is named), or ask for
            something that there is not here.

    Example:
        >>> import tempfile
        >>> heat = pce.log_temperature(model.config) - 0.2
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     pce.save_adapters(pce.Adapters(log_temperature=heat), folder)
        ...     adapters = pce.load_adapters(folder, model.config)
        >>> tuned = pce.with_adapters(model, adapters)
        >>> round(float(pce.encode(tuned, context).sharpness[0, 0]), 3)
        1.221
    """
    folder = Path(folder)
    lora, temperature, sink, in_full = None, None, None, True
    if (folder / PEFT_CONFIG).exists():
        lora = _lora(folder, config)
    if (folder / SETTINGS).exists():  # not where peft wrote
        in_full = _in_full(folder / SETTINGS)
    if (folder / CONTEXT).exists():
        found = _tensors(folder / CONTEXT)
        layers, kv_heads, width = config.num_layers, config.num_kv_heads, config.head_dim
        if "log_temperature" in found:
            temperature = found.pop("log_temperature")
            _check(folder, "log_temperature", temperature, (layers, config.num_heads))
        if {"sink.k", "sink.v"} <= set(found):
            sink = KV(found.pop("sink.k"), found.pop("sink.v"))
            for name, x in (("sink.k", sink.k), ("sink.v", sink.v)):
                slots = x.shape[2] if x.ndim == 4 else 1
                _check(folder, name, x, (layers, kv_heads, slots, width))
        if found:
            raise AdapterError(f"{folder / CONTEXT} holds {min(found)}, which is unknown.")
    adapters = Adapters(lora, temperature, sink, in_full)
    if not adapters.size:
        raise AdapterError(
            f"{folder} holds no adapters: neither {PEFT_CONFIG} nor {CONTEXT}. Name a folder that "
            "`pce-jax export` or peft wrote."
        )
    return jax.tree.map(jnp.asarray, adapters)


def _peft_tensors(lora: Lora) -> dict[str, np.ndarray]:
    found = {}
    for target in lora.a:
        part, module = _MODULES[target]
        for letter, stacked in (("A", lora.a[target]), ("B", lora.b[target])):
            for layer, factor in enumerate(np.asarray(stacked)):
                name = f"base_model.model.model.layers.{layer}.{part}.{module}.lora_{letter}.weight"
                found[name] = np.ascontiguousarray(factor)
    return found


def _peft_config(lora: Lora, base: str) -> dict[str, Any]:
    rank = next(iter(lora.a.values())).shape[1]
    alpha = lora.scale * rank
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base or None,
        "r": rank,
        "lora_alpha": int(alpha) if float(alpha).is_integer() else alpha,
        "lora_dropout": lora.dropout,
        "target_modules": [_MODULES[target][1] for target in lora.a],
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }


def _lora(folder: Path, config: LlamaConfig) -> Lora:
    path = folder / PEFT_CONFIG
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
        rank, alpha = int(said["r"]), float(said["lora_alpha"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from error
    for key in ("use_rslora", "use_dora", "rank_pattern", "alpha_pattern", "modules_to_save"):
        if said.get(key):
            raise AdapterError(f"{path}: {key} is set, and only plain LoRA can be read.")
    if said.get("peft_type") != "LORA" or said.get("bias", "none") != "none":
        raise AdapterError(f"{path}: only LoRA without biases can be read.")
    shapes = parameter_shapes(config)
    rows: dict[tuple[str, str], dict[int, np.ndarray]] = {}
    for name, value in _tensors(folder / PEFT_MODEL).items():
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in TARGETS:
            raise AdapterError(f"{folder / PEFT_MODEL} holds {name}, which is no LoRA factor here.")
        _, out, into = shapes[f"blocks.{match[2]}_proj"]
        _check(folder, name, value, (rank, into) if match[3] == "A" else (out, rank))
        rows.setdefault((match[2], match[3]), {})[int(match[1])] = value
    for target, letter in rows:
        layers = set(rows[target, letter])
        if layers != set(range(config.num_layers)):
            raise AdapterError(
                f"{folder / PEFT_MODEL}: lora_{letter} of {target}_proj is there for "
                f"{len(layers)} layers, and the model has {config.num_layers}."
            )
    targets = [target for target in TARGETS if (target, "A") in rows and (target, "B") in rows]

    def stacked(letter: str) -> dict[str, Any]:
        return {
            target: np.stack([value for _, value in sorted(rows[target, letter].items())])
            for target in targets
        }

    dropout = float(said.get("lora_dropout") or 0.0)
    return Lora(stacked("A"), stacked("B"), alpha / rank, dropout)


def _in_full(path: Path) -> bool:
    try:
        said = json.loads(path.read_text(encoding="utf-8"))["lora_in_full"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from error
    if not isinstance(said, bool):
        raise AdapterError(f"{path}: lora_in_full must be true or false, it is {said!r}.")
    return said


def _context_tensors(adapters: Adapters) -> dict[str, np.ndarray]:
    found: dict[str, Any] = {}
    if adapters.log_temperature is not None:
        found["log_temperature"] = adapters.log_temperature
    if adapters.sink is not None:
        found |= {"sink.k": adapters.sink.k, "sink.v": adapters.sink.v}
    return {name: np.ascontiguousarray(np.asarray(x)) for name, x in found.items()}


def _tensors(path: Path) -> dict[str, Any]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise AdapterError(f"{path} cannot be read: {error}.") from error


def _check(folder: Path, name: str, value: Any, shape: tuple[int, ...]) -> None:
    if value.shape != shape:
        raise AdapterError(
            f"{folder}: {name} is {list(value.shape)}, and this model needs {list(shape)}: the "
            "adapters belong to another one."
        )
