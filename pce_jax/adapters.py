"""What can be trained beside the weights: LoRA, a temperature by head, a learned sink.

Each is an addition that can be left out, and all but the sink change nothing at first. A model
carries them (`with_adapters`), and whatever reads with it applies them.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Key

from .cache import KV, empty_kv
from .encode import read_segment
from .models import Llama, Lora
from .models.config import LlamaConfig
from .models.llama import changed


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Adapters:
    """What is trained beside the weights; `None` where it is not.

    Attributes:
        lora: Low-rank additions to projections.
        log_temperature: Of each layer's and query head's logits with the segments' keys. Only where
            there are several segments: full attention stays as it was.
        sink: A prefix of keys and values that all segments and the query see, `[layers, kv_heads,
            slots, head_dim]`, at the positions from 0 on. Not in full attention.
        lora_in_full: Whether LoRA works in full attention too.
    """

    lora: Lora | None = None
    log_temperature: Float[Array, "layers heads"] | None = None
    sink: KV | None = None
    lora_in_full: bool = dataclasses.field(default=True, metadata={"static": True})

    @property
    def size(self) -> int:
        """How many numbers they are."""
        return sum(x.size for x in jax.tree.leaves(self))


def log_temperature(config: LlamaConfig) -> Float[Array, "layers heads"]:
    """Temperatures of 1, as logarithms: what training starts from.

    Args:
        config: Of the decoder they are for.

    Example:
        >>> pce.log_temperature(model.config).shape
        (30, 9)
    """
    return jnp.zeros((config.num_layers, config.num_heads), jnp.float32)


def from_text_sink(model: Llama, tokens: Sequence[int]) -> KV:
    r"""A sink to start from: the keys and values of a text's tokens, float32.

    Args:
        model: The decoder, before any training.
        tokens: Such as those of a line break; each becomes a slot.

    Example:
        >>> sink = pce.from_text_sink(model, pce.encode_text(tokenizer, "\n\n"))
        >>> sink.k.shape  # layers, kv_heads, slots, head_dim
        (30, 3, 1, 64)
    """
    prefix = empty_kv(model, 0)
    places = jnp.arange(len(tokens), dtype=jnp.float32)
    kv, _ = read_segment(model, prefix, jnp.asarray(tokens, jnp.int32), places)
    return jax.tree.map(lambda x: x.astype(jnp.float32), kv)


def with_adapters(
    model: Llama, adapters: Adapters | None, dropout: Key[Array, ""] | None = None
) -> Llama:
    """The model with adapters in place of those it had; its weights are shared and not copied.

    Whatever encodes with such a model reads segments behind the learned sink and gives the cache
    the temperatures. Full attention has LoRA alone, or nothing (`Adapters.lora_in_full`).

    Args:
        model: The decoder.
        adapters: What they are; `None` for the model without any.
        dropout: Key of LoRA's dropout, while training.

    Example:
        >>> adapters = pce.Adapters(log_temperature=pce.log_temperature(model.config) - 0.2)
        >>> sharper = pce.with_adapters(model, adapters)
        >>> pce.encode(sharper, context).sharpness.shape
        (30, 9)
    """
    adapters = adapters or Adapters()
    lora = adapters.lora
    if lora is not None and dropout is not None:
        lora = dataclasses.replace(lora, key=jax.random.split(dropout, model.config.num_layers))
    learned = dataclasses.replace(adapters, lora=None)
    return changed(model, lora=lora, learned=learned)
