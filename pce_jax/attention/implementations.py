"""Which code attends: by name, or whatever is best where the program is going to run.

Fused attention of others (cuDNN by way of JAX, tokamax, splash attention) gives no entropy, and the
log of the sum of exponentials without its slope or not at all; so the kernels are our own.
"""

import importlib
import re
from collections.abc import Callable
from typing import Any, Literal

import jax
from jaxtyping import Array, Float

from pce_jax.errors import PceError

from . import chunked, einsum
from .result import Attended

Implementation = Literal["einsum", "chunked", "pallas_tpu", "pallas_gpu"]

_EVERYWHERE: dict[str, Callable[..., Attended]] = {
    "einsum": einsum.attend,
    "chunked": chunked.attend,
}
_KERNELS: dict[str, Implementation] = {"tpu": "pallas_tpu", "gpu": "pallas_gpu"}
_CAPABILITY = (8, 0)
"""Of NVIDIA's GPUs: the least that Triton supports."""


def find(
    name: Implementation | None, q: Float[Array, "heads queries head_dim"]
) -> Callable[..., Attended]:
    """The code of an implementation.

    Args:
        name: Which; `None` for the kernels of a TPU or GPU if they can do it, else `chunked`.
        q: Queries of the shape and dtype that it is for.

    Raises:
        PceError: It cannot run here, or there is none of that name.
    """
    if name in _EVERYWHERE:
        return _EVERYWHERE[name]
    device = _device()
    platform = {"cuda": "gpu", "rocm": "gpu"}.get(device.platform, device.platform)
    if name is None:
        found = _KERNELS.get(platform)
        if found is None or _obstacle(found, q, device):
            return chunked.attend
        return _module(found).attend
    if name not in _KERNELS.values():
        known = ", ".join([*_EVERYWHERE, *_KERNELS.values()])
        raise PceError(f"there is no implementation {name!r}; there are {known}")
    reason = _obstacle(name, q, device)
    if _KERNELS.get(platform) != name:
        reason = f"this program is for a {platform}"
    if reason:
        raise PceError(
            f"the implementation {name!r} cannot do this: {reason}. "
            "Use 'chunked', which runs everywhere, or None to have one chosen."
        )
    return _module(name).attend


def _obstacle(name: Implementation, q: Array, device: Any) -> str | None:
    """Why kernels cannot do it on a device of their platform, if so."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.size > 1 and not mesh.are_all_axes_manual:
        return "over several devices a kernel needs jax.shard_map around it"
    if name == "pallas_gpu":
        capability = getattr(device, "compute_capability", None)  # unknown of a device to come
        numbers = re.fullmatch(r"(\d+)\.(\d+)", capability or "8.0")
        if numbers is None or tuple(map(int, numbers.groups())) < _CAPABILITY:
            return f"it needs an NVIDIA GPU of compute capability 8.0, this one has {capability}"
    return _module(name).obstacle(q)


def _device() -> Any:
    """What the program is for: the device of the mesh it is traced under, or where jax computes."""
    planned = jax.sharding.get_abstract_mesh().abstract_device
    if planned is not None:
        return planned
    chosen = jax.config.jax_default_device  # type: ignore[missing-attribute]
    if isinstance(chosen, str):
        return jax.local_devices(backend=chosen)[0]
    return chosen or jax.local_devices()[0]


def _module(name: Implementation) -> Any:
    """Imported only where it is used: Pallas takes its time, and needs its platform."""
    return importlib.import_module(f".{name}", __package__)
