"""Attention in Pallas kernels for GPU (Triton).

A program has a block of rows and goes through the keys, or a block of keys and goes through the
rows. Where all rows are one block, as in decoding, each segment gets a program of its own.

Pallas has two ways to a GPU. This one reaches every NVIDIA GPU since Ampere, and jax 0.12 calls it
deprecated; the other, Mosaic GPU, wants Hopper or later.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu
from jaxtyping import Array, Float

from . import flash
from .flash import Kernels, Plan, Running, Slopes, of_logits
from .keys import HIDDEN, Keys
from .partials import Partial
from .result import Attended

LEAST, BYTES = 16, 128
"""Rows or keys in a block at least (for a tensor core); at most, times the bytes of their dtype."""

_F32 = functools.partial(jax.ShapeDtypeStruct, dtype=jnp.float32)


def attend(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    *,
    entropy: bool = False,
    lanes: int = 1,
    interpret: bool = False,
) -> Attended:
    """See `pce_jax.attention.attend`."""
    del lanes  # memory is bounded anyway
    return flash.attend(
        Kernels(blocks, forward, backward), q, groups, entropy=entropy, interpret=interpret
    )


def obstacle(q: Float[Array, "heads queries head_dim"]) -> str | None:
    """Why the kernels cannot do it, if so."""
    if q.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
        return f"float32, bfloat16 and float16 only, not {q.dtype}"
    if q.shape[-1] not in (16, 32, 64, 128):
        return f"heads of 16, 32, 64 or 128 only, not {q.shape[-1]}"
    return None


def blocks(rows: int, tokens: int, q: Array) -> tuple[int, int]:
    """Rows and keys in a block: powers of two."""
    most = max(LEAST, BYTES // q.dtype.itemsize)

    def size(count: int) -> int:
        return max(LEAST, min(most, pl.next_power_of_2(count)))

    return size(rows), size(tokens)


def forward(plan: Plan, q: Array, k: Array, v: Array, limits: Array) -> Partial:
    """Attention to one group."""
    kv_heads, rows, head_dim = q.shape
    segments, tokens = k.shape[1:3]
    parts = segments if rows == plan.rows else 1
    keys = pl.BlockSpec((None, segments, tokens, head_dim), lambda h, i, part: (h, 0, 0, 0))
    out, lse, entropy = pl.pallas_call(
        functools.partial(_forward, plan, segments // parts),
        grid=(kv_heads, rows // plan.rows, parts),
        in_specs=[
            pl.BlockSpec(limits.shape, lambda h, i, part: (0,)),
            pl.BlockSpec((None, plan.rows, head_dim), lambda h, i, part: (h, i, 0)),
            keys,
            keys,
        ],
        out_specs=[
            pl.BlockSpec((None, None, plan.rows, head_dim), lambda h, i, part: (h, part, i, 0)),
            pl.BlockSpec((None, segments // parts, plan.rows), lambda h, i, part: (h, part, i)),
            pl.BlockSpec((None, None, plan.rows), lambda h, i, part: (h, part, i)),
        ],
        out_shape=[
            _F32((kv_heads, parts, rows, head_dim)),
            _F32((kv_heads, segments, rows)),
            _F32((kv_heads, parts, rows)),
        ],
        compiler_params=_params(q),
        interpret=plan.interpret,
    )(limits, q, k, v)
    if parts == 1:
        return Partial(out[:, 0], lse, entropy[:, 0])
    logs = jax.nn.log_softmax(lse, axis=1)  # of a hidden segment huge, negative and finite
    shares = jnp.exp(logs)
    return Partial(
        jnp.sum(shares[..., None] * out, axis=1), lse, jnp.sum(shares * (entropy - logs), axis=1)
    )


def backward(
    plan: Plan, q: Array, k: Array, v: Array, limits: Array, do: Array, slopes: Slopes
) -> tuple[Array, Array, Array]:
    """Slopes of rows, keys and values."""
    kv_heads, rows, head_dim = q.shape
    segments, tokens = k.shape[1:3]
    given = (limits, q, k, v, do, *slopes)

    each = pl.BlockSpec((None, None, plan.rows), lambda h, i: (h, 0, i))
    block = pl.BlockSpec((None, plan.rows, head_dim), lambda h, i: (h, i, 0))
    keys = pl.BlockSpec((None, segments, tokens, head_dim), lambda h, i: (h, 0, 0, 0))
    bias = pl.BlockSpec((None, segments, None, plan.rows), lambda h, i: (h, 0, 0, i))
    dq = pl.pallas_call(
        functools.partial(_of_rows, plan),
        grid=(kv_heads, rows // plan.rows),
        in_specs=[
            pl.BlockSpec(limits.shape, lambda h, i: (0,)),
            *(block, keys, keys, block, each, each, each, bias),
        ],
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype),
        compiler_params=_params(q),
        interpret=plan.interpret,
    )(*given)

    each = pl.BlockSpec((None, None, rows), lambda h, s, j: (h, 0, 0))
    whole = pl.BlockSpec((None, rows, head_dim), lambda h, s, j: (h, 0, 0))
    keys = pl.BlockSpec((None, None, tokens, head_dim), lambda h, s, j: (h, s, 0, 0))
    bias = pl.BlockSpec((None, None, None, rows), lambda h, s, j: (h, s, 0, 0))
    dk, dv = pl.pallas_call(
        functools.partial(_of_keys, plan),
        grid=(kv_heads, segments, pl.cdiv(tokens, plan.keys)),
        in_specs=[
            pl.BlockSpec(limits.shape, lambda h, s, j: (0,)),
            *(whole, keys, keys, whole, each, each, each, bias),
        ],
        out_specs=[keys, keys],
        out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in (k, v)],
        compiler_params=_params(q),
        interpret=plan.interpret,
    )(*given)
    return dq, dk, dv


def _forward(
    plan: Plan, each: int, limits: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, entropy: Any
) -> None:
    """A block of rows through `each` segments, from those of its part on."""
    i, part = pl.program_id(1), pl.program_id(2)
    rows, start = q[...], limits[k.shape[0]]

    def segment(number: Any, running: Running) -> Running:
        s = part * each + number
        length = limits[s]

        def see(j: Any, running: Running) -> Running:
            keys, values = _load(plan, k, j, s), _load(plan, v, j, s)
            seen = plan.seen(1, i * plan.rows, j * plan.keys, length, start)
            x = jnp.where(seen, _logits(rows, keys), HIDDEN)
            return running.see(x, lambda e: _dot(e.astype(values.dtype), values), 1, plan.entropy)

        running = running._replace(mass=jnp.zeros_like(running.mass))
        running = jax.lax.fori_loop(0, _blocks(plan, plan.end(i, length, start)), see, running)
        lse[number, :] = running.lse.reshape(plan.rows)
        return running

    running = Running.start((plan.rows, 1), q.shape)
    running = jax.lax.fori_loop(0, each, segment, running)
    out[...] = running.out
    entropy[...] = running.entropy.reshape(plan.rows)


def _of_rows(plan: Plan, limits: Any, *refs: Any) -> None:
    """Slopes of a block of rows: a sum over segments and blocks of keys."""
    q, k, v, do, lse, mean, of_entropy, bias, dq = refs
    i = pl.program_id(1)
    rows, do, start = q[...], do[...], limits[k.shape[0]]
    lse, mean, of_entropy = (ref[...][:, None] for ref in (lse, mean, of_entropy))

    def segment(s: Any, total: Array) -> Array:
        length = limits[s]
        slopes = Slopes(lse, mean, of_entropy, bias[s, :][:, None])

        def see(j: Any, total: Array) -> Array:
            keys, values = _load(plan, k, j, s), _load(plan, v, j, s)
            seen = plan.seen(1, i * plan.rows, j * plan.keys, length, start)
            x, dots = _logits(rows, keys), _dot(do, values.T)
            _, dx = of_logits(x, dots, seen, slopes, plan.entropy)
            return total + _dot(dx.astype(keys.dtype), keys)

        return jax.lax.fori_loop(0, _blocks(plan, plan.end(i, length, start)), see, total)

    total = jax.lax.fori_loop(0, k.shape[0], segment, jnp.zeros(q.shape, jnp.float32))
    dq[...] = (total * q.shape[-1] ** -0.5).astype(dq.dtype)


def _of_keys(plan: Plan, limits: Any, *refs: Any) -> None:
    """Slopes of a block of keys and of its values: a sum over blocks of rows."""
    q, k, v, do, *slopes, dk, dv = refs
    s, j = pl.program_id(1), pl.program_id(2)
    length, start = limits[s], limits[pl.num_programs(1)]
    keys, values = _load(plan, k, j), _load(plan, v, j)

    first = plan.first(j, start)

    def see(number: Any, totals: tuple[Array, Array]) -> tuple[Array, Array]:
        i = first + number
        at = pl.ds(i * plan.rows, plan.rows)
        rows, slope = q[at, :], do[at, :]
        seen = plan.seen(1, i * plan.rows, j * plan.keys, length, start)
        x, dots = _logits(rows, keys), _dot(slope, values.T)
        known = Slopes(*(ref[at][:, None] for ref in slopes))
        p, dx = of_logits(x, dots, seen, known, plan.entropy)
        of_k = totals[0] + _dot(dx.astype(rows.dtype).T, rows)
        return of_k, totals[1] + _dot(p.astype(slope.dtype).T, slope)

    nothing = jnp.zeros(keys.shape, jnp.float32)
    # Behind the length no row sees anything. Triton's loops want bounds of one type, from 0 on.
    count = jnp.where(j * plan.keys < length, jnp.int32(q.shape[0] // plan.rows) - first, 0)
    of_k, of_v = jax.lax.fori_loop(0, count, see, (nothing, nothing))
    at, inside = _slots(plan, k, j)
    scaled = (of_k * q.shape[-1] ** -0.5).astype(dk.dtype)
    plgpu.store(dk.at[at, :], scaled, mask=inside)
    plgpu.store(dv.at[at, :], of_v.astype(dv.dtype), mask=inside)


def _slots(plan: Plan, of: Any, block: Any) -> tuple[Any, Array]:
    """Where a block of keys is, and which of them are inside the array."""
    slots = block * plan.keys + jnp.arange(plan.keys)
    return pl.ds(block * plan.keys, plan.keys), (slots < of.shape[-2])[:, None]


def _load(plan: Plan, of: Any, block: Any, *segment: Any) -> Array:
    """A block of keys or values; 0 beyond the array."""
    at, inside = _slots(plan, of, block)
    return plgpu.load(of.at[(*segment, at, slice(None))], mask=inside, other=0.0)


def _blocks(plan: Plan, end: Any) -> Any:
    return jax.lax.div(end + plan.keys - 1, plan.keys)


def _dot(a: Array, b: Array) -> Array:
    return jnp.dot(a, b, preferred_element_type=jnp.float32)


def _logits(q: Array, k: Array) -> Array:
    return _dot(q, k.T) * q.shape[-1] ** -0.5


def _params(q: Array) -> plgpu.CompilerParams:
    return plgpu.CompilerParams(num_warps=4 if q.shape[-1] <= 64 else 8, num_stages=2)
