"""What the numbers were measured on, as plain values."""

import os
import platform
import sys
from importlib import metadata
from typing import Any

import jax
import jax.numpy as jnp

from .setting import Setting


def cores() -> int:
    """Processor cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def facts(setting: Setting, model: str, parts: tuple[str, ...], quick: bool) -> dict[str, Any]:
    """Everything that is needed to know what was measured.

    Args:
        setting: What is measured on.
        model: The model's name.
        parts: That were asked for.
        quick: Whether the sizes are the small ones.
    """
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "model": model,
        "parameters": setting.config.num_parameters,
        "dtype": jnp.dtype(setting.model.dtype).name,
        "device": jax.devices()[0].device_kind,
        "platform": jax.default_backend(),
        "processor": _processor(),
        "cores": setting.cores,
        "load_at_start": load,
        "quick": quick,
        "repeats": setting.repeats,
        "parts": list(parts),
        "reference": setting.reference,
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter, where they are installed."""
    found = {"python": sys.version.split()[0]}
    for name in ("pce-jax", "jax", "jaxlib", "flax", "transformers", "torch"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:  # not Linux
        pass
    return platform.processor() or platform.machine()
