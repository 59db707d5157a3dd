"""How many programs documents of many lengths need, and how much of them is padding."""

import dataclasses

import jax

import pce_jax as pce
from pce_jax import programs
from pce_jax.models import init

from .bars import Bar
from .found import Fact, Found
from .setting import Setting

APART = 4  # tokens from one length to the next


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs: compiling a program a bucket."""
    return 3e11


def lengths(documents: int) -> list[int]:
    """As many different lengths, from 1 on."""
    return list(range(1, APART * documents, APART))


def measure(setting: Setting) -> Found:
    """Encode each document alone, by a small random model: programs depend on shapes alone."""
    config = dataclasses.replace(
        setting.config,
        num_layers=1,
        hidden_size=64,
        intermediate_size=64,
        vocab_size=64,
        max_positions=2 * APART * setting.sizes.documents,
        unrotated_layers=(),
        eos_token_ids=(),
        bos_token_id=None,
    )
    wanted = lengths(setting.sizes.documents)
    model = init(config, jax.random.key(0))
    contexts = [pce.from_segments([[1] * length]) for length in wanted]
    setting.step(f"{len(wanted)} documents of different lengths", 3e11)
    before = programs.counts()["encode"]
    for context in contexts:
        jax.block_until_ready(pce.encode(model, context))
    made = programs.counts()["encode"] - before
    buckets = len({context.segments.shape for context in contexts})
    slots = sum(context.segments.size for context in contexts)
    bar = Bar(
        key="programs",
        name=f"programs, {len(wanted)} documents of {len(wanted)} lengths",
        value=made,
        limit=buckets,
    )
    waste = 1 - sum(wanted) / slots
    name = f"padding of {len(wanted)} documents of {wanted[0]} to {wanted[-1]} tokens"
    fact = Fact(part="compile", name=name, value=waste, unit="%", digits=1)
    return Found(facts=(fact,), bars=(bar,))
