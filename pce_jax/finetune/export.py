"""What a run has trained, taken out of its checkpoints: into a model, or into files."""

import dataclasses
import functools
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp

from pce_jax.adapter_files import save_adapters
from pce_jax.adapters import with_adapters
from pce_jax.errors import FinetuneError
from pce_jax.hub.tokenizer import encode_text
from pce_jax.models import Llama, merged, save_folder

from .checkpoint import Checkpoints
from .config import LoraSettings
from .folder import CHECKPOINTS, read_run
from .start import start
from .step import Trained

Form = Literal["model", "adapters"]
Which = int | Literal["last", "best"]


def load_trained(run: Path, model: Llama, tokenizer: Any, which: Which = "last") -> Trained:
    """What a run has trained.

    Args:
        run: Its folder.
        model: The decoder that it began with.
        tokenizer: Its tokenizer.
        which: The checkpoint: of the last step, of the lowest held-out likelihood, or of a step.

    Raises:
        FinetuneError: There is no run or no such checkpoint, or it is of another model.
    """
    settings = read_run(run)["settings"]
    lora = LoraSettings(
        rank=settings["lora.rank"],
        alpha=settings["lora.alpha"],
        dropout=settings["lora.dropout"],
        targets=tuple(settings["lora.targets"]),
        full=settings["lora.full"],
    )
    sink = encode_text(tokenizer, settings["sink"])
    begin = functools.partial(
        start, train=settings["train"], lora=lora, sink=sink, remat=settings["remat"]
    )
    _, like = jax.eval_shape(begin, model)
    if not (run / CHECKPOINTS).exists():
        raise FinetuneError(f"{run} has no checkpoints yet.")
    with Checkpoints(run / CHECKPOINTS, read_only=True) as checkpoints:
        steps = checkpoints.steps
        named = {"best": checkpoints.best(), "last": steps[-1] if steps else None}
        step = named[which] if isinstance(which, str) else which
        if step is None or step not in steps:
            raise FinetuneError(
                f"{run} has no checkpoint {which}. There are: "
                f"{', '.join(map(str, steps)) or 'none'}."
            )
        return checkpoints.load_trained(like, step)


def tuned(model: Llama, trained: Trained) -> Llama:
    """The model with what was trained.

    Args:
        model: The decoder from before training.
        trained: What was trained.
    """
    return with_adapters(trained.student(model), trained.adapters)


def export(
    trained: Trained,
    model: Llama,
    tokenizer: Any,
    folder: Path,
    *,
    form: Form,
    base: str = "",
    dtype: jnp.dtype | None = None,
) -> None:
    """Write what was trained, for Hugging Face and `peft`.

    Args:
        trained: What was trained.
        model: The decoder from before training.
        tokenizer: Its tokenizer; goes with a model.
        folder: To be made.
        form: `model` for a Hugging Face folder (with LoRA merged into the weights, and
            temperatures and sink in `FOLDER/adapters`, as transformers has no place for them), or
            `adapters` for a folder that `peft` and `load_adapters` read.
        base: Name of the model from before.
        dtype: Of a model's weights; that of `model` by default.

    Raises:
        FinetuneError: All weights were trained, so there are no adapters.
        AdapterError, WeightsError, ConfigError: The folder is not empty or cannot be written.
    """
    adapters = trained.adapters
    if form == "adapters":
        if trained.model is not None:
            raise FinetuneError("all weights were trained: there are no adapters. Export a model.")
        return save_adapters(adapters, folder, base)
    whole = model if trained.model is None else trained.model
    if adapters.lora is not None:
        if not adapters.lora_in_full:
            raise FinetuneError(
                "LoRA was trained for segments alone (lora.full = false), and in a model it would "
                "be merged into full attention too. Export adapters."
            )
        whole = merged(whole, adapters.lora)
    wanted = dtype or model.dtype
    save_folder(jax.tree.map(lambda x: x.astype(wanted), whole), folder, tokenizer)
    rest = dataclasses.replace(adapters, lora=None)
    if rest.size:
        save_adapters(rest, folder / "adapters", base)
    return None
