"""Encoding: every segment on its own behind the shared sink, side by side (paper, section 2)."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .attention import Attention, one_group, plain
from .cache import KV, KV_AXES, ContextCache, Store, check_store, compressed, empty_kv
from .errors import LayoutError, MethodError
from .layout import SegmentedContext, check_tokens, dealt, join
from .method import Method
from .models import Llama, embed, keep_of_stack, with_lora
from .models.rope import rotary, rotate, turns
from .models.sharding import shard


def encode(
    model: Llama,
    context: SegmentedContext,
    method: Method = Method(),
    *,
    at_once: int | None = None,
    store: Store | None = None,
) -> ContextCache:
    r"""Encode a context segment by segment into a cache that any number of queries can share.

    The sink is encoded once and shared; the segments are one function under `vmap` and do not see
    each other. With one segment and no sink this is ordinary causal attention, by the same code.

    Args:
        model: The decoder.
        context: From `pack` or `split`.
        method: Its positions apply here (and `full` reads the segments as one).
        at_once: Segments side by side at a time (on each device), which bounds the memory that
            encoding takes beside the cache; all of them by default. It changes no result.
        store: What to keep keys and values of the segments as, see `compress`; by default as the
            model computes them.

    Returns:
        Rotated keys and values of sink and segments.

    Raises:
        LayoutError: The context reaches past the model's positions, or has tokens it lacks, or has
            fewer segments than the mesh has devices for them, or there is no such way to store.
        MethodError: The method wants a sink and the context was packed without one, it is no
            `Method`, or `at_once` is below 1.

    Example:
        >>> model, tokenizer = pce.load("smollm2-135m")
        >>> context = pce.pack(tokenizer, ["Ada wrote code.\n\n", "Bob baked bread.\n\n"])
        >>> cache = pce.encode(model, context)
        >>> cache.segments.k.shape  # layers, kv_heads, segments, tokens (padded), head_dim
        (30, 3, 2, 16, 64)
    """
    check_context(model, context, method)
    check_memory(at_once, store)
    if not method.full:
        context = dealt(context, model.rules.over("segment"))
    return _encode(model, context, encoder(method), at_once, store)


def encoder(method: Method) -> Method:
    """The method as far as encoding goes: the rest must not make programs compile again."""
    return dataclasses.replace(method, sink="", select=None)


def check_memory(at_once: int | None, store: Store | None) -> None:
    """Refuse settings of memory that have no meaning.

    Raises:
        LayoutError: There is no such way to store a cache.
        MethodError: `at_once` is below 1.
    """
    check_store(store)
    if at_once is not None and at_once < 1:
        raise MethodError(f"at_once must be at least 1 (segments side by side), got {at_once}.")


@functools.partial(jax.jit, static_argnames=("method", "at_once", "store"))
def _encode(
    model: Llama,
    context: SegmentedContext,
    method: Method,
    at_once: int | None = None,
    store: Store | None = None,
) -> ContextCache:
    return read_context(model, context, method, at_once=at_once, store=store)[0]


def read_context(
    model: Llama,
    context: SegmentedContext,
    method: Method,
    attention: Attention = plain,
    lanes: int = 1,
    at_once: int | None = None,
    store: Store | None = None,
) -> tuple[ContextCache, Any, Any]:
    """Encode sink and segments: what `encode` and the analysis share.

    Neither jitted nor checked.

    Args:
        model: The decoder.
        context: What to encode.
        method: Its positions and `full` apply.
        attention: What a layer's attention does and keeps.
        lanes: How many contexts run side by side under an outer `vmap`; only bounds memory.
        at_once: Segments side by side at a time; all by default.
        store: What to keep keys and values of the segments as.

    Returns:
        The cache, and what `attention` kept: of the sink `[layers, ...]` (`None` without one), and
        of the segments `[segments, layers, ...]`.
    """
    model = reader(model, method)
    prefix, temperature = learned_sink(model, method), None
    if method.full:
        context = join(context)
    elif model.learned is not None:
        temperature = model.learned.log_temperature
    segments, tokens = context.segments.shape
    sink_tokens = context.sink.shape[0]
    sink, of_sink = empty_kv(model, 0), None
    if prefix is not None:
        sink = jax.tree.map(lambda x: shard(x.astype(model.dtype), KV_AXES, model.rules), prefix)
        sink_tokens = prefix.k.shape[-2]
    elif sink_tokens:
        start = jnp.arange(sink_tokens, dtype=jnp.float32)
        sink, of_sink = read_segment(model, sink, jnp.asarray(context.sink), start, attention)
    positions, query_start = method.positions.of_segments(
        jnp.asarray(context.lengths), tokens, sink_tokens
    )
    spread = model.rules.over("segment") if segments > 1 else 1
    at_once = min(segments // spread, at_once or segments)
    one = functools.partial(
        read_segment, model, sink, attention=attention, lanes=at_once * spread * lanes, store=store
    )
    side_by_side = jax.vmap(one, out_axes=(2, 0))
    axes = ("segment" if segments > 1 else None, None)
    rows = [shard(x, axes, model.rules) for x in (jnp.asarray(context.segments), positions)]
    encoded, kept = _in_turns(side_by_side, at_once, spread, *rows)
    sharpness = None if temperature is None else jnp.exp(-temperature)
    cache = ContextCache(sink, encoded, jnp.asarray(context.lengths), query_start, sharpness)
    return cache, of_sink, kept


def reader(model: Llama, method: Method) -> Llama:
    """The model as a method reads with it: without a LoRA that is not for full attention."""
    if not method.full or model.learned is None or model.learned.lora_in_full:
        return model
    return with_lora(model, None)


def learned_sink(model: Llama, method: Method) -> KV | None:
    """The sink that a model has learned (`with_adapters`), which full attention does not read."""
    return None if model.learned is None or method.full else model.learned.sink


def _in_turns(
    side_by_side: Callable[[Array, Array], tuple[KV, Any]],
    at_once: int,
    devices: int,
    segments: Int[Array, "segments tokens"],
    positions: Float[Array, "segments tokens"],
) -> tuple[KV, Any]:
    """Encode segments a few at a time, each turn into its place in one preallocated cache.

    Over several devices, each takes as many of its own in a turn.
    """
    count = segments.shape[0] // devices
    if at_once == count:
        return side_by_side(segments, positions)
    turns = -(-count // at_once)
    at_once = -(-count // turns)  # equal turns: as little padding as can be

    def by_turns(x: Array) -> Array:
        x = x.reshape(devices, count, -1)
        x = jnp.pad(x, ((0, 0), (0, turns * at_once - count), (0, 0)))
        return jnp.moveaxis(x.reshape(devices, turns, at_once, -1), 1, 0)

    tokens, places = by_turns(segments), by_turns(positions)
    one_turn = jax.vmap(side_by_side, out_axes=(2, 0))
    shape = jax.eval_shape(one_turn, tokens[0], places[0])[0]
    whole = jax.tree.map(
        lambda x: jnp.zeros(
            (*x.shape[:3], turns * at_once, *x.shape[4:]), x.dtype, out_sharding=x.sharding
        ),
        shape,
    )

    def turn(whole: KV, part: tuple[Array, Array, Array]) -> tuple[KV, Any]:
        number, tokens, places = part
        encoded, kept = one_turn(tokens, places)
        return jax.tree.map(
            lambda all_, new: jax.lax.dynamic_update_slice_in_dim(all_, new, number * at_once, 3),
            whole,
            encoded,
        ), kept

    whole, kept = jax.lax.scan(turn, whole, (jnp.arange(turns), tokens, places))
    kept = jax.tree.map(
        lambda x: jnp.moveaxis(x, 0, 1).reshape(devices, -1, *x.shape[3:])[:, :count], kept
    )
    kept = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), kept)
    whole = jax.tree.map(lambda x: x[:, :, :, :count], whole)
    return jax.tree.map(lambda x: x.reshape(*x.shape[:2], -1, *x.shape[4:]), whole), kept


def read_segment(
    model: Llama,
    sink: KV,
    tokens: Int[Array, " tokens"],
    positions: Float[Array, " tokens"],
    attention: Attention = plain,
    lanes: int = 1,
    store: Store | None = None,
) -> tuple[KV, Any]:
    """Encode one segment causally behind the sink.

    Padding at its end is seen only by padding, so that it needs no mask.

    Args:
        model: The decoder.
        sink: The shared prefix, `[layers, kv_heads, sink, head_dim]`; `sink` may be 0.
        tokens: Token ids, padded at the end.
        positions: Position of each token.
        attention: What a layer's attention does and keeps.
        lanes: How many segments run side by side under an outer `vmap`; only bounds memory.
        store: What to keep keys and values as; the segment itself attends to them as they are.

    Returns:
        Rotated keys and values `[layers, kv_heads, tokens, head_dim]`, and what `attention` kept,
        `[layers, tokens, ...]`.
    """
    angles = turns(rotary(model.config), positions)

    def attend(q: Array, k: Array, v: Array, rotated: Array, prefix: KV) -> tuple[Array, Any]:
        own = heads_first(rotate(k, angles, rotated), v)
        groups = [one_group(prefix), one_group(own, start=0)]
        q = rotate(q, angles, rotated)
        mixed, kept = attention(q, groups, lanes=lanes, rules=model.rules)
        return mixed, (compressed(own, store), kept)

    def keep(q: Array, k: Array, v: Array, rotated: Array, prefix: KV) -> tuple[KV, Any]:
        if attention is not plain:  # it may keep something of its own
            return attend(q, k, v, rotated, prefix)[1]
        return compressed(heads_first(rotate(k, angles, rotated), v), store), None

    return keep_of_stack(model, embed(model, tokens), attend, keep, sink)


def heads_first(k: Array, v: Array) -> KV:
    """From `[tokens, kv_heads, head_dim]`, as the model makes them, to the order of the caches."""
    return KV(k.swapaxes(0, 1), v.swapaxes(0, 1))


def check_context(model: Llama, context: SegmentedContext, method: Method) -> None:
    """Refuse a context that lacks the method's sink or does not fit the model.

    Lengths that are traced cannot be checked.

    Raises:
        LayoutError: The context reaches past the model's positions, or has tokens it lacks.
        MethodError: The method wants a sink and the context was packed without one, or there are
            two sinks, a learned one among them; or it is no `Method`.
    """
    config = model.config
    if not isinstance(method, Method):
        raise MethodError(f'a method is a pce.Method, such as pce.METHODS["sink"]; got {method!r}')
    learned = learned_sink(model, method)
    if learned is not None and (context.sink.shape[0] or method.sink):
        raise MethodError(
            "the model has a learned sink and the context another one, of text. Use a method "
            "without a sink, such as naive or sel."
        )
    check_tokens(context.segments, config.vocab_size)
    check_tokens(context.sink, config.vocab_size)
    if method.sink and not context.sink.shape[0]:
        raise MethodError(
            "the method has a sink but the context was laid out without one: "
            "give pack(..., sink=method.sink), or split(..., sink=its token ids)."
        )
    if not isinstance(context.lengths, np.ndarray | jax.Array) or isinstance(
        context.lengths, jax.core.Tracer
    ):
        return
    sink = context.sink.shape[0] if learned is None else learned.k.shape[-2]
    lengths = np.asarray(context.lengths)
    if sink >= config.max_positions:
        raise LayoutError(
            f"the sink has {sink} tokens, which leaves no room in the model's "
            f"{config.max_positions} positions. Use a shorter sink: one or two tokens do the work."
        )
    in_a_row = method.full or method.positions.sequential
    span = int(lengths.sum() if in_a_row else lengths.max())
    if sink + span >= config.max_positions:
        fix = "a shorter context" if in_a_row else "shorter or more segments (a higher degree)"
        raise LayoutError(
            f"the context takes {sink} sink + {span} positions, and the model has "
            f"{config.max_positions} in all, with at least one for the query. "
            f"Use {fix}, or a model with a longer window."
        )
