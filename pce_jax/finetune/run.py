"""A run: from a config to trained numbers, in a folder that it can go on from."""

import contextlib
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp

from pce_jax.errors import FinetuneError
from pce_jax.hub.tokenizer import encode_text
from pce_jax.models import Llama, MeshLayout

from .checkpoint import Checkpoints
from .config import FinetuneConfig, settings
from .data import Batches, Layout, Order, Text, read_texts
from .folder import CHECKPOINTS, describe, locked
from .loop import Loop, Outcome, Row, Run, Told
from .objective import Weights
from .optimizer import optimizer
from .schedules import schedule
from .start import placed, start
from .step import TrainState, begin
from .track import trackers


def finetune(
    config: FinetuneConfig,
    model: Llama,
    tokenizer: Any,
    model_hash: str,
    *,
    dtype: jnp.dtype | None = None,
    on_row: Callable[[Row], None] = lambda row: None,
    on_progress: Callable[[int, int, str], None] = lambda done, total, now: None,
    stop: Callable[[], bool] = lambda: False,
) -> Outcome:
    """Train as a config says, or go on where an earlier run in its folder was interrupted.

    What is read, drawn and computed follows from the config and the number of the step alone: a run
    that goes on gives the numbers, bit for bit, of one that was never interrupted (on the same
    devices).

    Args:
        config: From `load_config`.
        model: The decoder as loaded, with `config.mesh.layout()` as its layout; float32 if its
            weights are trained.
        tokenizer: Its tokenizer.
        model_hash: From `pce_jax.evals.manifest.hash_model`.
        dtype: To compute in; that of `model` by default.
        on_row: Called with each row of `metrics.jsonl` as it is written.
        on_progress: Called with the steps done, their number, and words about the last one.
        stop: Asked after each step; if true, a checkpoint is written and the run returns.

    Raises:
        FinetuneError: Data and settings do not go together; the folder belongs to another run, or
            one that is alive, or cannot be written; a loss or slope is not finite.
        SettingsError: Data cannot be read.
    """
    layout = config.mesh.layout()
    with contextlib.nullcontext() if layout is None else jax.set_mesh(layout.mesh):
        return _finetune(
            config, model, tokenizer, model_hash, layout, dtype, Told(on_row, on_progress, stop)
        )


def _finetune(
    config: FinetuneConfig,
    model: Llama,
    tokenizer: Any,
    model_hash: str,
    layout: MeshLayout | None,
    dtype: jnp.dtype | None,
    told: Told,
) -> Outcome:
    run = _prepare(config, model, tokenizer, layout, dtype or model.dtype)
    described = settings(config) | {"dtype": str(run.base.dtype), "model_sha256": model_hash}
    with (
        locked(config.out),
        Checkpoints(
            config.out / CHECKPOINTS, keep=config.checkpoint.keep, best=config.checkpoint.best
        ) as checkpoints,
    ):
        describe(config.out, config.model, described)
        state = _begin(run, layout)
        last = checkpoints.load_last(state)
        if last is not None:
            state = last
        with trackers(config.out, config.track, int(state.step), described) as found:
            return Loop(run, checkpoints, found, told).go_on(state)


def _begin(run: Run, layout: MeshLayout | None) -> TrainState:
    """On its devices for good, as a state that comes back is: so there is one program for both."""
    if layout is None:
        return jax.device_put(begin(run.trained, run.optimizer), jax.devices()[0])
    return jax.jit(begin, static_argnames="optimizer")(run.trained, optimizer=run.optimizer)


def _prepare(
    config: FinetuneConfig,
    model: Llama,
    tokenizer: Any,
    layout: MeshLayout | None,
    dtype: jnp.dtype,
) -> Run:
    _check_shared(config, model)
    texts = read_texts(config.data, tokenizer)
    prefix = encode_text(tokenizer, config.method.sink) if config.method.sink else []
    slots = encode_text(tokenizer, config.sink) if "sink" in config.train else []

    def layouts(texts: list[Text], degrees: Iterable[int]) -> dict[int, Layout]:
        room = prefix or slots  # full attention has neither
        return {
            degree: Layout(
                texts,
                degree,
                model.config,
                prefix,
                len(room) if degree > 1 else 0,
                devices=model.rules.over("segment"),
            )
            for degree in degrees
        }

    order = Order(len(texts), config.batch, config.degrees, config.seed)
    batches = Batches(
        texts,
        order,
        layouts(texts, config.degrees),
        microbatch=config.microbatch,
        steps=config.steps,
    )
    heldout = {
        spec.name: read_texts([spec], tokenizer, config.evaluate.final) for spec in config.heldout
    }
    base, trained = start(
        model,
        config.train,
        config.lora,
        seed=config.seed,
        sink=slots,
        dtype=dtype,
        remat=config.remat,
    )
    if layout is not None:
        trained = placed(trained, model.config, layout)
    terms = {
        name: schedule(getattr(config.loss, name)).at(config.steps)
        for name in ("ce", "kl", "entropy", "margin")
    }
    rate = schedule(config.optimizer.learning_rate).at(config.steps)
    return Run(
        config=config,
        base=base,
        trained=trained,
        optimizer=optimizer(config.optimizer, config.steps),
        batches=batches,
        heldout=heldout,
        layouts={
            name: layouts(some, (1, *config.evaluate.degrees)) for name, some in heldout.items()
        },
        key=jax.random.key(config.seed),
        weights=lambda step: Weights(**{name: at(step) for name, at in terms.items()}),
        rate=rate,
    )


def _check_shared(config: FinetuneConfig, model: Llama) -> None:
    """Refuse batches that the devices cannot share."""
    devices = model.rules.over("batch")
    for name, size in (
        ("microbatch", config.microbatch),
        ("evaluate.batch", config.evaluate.batch if config.heldout else devices),
    ):
        if size % devices:
            raise FinetuneError(
                f"{config.path}: {name} is {size}, and {devices} devices share a batch. Make it a "
                "multiple of that."
            )
