"""Hugging Face folders out: what transformers, and `load_folder`, read back bit for bit."""

import contextlib
import json
import math
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import save_file

from .errors import WeightsError
from .families import hf_tensor_names
from .llama import Llama, parameter_shapes
from .safetensors_reader import INDEX, SINGLE

Shard = dict[str, Callable[[], np.ndarray]]
"""Functions that fetch the tensors of one file, by their names in it."""


class SavesPretrained(Protocol):
    """A tokenizer that can write its files, as those of transformers do."""

    def save_pretrained(self, folder: str, /) -> Any:
        """Write the tokenizer's files into a folder."""


def save_folder(
    model: Llama,
    folder: Path | str,
    tokenizer: SavesPretrained | None = None,
    shard_bytes: int = 2**31,
) -> None:
    """Write a model as a Hugging Face folder, in the dtype of its weights.

    The folder appears complete or not at all: it is written next to its place and then renamed.
    Host memory is at most twice that of one weight file.

    Args:
        model: Its arrays must be addressable from this process.
        folder: To be made, with its parents; may exist if it is empty.
        tokenizer: Adds its files by `save_pretrained`.
        shard_bytes: Size that a weight file stays within (unless one tensor is larger); more than
            one file get an index.

    Raises:
        ConfigError: transformers cannot express the model; the message says what would be lost.
        WeightsError: The folder has something in it or is a file, or weights are spread over other
            processes or of several dtypes.
    """
    target = Path(folder).absolute()
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise WeightsError(f"{target} exists and is not an empty folder. Choose another.")
    hf = model.config.to_hf()
    dtype = _common_dtype(model)
    hf |= {"dtype": dtype.name, "torch_dtype": dtype.name}  # transformers 5 and 4
    shards = _plan(model, dtype.itemsize, shard_bytes)
    with _appearing(target) as unfinished:
        _write_json(unfinished / "config.json", hf)
        if model.config.eos_token_ids:
            ids = {key: hf[key] for key in ("bos_token_id", "eos_token_id") if hf[key] is not None}
            _write_json(unfinished / "generation_config.json", ids)
        if tokenizer is not None:
            tokenizer.save_pretrained(str(unfinished))
        _write_shards(unfinished, shards)


def _common_dtype(model: Llama) -> np.dtype:
    dtypes = set()
    for name, array in _parameters(model):
        if not array.is_fully_addressable:
            raise WeightsError(
                f"{name} is spread over several processes. Gather the model first (for instance by "
                "jax.experimental.multihost_utils.process_allgather), and save from one process."
            )
        dtypes.add(np.dtype(array.dtype))
    if len(dtypes) != 1:
        found = ", ".join(sorted(dtype.name for dtype in dtypes))
        raise WeightsError(f"the weights are of several dtypes ({found}). Cast them to one first.")
    return dtypes.pop()


def _parameters(model: Llama) -> Iterator[tuple[str, jax.Array]]:
    for name in parameter_shapes(model.config):
        owner = model.blocks if name.startswith("blocks.") else model
        parameter = getattr(owner, name.removeprefix("blocks."))
        assert isinstance(parameter, nnx.Param)
        yield name, parameter[...]


def _plan(model: Llama, itemsize: int, shard_bytes: int) -> list[Shard]:
    """Tensors in the order of the layers, cut into files of at most `shard_bytes`."""
    layers = model.config.num_layers
    first, blocks, last = [], [[] for _ in range(layers)], []
    for name, array in _parameters(model):
        names = hf_tensor_names(name, layers)
        if name.startswith("blocks."):
            for layer, hf_name in enumerate(names):
                blocks[layer].append((hf_name, array.shape[1:], _fetch_layer(array, layer)))
        else:
            (first if name == "embed" else last).append((names[0], array.shape, _fetch(array)))
    shards: list[Shard] = [{}]
    used = 0
    for name, shape, fetch in [*first, *(tensor for block in blocks for tensor in block), *last]:
        size = math.prod(shape) * itemsize
        if shards[-1] and used + size > shard_bytes:
            shards.append({})
            used = 0
        shards[-1][name] = fetch
        used += size
    return shards


def _fetch(array: jax.Array) -> Callable[[], np.ndarray]:
    # Of a copy, because an array on an accelerator keeps what it once gave to the host.
    return lambda: jax.device_get(jnp.copy(array))


def _fetch_layer(stacked: jax.Array, layer: int) -> Callable[[], np.ndarray]:
    return lambda: jax.device_get(stacked[layer])


def _write_shards(folder: Path, shards: list[Shard]) -> None:
    if len(shards) == 1:
        _write_shard(folder / SINGLE, shards[0])
        return
    weight_map, total = {}, 0
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        total += _write_shard(folder / name, shard)
        weight_map |= dict.fromkeys(shard, name)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})


def _write_shard(file: Path, shard: Shard) -> int:
    """Fetch a file's tensors and write them; returns their size in bytes."""
    arrays = {name: fetch() for name, fetch in shard.items()}
    save_file(arrays, file, metadata={"format": "pt"})  # transformers refuses files without
    return sum(array.nbytes for array in arrays.values())


def _write_json(file: Path, value: dict[str, Any]) -> None:
    file.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


@contextlib.contextmanager
def _appearing(target: Path) -> Generator[Path]:
    """A folder to write in that becomes `target` when all went well, and vanishes otherwise.

    Missing parents are made inside it, so that a failure leaves none of them either.
    """
    top = target
    while not top.parent.exists():
        top = top.parent
    unfinished = top.with_name(f".{top.name}.{uuid.uuid4().hex[:8]}.unfinished")
    try:
        inner = unfinished / target.relative_to(top)
        inner.mkdir(parents=True)
        yield inner
        if target.exists():
            target.rmdir()  # empty; Windows does not rename onto it
        unfinished.rename(top)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
