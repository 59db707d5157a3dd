"""What a run begins with: the weights that stay, and what is trained."""

import dataclasses
from collections.abc import Collection, Sequence

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from jaxtyping import Array

from pce_jax.adapters import Adapters, from_text_sink, log_temperature
from pce_jax.cache import KV_AXES
from pce_jax.models import Llama, LlamaConfig, MeshLayout, Remat, init_lora, with_remat
from pce_jax.models.llama import PROJECTIONS
from pce_jax.models.sharding import Axis

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


def placed(trained: Trained, config: LlamaConfig, layout: MeshLayout) -> Trained:
    """What is trained, as it lies on a mesh: adapters as the weights that they go with.

    Args:
        trained: From `start`; weights lie on the mesh already.
        config: Of the decoder.
        layout: The mesh.
    """

    def put(x: Array, *axes: Axis | None) -> Array:
        spec = layout.rules.spec(axes, layout.mesh)
        return jax.device_put(x, NamedSharding(layout.mesh, spec))

    adapters, lora = trained.adapters, trained.adapters.lora
    if lora is not None:
        lora = dataclasses.replace(
            lora,
            a={name: put(x, "layers", None, PROJECTIONS[name][1]) for name, x in lora.a.items()},
            b={name: put(x, "layers", PROJECTIONS[name][0], None) for name, x in lora.b.items()},
        )
    temperature, sink = adapters.log_temperature, adapters.sink
    if temperature is not None:
        temperature = put(temperature, "layers", "heads")
    if sink is not None:
        sink = jax.tree.map(lambda x: put(x, *KV_AXES), sink)
    new = {"lora": lora, "log_temperature": temperature, "sink": sink}
    return Trained(trained.model, dataclasses.replace(adapters, **new))
