"""One training step: slopes over microbatches, added up by target tokens, and an update.

The mean over a batch is that over its target tokens, whatever examples and microbatches they came
in: many small microbatches give what one large batch gives.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, Key

from pce_jax.adapters import Adapters, with_adapters
from pce_jax.method import Method
from pce_jax.models import Llama, Rules
from pce_jax.models.sharding import shard

from .objective import Example, Terms, Weights, objective

Teacher = Literal["base", "live", "none"]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Trained:
    """What is trained.

    Attributes:
        model: All weights (float32 masters, whatever they are computed in), or `None`.
        adapters: What is trained beside the weights.
    """

    model: Llama | None
    adapters: Adapters

    @property
    def size(self) -> int:
        """How many numbers are trained."""
        return sum(x.size for x in jax.tree.leaves(self))

    @property
    def changes_full(self) -> bool:
        """Whether any of it acts in full attention."""
        lora = self.adapters.lora is not None and self.adapters.lora_in_full
        return self.model is not None or lora

    def student(self, base: Llama) -> Llama:
        """The weights to compute with, in the dtype of `base`."""
        if self.model is None:
            return base
        return jax.tree.map(lambda x, like: x.astype(like.dtype), self.model, base)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TrainState:
    """Everything that a step changes.

    Attributes:
        step: Steps done.
        trained: What is trained.
        optimizer: State of the optimizer.
    """

    step: Int[Array, ""]
    trained: Trained
    optimizer: Any


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Report:
    """What a step says of itself.

    Attributes:
        terms: Sums over the batch's target tokens, see `Terms`.
        loss: Mean over them.
        slope_norm: Of all slopes together, before clipping.
    """

    terms: Terms
    loss: Float[Array, ""]
    slope_norm: Float[Array, ""]


def begin(trained: Trained, optimizer: optax.GradientTransformation) -> TrainState:
    """The state before the first step."""
    params: Any = trained  # optax's types know no dataclasses
    return TrainState(jnp.zeros((), jnp.int32), trained, optimizer.init(params))


@functools.partial(
    jax.jit, static_argnames=("teacher", "optimizer", "method", "two_sided"), donate_argnums=0
)
def train_step(
    state: TrainState,
    base: Llama,
    batch: Example,
    weights: Weights,
    key: Key[Array, ""],
    *,
    teacher: Teacher = "base",
    optimizer: optax.GradientTransformation,
    method: Method,
    two_sided: bool = False,
) -> tuple[TrainState, Report]:
    """Take one step; `state` is used up.

    Args:
        state: From `begin` or the step before.
        base: The weights from before training; what is not trained is taken from here.
        batch: Examples with axes `[microbatches, examples]` in front, all of one shape. Those with
            a `length` of 0 count for nothing.
        weights: Of the loss in this step.
        key: Of the run; what a step draws follows from it and its number.
        teacher: Whose full attention is the yardstick: the weights from before (`base`), those of
            the student as they are now (`live`), or no one's (`none`). What the student reads with
            full attention has the weights from before as its yardstick in either case.
        optimizer: What `begin` was given.
        method: The student's.
        two_sided: See `objective`.
    """
    key = jax.random.fold_in(key, state.step)
    batch = jax.tree.map(lambda x: side_by_side(x, base.rules, before=1), batch)

    def summed(trained: Trained, examples: Example, key: Array) -> tuple[Array, Terms]:
        count = examples.length.shape[0]
        student = trained.student(base)
        own = base if method.full else with_adapters(student, trained.adapters)
        teachers: dict[str, Llama | None] = {"base": base, "live": own, "none": None}

        def one(example: Example, key: Array) -> Terms:
            return objective(
                student,
                trained.adapters,
                teachers[teacher],
                example,
                method,
                margin=weights.margin,
                two_sided=two_sided,
                dropout=key,
            )

        keys = side_by_side(jax.random.split(key, count), base.rules)
        terms = jax.vmap(one)(examples, keys)
        terms = jax.tree.map(jnp.sum, terms)
        return terms.loss(weights), terms

    def microbatch(sums: Any, part: tuple[Example, Array]) -> tuple[Any, None]:
        found = jax.grad(summed, has_aux=True)(state.trained, *part)
        return jax.tree.map(jnp.add, sums, found), None

    count = batch.length.shape[0]
    nothing = jax.eval_shape(
        functools.partial(jax.grad(summed, has_aux=True), state.trained),
        jax.tree.map(lambda x: x[0], batch),
        key,
    )
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype, out_sharding=x.sharding), nothing)
    (slopes, terms), _ = jax.lax.scan(microbatch, nothing, (batch, jax.random.split(key, count)))
    slopes = jax.tree.map(lambda x: x / jnp.maximum(terms.targets, 1), slopes)
    before: Any = state.trained  # optax's types know no dataclasses
    changes, kept = optimizer.update(slopes, state.optimizer, before)
    trained: Any = optax.apply_updates(before, changes)
    report = Report(
        terms, terms.loss(weights) / jnp.maximum(terms.targets, 1), optax.tree.norm(slopes)
    )
    return TrainState(state.step + 1, trained, kept), report


def side_by_side(x: Array, rules: Rules, before: int = 0) -> Array:
    """An array of examples, spread over the devices that share a batch.

    Args:
        x: With an axis of examples.
        rules: How arrays lie on a mesh.
        before: Axes in front of that one.
    """
    x = jnp.asarray(x)
    return shard(x, (*[None] * before, "batch", *[None] * (x.ndim - before - 1)), rules)


def decayed(trained: Trained) -> Trained:
    """Which numbers weight decay pulls to zero: matrices, and of adapters LoRA alone.

    Norms and biases are left out, and so are temperatures and sinks, whose zero means nothing.
    """

    def of_model(path: Any, _: Array) -> bool:
        return not any(str(part).endswith(("norm", "bias")) for part in path)

    model = None
    if trained.model is not None:
        model = jax.tree_util.tree_map_with_path(of_model, trained.model)
    everything: Callable[[Any], Any] = functools.partial(jax.tree.map, lambda _: True)
    nothing: Callable[[Any], Any] = functools.partial(jax.tree.map, lambda _: False)
    adapters = trained.adapters
    return Trained(
        model,
        dataclasses.replace(
            adapters,
            lora=everything(adapters.lora),
            log_temperature=nothing(adapters.log_temperature),
            sink=nothing(adapters.sink),
        ),
    )
