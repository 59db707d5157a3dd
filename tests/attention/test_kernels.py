"""The kernels: that TPU and GPU take them, where they are chosen, and what may lie around the keys.

What they give is in `test_implementations`, interpreted.
"""

import contextlib
import dataclasses
import functools
from collections.abc import Generator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention.cases import HEADS, arrays, groups, plain
from jax.sharding import AbstractDevice, AbstractMesh, use_abstract_mesh

import pce_jax as pce
from pce_jax.attention import Keys, attend, implementations, pallas_gpu, pallas_tpu

KERNELS = {"tpu": pallas_tpu, "cuda": pallas_gpu}
each_kernel = pytest.mark.parametrize("kernels", KERNELS.values(), ids=KERNELS)
each_platform = pytest.mark.parametrize("platform", KERNELS)


@contextlib.contextmanager
def planned_for(platform: str) -> Generator[None]:
    """Trace for a device that is not here."""
    kind = {"cuda": "NVIDIA H200", "tpu": "TPU v5e"}[platform]
    device = AbstractDevice(device_kind=kind, num_cores=None, platform=platform)
    with use_abstract_mesh(AbstractMesh((1,), ("x",), abstract_device=device)):
        yield


def llama(queries: int) -> tuple[Any, ...]:
    """Shapes of Llama 3.1 8B: 32 query heads on 8 key heads of 128, in bfloat16."""

    def kv(segments: int, tokens: int) -> pce.KV:
        k = jnp.zeros((8, segments, tokens, 128), jnp.bfloat16)
        return pce.KV(k, k)

    def everything() -> tuple[Any, ...]:
        q = jnp.zeros((32, queries, 128), jnp.bfloat16)
        keys = [kv(1, 3), kv(4, 1000), kv(1, queries + 200)]
        return q, keys, jnp.zeros(4, jnp.int32), jnp.zeros((), jnp.int32)

    return jax.eval_shape(everything)


def with_slopes(attend: Any) -> Any:
    def loss(q: Any, kv: list[pce.KV], lengths: Any, start: Any) -> jax.Array:
        keys = [Keys(kv[0]), Keys(kv[1], lengths), Keys(kv[2], start=start)]
        found = attend(q, keys, entropy=True)
        parts = (jnp.sum(x.astype(jnp.float32)) for x in jax.tree.leaves(found))
        return sum(parts, start=jnp.zeros(()))

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))


@pytest.mark.filterwarnings("ignore:The Pallas Triton backend is deprecated")  # jax 0.12
@each_platform
@pytest.mark.parametrize("queries", [512, 1], ids=["prefill", "decode"])
def test_it_lowers_with_its_slopes(platform, queries):
    with planned_for(platform):
        lowered = with_slopes(attend).trace(*llama(queries)).lower(lowering_platforms=(platform,))
    calls = kernel_calls(lowered)
    assert len(calls) == 3 * 3  # of each group: forward, slopes of queries, slopes of keys
    if platform == "cuda":
        for call in calls:
            verify_triton(call)


@pytest.mark.slow
@pytest.mark.tpu_backend
@pytest.mark.parametrize("queries", [512, 1], ids=["prefill", "decode"])
def test_it_compiles_for_a_tpu(queries, monkeypatch):
    monkeypatch.setenv("TPU_SKIP_MDS_QUERY", "1")
    from jax.experimental import topologies

    chips = topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2")
    here = jax.sharding.SingleDeviceSharding(chips.devices[0])
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=here), llama(queries)
    )
    assert with_slopes(pallas_tpu.attend).trace(*shapes).lower().compile().as_text()


def kernel_calls(lowered: Any) -> list[Any]:
    found = []

    def visit(op: Any) -> Any:
        from jax._src.lib.mlir import ir

        name = str(op.attributes["call_target_name"]) if "call_target_name" in op.attributes else ""
        if "tpu_custom_call" in name or "triton" in name:
            found.append(op)
        return ir.WalkResult.ADVANCE

    lowered.compiler_ir("stablehlo").operation.walk(visit)
    return found


def verify_triton(op: Any) -> None:
    """Lowering does not check what it made; reading it does, as the compiler will."""
    from jax._src.lib import triton
    from jax._src.lib.mlir import ir

    with ir.Context() as context:
        triton.dialect.register_dialect(context)
        context.load_all_available_dialects()
        ir.Module.parse(op.attributes["mhlo.backend_config"]["ir"].value_bytes)


@each_kernel
def test_what_lies_beyond_a_length_does_not_matter(kernels):
    x = arrays()
    whole, (sink, segments, tail) = plain(x), groups(x)
    beyond = jnp.arange(5) >= segments.counts[:, None]
    dirty = jax.tree.map(lambda a: jnp.where(beyond[..., None], 1e4, a), segments.kv)
    keys = [sink, dataclasses.replace(segments, kv=dirty), tail]
    found = jax.jit(lambda q: kernels.attend(q, keys, interpret=True))(x["q"])
    np.testing.assert_allclose(found.out, whole["out"], atol=2e-6)


@each_kernel
def test_it_runs_side_by_side_over_lengths_that_differ(kernels):
    x = arrays()
    run = functools.partial(kernels.attend, entropy=True, interpret=True)
    sink, segments, tail = groups(x)
    lengths, starts = jnp.asarray([[5, 2, 0, 4], [1, 0, 0, 0]]), jnp.asarray([2, 0])

    def one(lengths: Any, start: Any, run: Any = run) -> Any:
        return run(x["q"], [sink, Keys(segments.kv, lengths), Keys(tail.kv, start=start)])

    both = jax.jit(jax.vmap(one))(lengths, starts)
    for number in range(2):
        plainly = functools.partial(attend, entropy=True, implementation="einsum")
        alone = one(lengths[number], starts[number], plainly)
        for a, b in zip(jax.tree.leaves(both), jax.tree.leaves(alone), strict=True):
            np.testing.assert_allclose(a[number], b, atol=2e-6)


@each_kernel
def test_bfloat16_is_as_exact_as_its_own_digits(kernels):
    # Where logits are sharpened, queries are rounded once more.
    x = arrays() | {"sharpness": jnp.ones(HEADS)}
    x = jax.tree.map(lambda a: a.astype(jnp.bfloat16), x)
    exact = plain(jax.tree.map(lambda a: a.astype(jnp.float32), x))
    run = functools.partial(kernels.attend, entropy=True, interpret=True)
    found = jax.jit(lambda x: run(x["q"], groups(x)))(x)
    assert found.out.dtype == jnp.bfloat16
    assert found.lse.dtype == jnp.float32
    np.testing.assert_allclose(found.out.astype(jnp.float32), exact["out"], atol=2e-2)
    np.testing.assert_allclose(found.lse, exact["lse"], atol=1e-5)
    np.testing.assert_allclose(found.entropy.total, exact["total"], atol=1e-5)


# Which implementation is taken


def taken(name: Any, head_dim: int = 64, dtype: Any = jnp.bfloat16) -> str:
    q = jax.eval_shape(lambda: jnp.zeros((2, 1, head_dim), dtype))
    found = implementations.find(name, q)
    return found.__module__.rpartition(".")[-1]


def test_kernels_are_taken_where_they_can_run():
    assert taken(None) == "chunked"
    with planned_for("tpu"):
        assert taken(None) == taken("pallas_tpu") == "pallas_tpu"
        assert taken(None, head_dim=80) == taken(None, dtype=jnp.float16) == "chunked"
        assert taken("einsum") == "einsum"
    with planned_for("cuda"):
        assert taken(None) == taken("pallas_gpu") == "pallas_gpu"
        assert taken(None, head_dim=80) == "chunked"


def test_what_cannot_run_says_what_to_do():
    with pytest.raises(pce.PceError, match=r"this program is for a cpu\. Use 'chunked'"):
        taken("pallas_tpu")
    with planned_for("tpu"), pytest.raises(pce.PceError, match="multiple of 64"):
        taken("pallas_tpu", head_dim=80)
    with pytest.raises(pce.PceError, match="there are einsum, chunked"):
        taken("flash")


def test_several_devices_get_no_kernel():
    device = AbstractDevice(device_kind="TPU v5e", num_cores=None, platform="tpu")
    with use_abstract_mesh(AbstractMesh((2,), ("x",), abstract_device=device)):
        assert taken(None) == "chunked"
