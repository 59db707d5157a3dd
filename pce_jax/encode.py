"""Encoding: every segment on its own behind the shared sink, side by side (paper, section 2)."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from .attention import Group, by_rows, mix
from .cache import KV, ContextCache, empty_kv
from .errors import LayoutError, MethodError
from .layout import SegmentedContext, join
from .method import Method
from .models import Llama, decode_stack, embed
from .models.config import LlamaConfig
from .models.rope import Rotary, rotate


def encode(model: Llama, context: SegmentedContext, method: Method = Method()) -> ContextCache:
    r"""Encode a context segment by segment into a cache that any number of queries can share.

    The sink is encoded once and shared; the segments are one function under `vmap` and do not see
    each other. With one segment and no sink this is ordinary causal attention, by the same code.

    Args:
        model: The decoder.
        context: From `pack` or `split`.
        method: Its positions apply here (and `full` reads the segments as one).

    Returns:
        Rotated keys and values of sink and segments.

    Raises:
        LayoutError: The context reaches past the model's positions.
        MethodError: The method wants a sink and the context was packed without one.

    Example:
        >>> model, tokenizer = pce.load("smollm2-135m")
        >>> context = pce.pack(tokenizer, ["Ada wrote code.\n\n", "Bob baked bread.\n\n"])
        >>> cache = pce.encode(model, context)
        >>> cache.segments.k.shape  # layers, kv_heads, segments, tokens (padded), head_dim
        (30, 3, 2, 16, 64)
    """
    if method.sink and not context.sink.shape[0]:
        raise MethodError(
            "the method has a sink but the context was laid out without one: "
            "give pack(..., sink=method.sink), or split(..., sink=its token ids)."
        )
    _check_window(model.config, context, method)
    # What matters to queries only must not make this compile again.
    return _encode(model, context, dataclasses.replace(method, sink="", select=None))


@functools.partial(jax.jit, static_argnames="method")
def _encode(model: Llama, context: SegmentedContext, method: Method) -> ContextCache:
    if method.full:
        context = join(context)
    segments, tokens = context.segments.shape
    sink_tokens = context.sink.shape[0]
    sink = empty_kv(model.config, 0, model.dtype)
    if sink_tokens:
        start = jnp.arange(sink_tokens, dtype=jnp.float32)
        sink = encode_segment(model, sink, jnp.asarray(context.sink), start)
    positions, query_start = method.positions.of_segments(
        jnp.asarray(context.lengths), tokens, sink_tokens
    )
    one = functools.partial(encode_segment, lanes=segments)
    side_by_side = jax.vmap(one, in_axes=(None, None, 0, 0), out_axes=2)
    encoded = side_by_side(model, sink, jnp.asarray(context.segments), positions)
    return ContextCache(sink, encoded, jnp.asarray(context.lengths), query_start)


def encode_segment(
    model: Llama,
    sink: KV,
    tokens: Int[Array, " tokens"],
    positions: Float[Array, " tokens"],
    lanes: int = 1,
) -> KV:
    """Encode one segment causally behind the sink.

    Padding at its end is seen only by padding, so that it needs no mask.

    Args:
        model: The decoder.
        sink: The shared prefix, `[layers, kv_heads, sink, head_dim]`; `sink` may be 0.
        tokens: Token ids, padded at the end.
        positions: Position of each token.
        lanes: How many segments run side by side under an outer `vmap`; only bounds memory.

    Returns:
        Rotated keys and values `[layers, kv_heads, tokens, head_dim]`.
    """
    index = jnp.arange(tokens.shape[0])
    keys = sink.k.shape[-2] + tokens.shape[0]

    def attend(q: Array, k: Array, v: Array, rotary: Rotary, prefix: KV) -> tuple[Array, KV]:
        own = heads_first(rotate(k, positions, rotary), v)
        groups = [
            Group(prefix, lambda _: jnp.ones(prefix.k.shape[-2], bool)),
            Group(own, lambda row: index <= row),
        ]
        rows = (rotate(q, positions, rotary), index)
        return by_rows(lambda q, row: mix(q, groups, row)[0], rows, keys, q.shape[-2], lanes), own

    return decode_stack(model, embed(model, tokens), attend, sink)[1]


def heads_first(k: Array, v: Array) -> KV:
    """From `[tokens, kv_heads, head_dim]`, as the model makes them, to the order of the caches."""
    return KV(k.swapaxes(0, 1), v.swapaxes(0, 1))


def _check_window(config: LlamaConfig, context: SegmentedContext, method: Method) -> None:
    """Refuse a context past the model's window; lengths that are traced cannot be checked."""
    if not isinstance(context.lengths, np.ndarray | jax.Array) or isinstance(
        context.lengths, jax.core.Tracer
    ):
        return
    sink, lengths = context.sink.shape[0], np.asarray(context.lengths)
    if sink >= config.max_positions:
        raise LayoutError(
            f"the sink has {sink} tokens, which leaves no room in the model's "
            f"{config.max_positions} positions. Use a shorter sink: one or two tokens do the work."
        )
    in_a_row = method.full or method.positions.sequential
    span = int(lengths.sum() if in_a_row else lengths.max())
    if sink + span >= config.max_positions:
        fix = "a shorter context" if in_a_row else "more segments (a higher degree)"
        raise LayoutError(
            f"the context takes {sink} sink + {span} positions, and the model has "
            f"{config.max_positions} in all, with at least one for the query. "
            f"Use {fix}, or a model with a longer window."
        )
