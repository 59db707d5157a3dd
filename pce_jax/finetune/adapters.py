"""What can be trained beside the weights: LoRA, a temperature by head, a learned sink.

Each is an addition that can be left out, and all but the sink change nothing at first.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from pce_jax.cache import KV, ContextCache, empty_kv
from pce_jax.encode import read_context, read_segment
from pce_jax.layout import SegmentedContext
from pce_jax.method import Method
from pce_jax.models import Llama, Lora, with_lora
from pce_jax.models.config import LlamaConfig


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapters:
    """What is trained beside the weights; `None` where it is not.

    Attributes:
        lora: Low-rank additions to projections; they work in full attention too.
        log_temperature: Of each layer's and query head's logits with the segments' keys. Only where
            there are several segments: full attention stays as it was.
        sink: A prefix of keys and values that all segments and the query see, `[layers, kv_heads,
            slots, head_dim]`, at the positions from 0 on. Not in full attention.
    """

    lora: Lora | None = None
    log_temperature: Float[Array, "layers heads"] | None = None
    sink: KV | None = None

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return sum(x.size for x in jax.tree.leaves(self))


def log_temperature(config: LlamaConfig) -> Float[Array, "layers heads"]:
    """Temperatures of 1."""
    return jnp.zeros((config.num_layers, config.num_heads), jnp.float32)


def from_text_sink(model: Llama, tokens: Sequence[int]) -> KV:
    """A sink to start from: the keys and values of a text's tokens, float32.

    Args:
        model: The decoder, before any training.
        tokens: Such as those of a line break; each becomes a slot.
    """
    prefix = empty_kv(model.config, 0, model.dtype)
    places = jnp.arange(len(tokens), dtype=jnp.float32)
    kv, _ = read_segment(model, prefix, jnp.asarray(tokens, jnp.int32), places)
    return jax.tree.map(lambda x: x.astype(jnp.float32), kv)


def encode_adapted(
    model: Llama,
    adapters: Adapters,
    context: SegmentedContext,
    method: Method,
    *,
    dropout: Key[Array, ""] | None = None,
) -> tuple[Llama, ContextCache]:
    """Encode a context with adapters.

    Args:
        model: The decoder without them.
        adapters: What they are; in full attention (`method.full`) LoRA alone counts.
        context: Laid out without a sink, if the adapters have one.
        method: As in `encode`.
        dropout: Key of LoRA's dropout, while training.

    Returns:
        The decoder to read the cache with, and the cache.
    """
    model = with_lora(model, adapters.lora, dropout)
    if method.full:
        return model, read_context(model, context, method)[0]
    sink = adapters.sink
    if sink is not None:
        sink = jax.tree.map(lambda x: x.astype(model.dtype), sink)
    cache = read_context(model, context, method, prefix=sink)[0]
    if adapters.log_temperature is not None:
        sharpness = jnp.exp(-adapters.log_temperature)
        cache = dataclasses.replace(cache, sharpness=sharpness)
    return model, cache
