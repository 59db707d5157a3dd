"""Attention in Pallas kernels for TPU (Mosaic).

Logits of a block lie with keys down and rows across: what is known of each row is then one vector
along the lanes, and so are its inputs and outputs in memory. Lengths and start come before the grid
runs, so that blocks in which nothing is seen are neither computed nor fetched.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jaxtyping import Array, Float

from . import flash
from .flash import Kernels, Plan, Running, Slopes, of_logits
from .keys import HIDDEN, Keys
from .partials import Partial
from .result import Attended

ROWS, LANES = 512, 128
"""Rows in a block at most, and what they are a multiple of."""

AREA = 2**18
"""Rows times keys in a block at most."""

_PARALLEL = ("parallel", "parallel", "arbitrary", "arbitrary")
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
    if q.dtype not in (jnp.float32, jnp.bfloat16):
        return f"float32 and bfloat16 only, not {q.dtype}"
    if q.shape[-1] % 64:
        return f"heads of a multiple of 64 only, not {q.shape[-1]}"
    return None


def blocks(rows: int, tokens: int, q: Array) -> tuple[int, int]:
    """Rows and keys in a block."""
    count = pl.cdiv(rows, ROWS)
    size = pl.cdiv(pl.cdiv(rows, count), LANES) * LANES
    return size, min(tokens, AREA // size)


def forward(plan: Plan, q: Array, k: Array, v: Array, limits: Array) -> Partial:
    """Attention to one group."""
    kv_heads, rows, head_dim = q.shape
    segments, tokens = k.shape[1:3]
    each, mixed = (1, plan.rows), (head_dim, plan.rows)
    spec = _specs(plan, segments, head_dim, lambda h, i, s, j: (h, i, s, j))
    out, lse, entropy = pl.pallas_call(
        functools.partial(_forward, plan, tokens),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(kv_heads, rows // plan.rows, segments, pl.cdiv(tokens, plan.keys)),
            in_specs=[spec["rows"], spec["keys"], spec["keys"]],
            out_specs=[spec["rows"], spec["by segment"], spec["each"]],
            scratch_shapes=[pltpu.VMEM(shape, jnp.float32) for shape in [each] * 4 + [mixed]],
        ),
        out_shape=[_F32(q.shape), _F32((kv_heads, segments, 1, rows)), _F32((kv_heads, 1, rows))],
        compiler_params=pltpu.CompilerParams(dimension_semantics=_PARALLEL),
        interpret=plan.interpret,
    )(limits, q, k, v)
    return Partial(out, lse[:, :, 0], entropy[:, 0])


def backward(
    plan: Plan, q: Array, k: Array, v: Array, limits: Array, do: Array, slopes: Slopes
) -> tuple[Array, Array, Array]:
    """Slopes of rows, keys and values."""
    kv_heads, rows, head_dim = q.shape
    segments, tokens = k.shape[1:3]
    row_blocks, key_blocks = rows // plan.rows, pl.cdiv(tokens, plan.keys)

    def call(kernel: Any, spec: dict[str, Any], grid: Any, outs: Any, like: Any, kept: Any) -> Any:
        return pl.pallas_call(
            functools.partial(kernel, plan, tokens),
            grid_spec=pltpu.PrefetchScalarGridSpec(
                num_scalar_prefetch=1,
                grid=grid,
                in_specs=[
                    *(spec[name] for name in ("rows", "keys", "keys", "rows")),
                    *(spec[name] for name in ("each", "each", "each", "by segment")),
                ],
                out_specs=[spec[name] for name in outs],
                scratch_shapes=[pltpu.VMEM((kept, head_dim), jnp.float32) for _ in outs],
            ),
            out_shape=[jax.ShapeDtypeStruct(x.shape, x.dtype) for x in like],
            compiler_params=pltpu.CompilerParams(dimension_semantics=_PARALLEL),
            interpret=plan.interpret,
        )(limits, q, k, v, do, *slopes)

    spec = _specs(plan, segments, head_dim, lambda h, i, s, j: (h, i, s, j))
    grid = (kv_heads, row_blocks, segments, key_blocks)
    (dq,) = call(_of_rows, spec, grid, ["rows"], [q], plan.rows)
    # The other way round: rows are what is summed over. The semantics of the grid are then those
    # of the segments and blocks of keys: only the last axis sums.
    spec = _specs(plan, segments, head_dim, lambda h, s, j, i: (h, i, s, j), row_blocks)
    grid = (kv_heads, segments, key_blocks, row_blocks)
    dk, dv = call(_of_keys, spec, grid, ["own keys", "own keys"], [k, v], plan.keys)
    return dq, dk, dv


def _specs(
    plan: Plan, segments: int, head_dim: int, order: Any, row_blocks: int | None = None
) -> dict[str, pl.BlockSpec]:
    """Where a step of the grid finds its blocks.

    Nothing new is fetched where nothing is seen: the index stays at the nearest block that is.

    Args:
        plan: Sizes of blocks.
        segments: How many.
        head_dim: Of keys.
        order: From the axes of the grid to key head, block of rows, segment, block of keys.
        row_blocks: How many, if rows are the inner axis.
    """

    def row(h: Any, i: Any, s: Any, j: Any, limits: Any) -> Any:
        if row_blocks is None:
            return i
        return jnp.minimum(jnp.maximum(i, plan.first(j, limits[segments])), row_blocks - 1)

    def key(h: Any, i: Any, s: Any, j: Any, limits: Any) -> Any:
        if row_blocks is not None:
            return j
        end = plan.end(i, limits[s], limits[segments])
        return jnp.minimum(j, jax.lax.div(jnp.maximum(end - 1, 0), plan.keys))

    def at(shape: tuple[int | None, ...], index: Any) -> pl.BlockSpec:
        return pl.BlockSpec(shape, lambda *grid: index(*order(*grid[:4]), grid[4]))

    return {
        "rows": at((None, plan.rows, head_dim), lambda *g: (g[0], row(*g), 0)),
        "keys": at((None, None, plan.keys, head_dim), lambda *g: (g[0], g[2], key(*g), 0)),
        "own keys": at((None, None, plan.keys, head_dim), lambda *g: (g[0], g[2], g[3], 0)),
        "each": at((None, 1, plan.rows), lambda *g: (g[0], 0, row(*g))),
        "by segment": at((None, None, 1, plan.rows), lambda *g: (g[0], g[2], 0, row(*g))),
    }


def _forward(
    plan: Plan,
    tokens: int,
    limits: Any,
    q: Any,
    k: Any,
    v: Any,
    out: Any,
    lse: Any,
    entropy: Any,
    *scratch: Any,
) -> None:
    i, s, j = (pl.program_id(axis) for axis in (1, 2, 3))
    segments = pl.num_programs(2)
    length, start = limits[s], limits[segments]

    @pl.when((s == 0) & (j == 0))
    def _() -> None:
        _put(scratch, Running.start((1, plan.rows), (q.shape[-1], plan.rows)))

    @pl.when(j == 0)
    def _() -> None:
        scratch[2][...] = jnp.zeros_like(scratch[2])

    @pl.when(j * plan.keys < plan.end(i, length, start))
    def _() -> None:
        seen = plan.seen(0, i * plan.rows, j * plan.keys, length, start)
        x = jnp.where(seen, _logits(k[...], q[...]), HIDDEN)
        values = _inside(plan, tokens, j, v[...])

        def mix(e: Array) -> Array:
            return _dot(values, e.astype(values.dtype), (0, 0))

        running = Running(*(ref[...] for ref in scratch))
        _put(scratch, running.see(x, mix, 0, plan.entropy))

    @pl.when(j == pl.num_programs(3) - 1)
    def _() -> None:
        lse[...] = Running(*(ref[...] for ref in scratch)).lse

    @pl.when((s == segments - 1) & (j == pl.num_programs(3) - 1))
    def _() -> None:
        running = Running(*(ref[...] for ref in scratch))
        out[...] = running.out.T
        entropy[...] = running.entropy


def _of_rows(plan: Plan, tokens: int, limits: Any, *refs: Any) -> None:
    """Slopes of a block of rows: a sum over segments and blocks of keys."""
    q, k, v, do, *slopes, dq, total = refs
    i, s, j = (pl.program_id(axis) for axis in (1, 2, 3))
    length, start = limits[s], limits[pl.num_programs(2)]

    @pl.when((s == 0) & (j == 0))
    def _() -> None:
        total[...] = jnp.zeros_like(total)

    @pl.when(j * plan.keys < plan.end(i, length, start))
    def _() -> None:
        seen = plan.seen(0, i * plan.rows, j * plan.keys, length, start)
        keys = _inside(plan, tokens, j, k[...])
        x, dots = _logits(keys, q[...]), _dot(_inside(plan, tokens, j, v[...]), do[...], (1, 1))
        _, dx = of_logits(x, dots, seen, Slopes(*(ref[...] for ref in slopes)), plan.entropy)
        total[...] += _dot(dx.astype(keys.dtype), keys, (0, 0))

    @pl.when((s == pl.num_programs(2) - 1) & (j == pl.num_programs(3) - 1))
    def _() -> None:
        dq[...] = (total[...] * q.shape[-1] ** -0.5).astype(dq.dtype)


def _of_keys(plan: Plan, tokens: int, limits: Any, *refs: Any) -> None:
    """Slopes of a block of keys and of its values: a sum over blocks of rows."""
    q, k, v, do, *slopes, dk, dv, total_k, total_v = refs
    s, j, i = (pl.program_id(axis) for axis in (1, 2, 3))
    length, start = limits[s], limits[pl.num_programs(1)]

    @pl.when(i == 0)
    def _() -> None:
        total_k[...] = jnp.zeros_like(total_k)
        total_v[...] = jnp.zeros_like(total_v)

    @pl.when(j * plan.keys < plan.end(i, length, start))
    def _() -> None:
        seen = plan.seen(0, i * plan.rows, j * plan.keys, length, start)
        keys = _inside(plan, tokens, j, k[...])
        x, dots = _logits(keys, q[...]), _dot(_inside(plan, tokens, j, v[...]), do[...], (1, 1))
        p, dx = of_logits(x, dots, seen, Slopes(*(ref[...] for ref in slopes)), plan.entropy)
        total_k[...] += _dot(dx.astype(q.dtype), q[...], (1, 0))
        total_v[...] += _dot(p.astype(do.dtype), do[...], (1, 0))

    @pl.when(i == pl.num_programs(3) - 1)
    def _() -> None:
        dk[...] = (total_k[...] * q.shape[-1] ** -0.5).astype(dk.dtype)
        dv[...] = total_v[...].astype(dv.dtype)


def _dot(a: Array, b: Array, axes: tuple[int, int]) -> Array:
    """Sum over one axis of each, float32."""
    along = (((axes[0],), (axes[1],)), ((), ()))
    return jax.lax.dot_general(a, b, along, preferred_element_type=jnp.float32)


def _logits(k: Array, q: Array) -> Array:
    return _dot(k, q, (1, 1)) * q.shape[-1] ** -0.5


def _inside(plan: Plan, tokens: int, block: Any, x: Array) -> Array:
    """The last block may reach beyond the array, where there is anything, even NaN."""
    if tokens % plan.keys == 0:
        return x
    slots = block * plan.keys + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where(slots < tokens, x, jnp.zeros_like(x))


def _put(scratch: Sequence[Any], running: Running) -> None:
    for ref, value in zip(scratch, running, strict=True):
        ref[...] = value
