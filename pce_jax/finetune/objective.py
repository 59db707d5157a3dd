"""The loss: likelihood, nearness to full attention, and attention entropy that is too high.

With p the teacher (full attention) and q the student (segments), at each target token::

    loss = w_ce * -log q(token)
         + w_kl * KL(p || q)
         + w_entropy * mean over layers and heads of max(0, H_student - H_teacher - margin)

Entropy is matched, not minimised: below the teacher's there is nothing to gain. Where the student
reads with full attention too, the difference counts in both directions: weights that sharpen
attention for the sake of segments would sharpen it there as well.

All of it is exact, has slopes, and is worked off in chunks: no array of heads x queries x context,
nor of targets x vocabulary, exists beyond a chunk, in the backward pass neither.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from pce_jax.adapters import Adapters, with_adapters
from pce_jax.cache import empty_tail
from pce_jax.encode import read_context
from pce_jax.layout import SegmentedContext
from pce_jax.method import METHODS, Method
from pce_jax.models import Llama, unembed
from pce_jax.models.sharding import picked
from pce_jax.query_pass import Stats, read

FULL = METHODS["full"]
AT_ONCE = 128
"""Target tokens whose logits over the vocabulary exist at a time."""


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
    """How much each term counts; arrays, so that schedules change them without recompiling.

    Attributes:
        ce: Of the negative log-likelihood.
        kl: Of the divergence from the teacher.
        entropy: Of entropy above the teacher's.
        margin: In nats: so much above the teacher's costs nothing.
    """

    ce: Float[Array, ""] | float = 1.0
    kl: Float[Array, ""] | float = 0.0
    entropy: Float[Array, ""] | float = 0.0
    margin: Float[Array, ""] | float = 0.0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Example:
    """A context and the text behind it.

    Attributes:
        context: Cut for the student; the teacher reads the same tokens as one text.
        query: Token ids, padded at the end.
        length: Real tokens of them.
        start: The first that is a target; those before are only read. At least 1.
    """

    context: SegmentedContext
    query: Int[Array | np.ndarray, " tokens"]
    length: Int[Array | np.ndarray, ""]
    start: Int[Array | np.ndarray, ""]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Terms:
    """Sums over target tokens, so that those of several examples add up to those of a batch.

    Attributes:
        targets: How many tokens there are.
        ce: Negative log-likelihood, in nats.
        kl: KL(teacher || student), in nats.
        excess: Mean over layers and heads of entropy above the teacher's and the margin, in nats.
        entropy: The student's, mean over layers and heads, in nats.
        entropy_full: The teacher's.
    """

    targets: Float[Array, "*batch"]
    ce: Float[Array, "*batch"]
    kl: Float[Array, "*batch"]
    excess: Float[Array, "*batch"]
    entropy: Float[Array, "*batch"]
    entropy_full: Float[Array, "*batch"]

    def loss(self, weights: Weights) -> Float[Array, "*batch"]:
        """The weighted sum of the terms; divide by `targets` for a mean."""
        return weights.ce * self.ce + weights.kl * self.kl + weights.entropy * self.excess


def objective(
    model: Llama,
    adapters: Adapters,
    teacher: Llama | None,
    example: Example,
    method: Method,
    *,
    margin: Float[Array, ""] | float = 0.0,
    two_sided: bool = False,
    dropout: Key[Array, ""] | None = None,
) -> Terms:
    """The terms of one example. Has slopes in `model` and `adapters`, and none in the teacher.

    Args:
        model: The student's weights.
        adapters: What is trained beside them, or nothing.
        teacher: Weights to read with full attention: those from before training, or the student's
            own. `None` for no teacher: the likelihood alone, at a third of the cost.
        example: What to read.
        method: The student's. `full` keeps full attention what it is, its entropy too.
        margin: See `Weights`.
        two_sided: Entropy below the teacher's costs as well.
        dropout: Key of LoRA's dropout, while training.
    """
    student = with_adapters(model, adapters, dropout)
    cache = read_context(student, example.context, method)[0]
    query = jnp.asarray(example.query)
    hidden, stats = _read(student, cache, example, method)
    places = jnp.arange(example.query.shape[0])
    target = (places >= jnp.maximum(example.start, 1)) & (places < example.length)
    targets = jnp.sum(target).astype(jnp.float32)
    hidden_full, stats_full = hidden, stats
    if teacher is not None:
        teacher = jax.lax.stop_gradient(teacher)
        known = read_context(teacher, _without_sink(example.context), FULL)[0]
        hidden_full, stats_full = jax.lax.stop_gradient(_read(teacher, known, example, FULL))
    ce, kl = _of_vocabulary(student, teacher, hidden, hidden_full, query, target)
    # The entropy of the pass that predicts a target is that of the token in front of it.
    reads = jnp.pad(target[1:], (0, 1))
    above = stats.entropy.total - stats_full.entropy.total
    excess = jnp.abs(above) if two_sided or method.full else above
    excess = jnp.maximum(excess - margin, 0.0)
    if teacher is None:
        excess = jnp.zeros_like(excess)

    def summed(x: Float[Array, "layers heads tokens"]) -> Float[Array, ""]:
        return jnp.sum(jnp.where(reads, jnp.mean(x, axis=(0, 1)), 0.0))

    return Terms(
        targets=targets,
        ce=ce,
        kl=kl,
        excess=summed(excess),
        entropy=summed(stats.entropy.total),
        entropy_full=summed(stats_full.entropy.total),
    )


def _read(model: Llama, cache: Any, example: Example, method: Method) -> tuple[Array, Stats]:
    """Hidden states behind every query token, and entropies."""
    tail = empty_tail(model, example.query.shape[0])
    query, length = jnp.asarray(example.query), jnp.asarray(example.length)
    hidden, _, stats = read(model, cache, tail, query, length, method, True)
    assert stats is not None
    return hidden, stats


def _without_sink(context: SegmentedContext) -> SegmentedContext:
    """The teacher reads the text alone."""
    return dataclasses.replace(context, sink=context.sink[:0])


def _of_vocabulary(
    student: Llama,
    teacher: Llama | None,
    hidden: Float[Array, "tokens d"],
    hidden_full: Float[Array, "tokens d"],
    query: Int[Array, " tokens"],
    target: Array,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Of the targets, the negative log-likelihood and KL(teacher || student)."""

    def one(row: tuple[Array, Array, Array]) -> tuple[Array, Array]:
        mine, theirs, token = row
        log_q = jax.nn.log_softmax(unembed(student, mine))
        if teacher is None:
            return -picked(log_q, token, student.rules), jnp.zeros(())
        log_p = jax.nn.log_softmax(unembed(teacher, theirs))
        return -picked(log_q, token, student.rules), jnp.sum(jnp.exp(log_p) * (log_p - log_q))

    rows = (hidden[:-1], hidden_full[:-1], query[1:])
    ce, kl = jax.lax.map(jax.checkpoint(one), rows, batch_size=min(AT_ONCE, query.shape[0] - 1))
    return jnp.sum(jnp.where(target[1:], ce, 0.0)), jnp.sum(jnp.where(target[1:], kl, 0.0))
