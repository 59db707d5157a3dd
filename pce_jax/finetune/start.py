"""What a run begins with: the weights that stay, and what is trained."""

from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp

from pce_jax.adapters import Adapters, from_text_sink, log_temperature
from pce_jax.models import Llama, Remat, init_lora, with_remat

from .config import LoraSettings, Part
from .step import Trained


def start(
    model: Llama,
    train: Collection[Part],
    lora: LoraSettings,
    *,
    seed: int = 0,
    sink: Sequence[int] = (),
    dtype: jnp.dtype | None = None,
    remat: Remat = "none",
) -> tuple[Llama, Trained]:
    """The weights from before training, to compute with, and the numbers to train.

    Args:
        model: The decoder as it was loaded; float32 if its weights are trained.
        train: What is trained.
        lora: Of the adapters.
        seed: Of their start.
        sink: Token ids of the text that a trained sink starts from.
        dtype: To compute in; that of the model by default.
        remat: What the backward pass computes again.
    """
    model = with_remat(model, remat)
    base = jax.tree.map(lambda x: x.astype(dtype or model.dtype), model)
    if "weights" in train:
        wide = jax.tree.map(lambda x: jnp.array(x, jnp.float32, copy=True), model)
        return base, Trained(wide, Adapters())
    adapters = Adapters(
        lora=init_lora(
            model.config,
            jax.random.key(seed),
            rank=lora.rank,
            alpha=lora.alpha,
            dropout=lora.dropout,
            targets=lora.targets,
        )
        if "lora" in train
        else None,
        log_temperature=log_temperature(model.config) if "temperature" in train else None,
        sink=from_text_sink(model, sink) if "sink" in train else None,
        lora_in_full=lora.full,
    )
    return base, Trained(None, adapters)
