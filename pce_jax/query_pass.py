"""What happens in a query pass: tokens that see a whole encoded context and their own past.

Query tokens attend to the sink, to every segment (or the selected ones) and causally to the tail.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .attention import Attention, Entropy, Keys, Selection, measured, one_group, plain, survey
from .cache import KV, ContextCache, Tail
from .encode import heads_first, reader
from .method import Method
from .models import Llama, decode_stack, embed
from .models.rope import Turns, rotary, rotate, turns
from .selection import Select


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Stats:
    """What a query pass measured; the means keep the axes of an outer `vmap`.

    Attributes:
        entropy: Nats, `[layers, heads, tokens]`; 0 at padding.
        valid: Which tokens are not padding.
    """

    entropy: Entropy
    valid: Bool[Array, " tokens"]

    def by_layer(self) -> Float[Array, "*batch layers"]:
        """Mean total entropy over tokens and heads, in nats, per layer."""
        return self._mean(self.entropy.total)

    def between_by_layer(self) -> Float[Array, "*batch layers"]:
        """The same of the entropy between sink, segments and tail."""
        return self._mean(self.entropy.between)

    def mean(self) -> Float[Array, "*batch"]:
        """The headline number: mean over tokens and heads, then layers, in nats."""
        return jnp.mean(self.by_layer(), axis=-1)

    def _mean(
        self, entropy: Float[Array, "*batch layers heads tokens"]
    ) -> Float[Array, "*batch layers"]:
        counted = jnp.maximum(jnp.sum(self.valid, axis=-1) * entropy.shape[-2], 1)
        return jnp.sum(entropy, axis=(-2, -1)) / counted[..., None]


def read(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Int[Array, " tokens"],
    length: Int[Array, ""],
    method: Method,
    stats: bool,
    lanes: int = 1,
) -> tuple[Float[Array, "tokens d"], Tail, Stats | None]:
    """Run query tokens through the stack: what `query`, `score` and `generate` share.

    Neither jitted nor checked.

    Args:
        model: The decoder.
        cache: The encoded context.
        tail: What was read before.
        tokens: Token ids, padded at the end.
        length: Number of real tokens.
        method: Its selection and positions apply.
        stats: Measure entropy.
        lanes: How many queries run side by side under an outer `vmap`; only bounds memory.

    Returns:
        Hidden states before the final norm, the grown tail, and statistics if asked for.
    """
    attention = measured if stats else plain
    hidden, tail, entropy = read_tokens(
        model, cache, tail, tokens, length, method, attention, lanes
    )
    if not stats:
        return hidden, tail, None
    valid = jnp.arange(tokens.shape[0]) < length
    return hidden, tail, Stats(jax.tree.map(lambda x: jnp.where(valid, x, 0.0), entropy), valid)


def read_tokens(
    model: Llama,
    cache: ContextCache,
    tail: Tail,
    tokens: Int[Array, " tokens"],
    length: Int[Array, ""],
    method: Method,
    attention: Attention,
    lanes: int = 1,
) -> tuple[Float[Array, "tokens d"], Tail, Any]:
    """Run query tokens through the stack, with any attention: what the analysis shares.

    Aggregation over layers takes two passes: the first without selection, to learn every layer's
    scores.

    Args:
        model: The decoder.
        cache: The encoded context.
        tail: What was read before.
        tokens: Token ids, padded at the end.
        length: Number of real tokens.
        method: Its selection and positions apply.
        attention: What a layer's attention does and keeps.
        lanes: How many queries run side by side under an outer `vmap`; only bounds memory.

    Returns:
        Hidden states before the final norm, the grown tail, and what `attention` kept, with a
        leading layer axis; at padding it means nothing.
    """
    model = reader(model, method)
    index = jnp.arange(tokens.shape[0])
    valid = index < length
    several = cache.lengths.shape[0] > 1 and not method.full
    select = method.select if several else None
    sharpness = cache.sharpness if several else None
    positions = method.positions.whole(cache.query_start + tail.length + index)
    angles = turns(rotary(model.config), positions)
    options = {"lanes": lanes, "rules": model.rules}
    attend = functools.partial(_attend, cache, tail, valid, angles, select, attention, options)
    hidden, choice = embed(model, tokens), None
    if select is not None and "layer" in select.aggregate:
        first = functools.partial(attend, survey_only=True)
        state = (cache.sink, cache.segments, tail.kv, sharpness, None)
        scores = decode_stack(model, hidden, first, state)[1]
        choice = select.choose(scores, cache.lengths, valid)
        choice = jnp.broadcast_to(choice, (model.config.num_layers, *choice.shape[1:]))
    state = (cache.sink, cache.segments, tail.kv, sharpness, choice)
    hidden, (kv, kept) = decode_stack(model, hidden, attend, state)
    return hidden, Tail(kv, tail.length + length), kept


def _attend(
    cache: ContextCache,
    tail: Tail,
    valid: Bool[Array, " tokens"],
    angles: Turns,
    select: Select | None,
    attention: Attention,
    options: dict[str, Any],
    q: Array,
    k: Array,
    v: Array,
    rotated: Array,
    state: tuple[KV, KV, KV, Array | None, Array | None],
    survey_only: bool = False,
) -> tuple[Array, Any]:
    """Attention of one layer's query tokens to sink, segments and tail.

    Returns:
        Mixed values, and (the grown tail, what `attention` kept) or, in a survey, the unselected
        segment scores.
    """
    sink, segments, past, sharpness, choice = state
    new = heads_first(rotate(k, angles, rotated), v)
    grown = jax.tree.map(
        lambda old, new: jax.lax.dynamic_update_slice_in_dim(old, new, tail.length, 1), past, new
    )
    groups = [
        one_group(sink),
        Keys(segments, cache.lengths, sharpness=sharpness),
        one_group(grown, start=tail.length),
    ]
    q = rotate(q, angles, rotated)
    if survey_only:
        assert select is not None
        return plain(q, groups, **options)[0], survey(q, groups, select, **options)
    selection = None if select is None else Selection(select, valid, choice)
    mixed, kept = attention(q, groups, selection, **options)
    return mixed, (grown, kept)
