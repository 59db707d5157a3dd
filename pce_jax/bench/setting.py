"""What all parts share: the model, its tokens, the sizes, and the clock."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pce_jax as pce
from pce_jax.demo.text import python_topics
from pce_jax.models import Llama, LlamaConfig

from .sizes import Cut, Sizes
from .timing import Case, Timed, interleaved


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Setting:
    """What is measured on, and how.

    Attributes:
        model: The decoder.
        tokens: Text to cut contexts and queries from; read again from its start when it ends.
        sizes: How much of everything.
        official: The sizes that the bars are set for.
        repeats: Of each case, but for the longest.
        reference: Whether device, model and dtype are what the bars are set for.
        cores: Of the processor, for those who have to be told.
        step: Told what is done next and what it costs.
        clock: Seconds.
        caches: Encoded contexts that a later part may need again.
    """

    model: Llama
    tokens: Sequence[int]
    sizes: Sizes
    official: Sizes
    repeats: int
    reference: bool
    cores: int
    step: Callable[[str, float], object] = lambda name, cost: None
    clock: Callable[[], float] = time.perf_counter
    caches: dict[Cut, pce.ContextCache] = dataclasses.field(default_factory=dict)

    @property
    def config(self) -> LlamaConfig:
        """Of the model."""
        return self.model.config

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return jnp.dtype(self.model.dtype).itemsize

    @property
    def fewer_repeats(self) -> int:
        """Of what takes longest."""
        return (self.repeats + 1) // 2

    def judged(self, *sizes: str) -> bool:
        """Whether the bars are set for this setting and the named sizes."""
        same = all(getattr(self.sizes, name) == getattr(self.official, name) for name in sizes)
        return self.reference and same

    def time(self, cases: Mapping[str, Case], repeats: int = 0) -> dict[str, Timed]:
        """Time cases in turns."""
        return interleaved(cases, repeats or self.repeats, step=self.step, clock=self.clock)

    def text(self, count: int, start: int = 0) -> list[int]:
        """So many tokens of the text."""
        return [self.tokens[i % len(self.tokens)] for i in range(start, start + count)]

    def context(self, cut: Cut) -> pce.SegmentedContext:
        """The text's beginning, cut. One position is left for a query if it would fill them all."""
        tokens = min(cut.tokens, self.config.max_positions - 1)
        return pce.split(self.text(tokens), cut.degree)

    def lengths(self, cut: Cut) -> list[int]:
        """Tokens of the segments of `context`."""
        return [int(length) for length in self.context(cut).lengths if length]

    def query(self, count: int) -> jax.Array:
        """Tokens to read behind a context."""
        return jnp.asarray(self.text(count, start=100), jnp.int32)

    def cache(self, cut: Cut) -> pce.ContextCache:
        """An encoded context, encoded once."""
        if cut not in self.caches:
            self.step(f"encoding {cut}", 0.0)
            cache = pce.encode(self.model, self.context(cut))
            self.caches[cut] = jax.block_until_ready(cache)
        return self.caches[cut]


def text(tokenizer: Any) -> list[int]:
    """Tokens of Python's own documentation, or seeded random ones if it came without."""
    try:
        return pce.encode_text(tokenizer, "\n\n".join(python_topics().values()))
    except pce.PceError:
        return random_text(len(tokenizer))


def random_text(vocab_size: int) -> list[int]:
    """Seeded random tokens."""
    return np.random.default_rng(0).integers(0, vocab_size, 1 << 14).tolist()


def as_one_segment(cache: pce.ContextCache) -> pce.ContextCache:
    """The same keys and values as those of one segment: what full attention reads, to time it.

    The segments must be without padding, but for the last one.
    """

    def joined(x: jax.Array) -> jax.Array:
        return x.reshape(*x.shape[:-3], 1, -1, x.shape[-1])

    return dataclasses.replace(
        cache,
        segments=jax.tree.map(joined, cache.segments),
        lengths=jnp.sum(cache.lengths)[None],
    )
