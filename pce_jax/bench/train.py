"""A training step's loss and gradient: with mean entropy in the loss, and without."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

import pce_jax as pce
from pce_jax.models import Llama

from .bars import of_ratio
from .flops import encode_flops, head_flops, query_flops
from .found import Found, Row
from .setting import Setting
from .timing import Case, ratio

LIMIT = 1.25
"""Time with entropy relative to that without."""


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs."""
    return 2 * _flops(setting) * (1 + setting.fewer_repeats)


def _flops(setting: Setting) -> float:
    """Forwards once, and backwards twice as much."""
    sizes, config = setting.sizes, setting.config
    lengths = setting.lengths(sizes.train)
    forwards = encode_flops(config, lengths) + query_flops(
        config, sum(lengths), sizes.train_tokens, logits=0
    )
    return 3.0 * (forwards + head_flops(config, sizes.train_tokens - 1))


def measure(setting: Setting) -> Found:
    """Cross-entropy of query tokens behind a context, and its gradient in the parameters."""
    sizes, flops = setting.sizes, _flops(setting)
    context = setting.context(sizes.train)
    tokens = setting.query(sizes.train_tokens)

    def case(entropy: bool) -> Case:
        step = loss_and_gradient(context, tokens, entropy)
        return Case(lambda: step(setting.model), cost=flops)

    cases = {"cross-entropy": case(False), "cross-entropy + entropy": case(True)}
    timed = setting.time(cases, setting.fewer_repeats)
    total = sizes.train.tokens + sizes.train_tokens
    size = f"N={total} P={sizes.train.degree}"
    rows = [
        Row(
            part="train",
            size=f"{size}, {sizes.train_tokens} of them scored",
            name=name,
            sample=each.sample,
            compile_seconds=each.compile_seconds,
            tokens=total,
            flops=flops,
        )
        for name, each in timed.items()
    ]
    found = ratio(timed["cross-entropy + entropy"].sample, timed["cross-entropy"].sample)
    name = f"entropy loss / cross-entropy, {size}"
    judged = setting.judged("train", "train_tokens")
    return Found(rows=tuple(rows), bars=(of_ratio("train-entropy", name, found, LIMIT, judged),))


def loss_and_gradient(
    context: pce.SegmentedContext, tokens: jax.Array, entropy: bool
) -> Callable[[Llama], Any]:
    """A compiled function from a model to the loss and its gradient in all parameters.

    Args:
        context: Encoded anew, so that the gradient flows through it.
        tokens: Scored behind it, all but the first.
        entropy: Add the mean attention entropy of the query, in nats.
    """

    def loss(model: Llama) -> jax.Array:
        out = pce.score(model, pce.encode(model, context), tokens, stats=entropy)
        mean = jnp.sum(out.nll) / (tokens.shape[0] - 1)
        return mean if out.stats is None else mean + out.stats.mean()

    return jax.jit(jax.value_and_grad(loss))
