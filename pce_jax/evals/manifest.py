"""What a results folder says about its rows: model, config, versions, device."""

import dataclasses
import hashlib
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import jax

from pce_jax.adapter_files import CONTEXT, PEFT_CONFIG, PEFT_MODEL, SETTINGS
from pce_jax.evals.config import EvalConfig
from pce_jax.evals.instance import Task
from pce_jax.evals.methods import method_to_dict
from pce_jax.evals.store import FORMAT
from pce_jax.hub.source import Source
from pce_jax.method import Method
from pce_jax.models import Llama

_PACKAGES = ("pce-jax", "jax", "jaxlib", "flax", "transformers", "numpy")


def describe(
    config: EvalConfig,
    tasks: Mapping[str, Task],
    methods: Mapping[str, Mapping[str, Method]],
    model_hash: str,
    model: Llama,
) -> dict[str, Any]:
    """The manifest of a new results folder, as JSON values.

    Args:
        config: What is evaluated.
        tasks: Its tasks by name.
        methods: By task and name, what each method means for it.
        model_hash: From `hash_model`.
        model: What is evaluated.
    """
    return {
        "format": FORMAT,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {
            "name": config.model,
            "sha256": model_hash,
            "adapters": None if config.adapters is None else hash_adapters(config.adapters),
            "dtype": str(model.dtype),
            "weights": str(model.blocks.q_proj[...].dtype),
            "cache": config.cache,
        },
        "seed": config.seed,
        "chat": config.chat,
        "degrees": list(config.degrees),
        "methods": [method.name for method in config.methods],
        "tasks": {
            spec.name: {
                "kind": spec.kind,
                "fields": _fields(tasks[spec.name], spec.written),
                "limit": spec.limit,
                "metric": tasks[spec.name].metric,
                "max_new_tokens": tasks[spec.name].max_new_tokens,
                "instances": None,
                "methods": {
                    name: method_to_dict(method) for name, method in methods[spec.name].items()
                },
            }
            for spec in config.tasks
        },
        "versions": {"python": sys.version.split()[0]}
        | {name: _version(name) for name in _PACKAGES},
        "device": device(),
    }


def device() -> dict[str, Any]:
    """Where jax computes."""
    devices = jax.devices()
    return {
        "backend": jax.default_backend(),
        "kind": devices[0].device_kind,
        "count": len(devices),
    }


def hash_model(source: Source) -> str:
    """SHA-256 of a model's files: weights, config and tokenizer, whatever folder they lie in.

    Args:
        source: From `pce_jax.hub.resolve`.
    """
    if source.kind == "gguf":
        return _hash(source.path)
    whole = hashlib.sha256()
    patterns = ("config.json", "*.safetensors", "tokenizer*", "vocab*", "merges*")
    files = {path for pattern in patterns for path in source.path.glob(pattern)}
    for path in sorted(files, key=lambda path: path.name):
        whole.update(f"{path.name} {_hash(path)}\n".encode())
    return whole.hexdigest()


def hash_adapters(folder: Path) -> str:
    """SHA-256 of a folder of adapters.

    Args:
        folder: As `pce_jax.load_adapters` reads it.
    """
    whole = hashlib.sha256()
    for name in (PEFT_CONFIG, PEFT_MODEL, CONTEXT, SETTINGS):
        if (folder / name).exists():
            whole.update(f"{name} {_hash(folder / name)}\n".encode())
    return whole.hexdigest()


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fields(task: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """Every field of a task, defaults among them; paths as in the config."""
    values = {field.name: getattr(task, field.name) for field in dataclasses.fields(task)}
    values |= {key: written[key] for key in getattr(task, "path_fields", ()) if key in written}
    return {key: _plain(values[key]) for key in sorted(values) if key not in ("name", "limit")}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(one) for one in value]
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value) if isinstance(value, Path) else value


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:  # run from a source tree
        return "not installed"
