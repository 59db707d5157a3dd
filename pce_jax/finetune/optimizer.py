"""AdamW as a run's settings describe it."""

import dataclasses
import functools
from typing import Any

import jax
import optax

from .config import OptimizerSettings
from .schedules import schedule
from .step import Trained, decayed


@functools.cache  # one object, so that programs made for it are found again
def optimizer(settings: OptimizerSettings, steps: int) -> optax.GradientTransformation:
    """Clipping, AdamW with a schedule, and each adapter's own learning rate.

    Args:
        settings: Of the run.
        steps: How many updates it has.
    """
    rate = schedule(settings.learning_rate).over(steps)
    mask: Any = decayed  # optax's types know no dataclasses
    parts = [
        optax.adamw(rate, settings.b1, settings.b2, weight_decay=settings.weight_decay, mask=mask),
        _by_part(settings),
    ]
    if settings.clip is not None:
        parts.insert(0, optax.clip_by_global_norm(settings.clip))
    return optax.chain(*parts)


def _by_part(settings: OptimizerSettings) -> optax.GradientTransformation:
    """Multiply what changes temperatures and the sink."""

    def scaled(changes: Any, _: Any) -> Any:
        assert isinstance(changes, Trained)
        adapters = changes.adapters
        factors = {"log_temperature": settings.temperature, "sink": settings.sink}
        new = {
            name: jax.tree.map(lambda x, factor=factor: factor * x, getattr(adapters, name))
            for name, factor in factors.items()
        }
        return Trained(changes.model, dataclasses.replace(adapters, **new))

    return optax.stateless(scaled)
