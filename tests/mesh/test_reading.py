"""A context whose segments, heads and weights lie on several devices reads as on one."""

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tiny_models import tiny_config

import pce_jax as pce
from pce_jax.attention import by_token
from pce_jax.decode_loop import Rules, go_on, start
from pce_jax.encode import _encode, encoder
from pce_jax.errors import LayoutError, PceError
from pce_jax.models import Llama, MeshLayout, MeshSizes, init, make_mesh
from pce_jax.models.llama import changed, parameters_of

TINY = tiny_config(vocab_size=64, num_layers=3, head_dim=8, max_positions=512, eos_token_ids=())
TOLERANCE = {"rtol": 1e-5, "atol": 1e-5}
MIXED = MeshSizes(fsdp=2, segment=2, tensor=2)
SEGMENTS = MeshSizes(segment=8)


@functools.cache
def model() -> Llama:
    return init(TINY, jax.random.key(0))


@functools.cache
def mesh(sizes: MeshSizes) -> Any:
    return make_mesh(sizes)


def spread(sizes: MeshSizes, whole: Llama | None = None) -> Llama:
    """The tiny model on a mesh."""
    layout, whole = MeshLayout(mesh(sizes)), whole or model()
    placed = {
        name: jax.device_put(np.asarray(parameters_of(whole)[name]), sharding)
        for name, sharding in layout.shardings(TINY).items()
    }
    return changed(whole, parameters=placed)


def context(segments: int = 8, tokens: int = 12, sink: tuple[int, ...] = (3,)) -> Any:
    draw = np.random.default_rng(0)
    rows = [draw.integers(0, 61, tokens - number % 3).tolist() for number in range(segments)]
    return pce.from_segments(rows, sink)


def assert_same(mine: Any, whole: Any) -> None:
    for one, other in zip(*map(jax.tree.leaves, (mine, whole)), strict=True):
        np.testing.assert_allclose(np.asarray(one), np.asarray(other), **TOLERANCE)


Select = pce.Select
METHODS = {
    "naive": pce.METHODS["naive"],
    "sequential": pce.Method(positions=pce.Positions(sequential=True)),
    "full": pce.METHODS["full"],
    "sel": pce.METHODS["sel"],
    "each": pce.Method(select=Select(aggregate=frozenset())),
    "by head": pce.Method(select=Select(top_k=3, aggregate=frozenset({"token"}))),
    "by layer": pce.Method(select=Select(aggregate=frozenset({"layer", "head", "token"}))),
    "soft": pce.Method(select=Select(tau=0.5)),
    "mean": pce.Method(select=Select(score_top=0, aggregate_top=0)),
}


OFTEN = ("naive", "sel")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in OFTEN)) for name in METHODS],
)
def test_encode_and_query_over_a_mesh_are_those_of_one_device(name):
    method, tokens = METHODS[name], jnp.arange(5) + 7

    def read(model: Llama) -> Any:
        cache = pce.encode(model, context(), method)
        out = pce.query(model, cache, tokens, method, stats=True)
        return cache, out, pce.score(model, cache, tokens, method)

    whole = read(model())
    with jax.set_mesh(mesh(MIXED)):
        assert_same(read(spread(MIXED)), whole)


def test_generated_tokens_are_those_of_one_device():
    def answers(model: Llama) -> list[list[int]]:
        cache = pce.encode(model, context())
        out = pce.generate(model, cache, [[5, 6, 7], [8, 9]], max_new_tokens=12, stats=True)
        return out.tokens.tolist()

    whole = answers(model())
    with jax.set_mesh(mesh(MIXED)):
        assert answers(spread(MIXED)) == whole


@pytest.mark.slow
def test_many_contexts_are_spread_over_data_and_segments():
    sizes = MeshSizes(data=2, segment=2, tensor=2)
    contexts = pce.stack([[[1, 2, 3], [4, 5], [6], [7, 8]], [[9, 10], [11], [12, 13], [14]]])
    texts = jnp.array([[5, 6, 7], [8, 9, 10]])

    def scores(model: Llama) -> Any:
        return pce.score_many(model, pce.encode_many(model, contexts), texts)

    whole = scores(model())
    with jax.set_mesh(mesh(sizes)):
        assert_same(scores(spread(sizes)), whole)


@pytest.mark.parametrize(
    "options", [{"at_once": 2}, pytest.param({"store": "int8"}, marks=pytest.mark.slow)]
)
def test_memory_is_saved_on_every_device(options):
    context_ = context(13, sink=())
    whole = pce.encode(model(), context_, **options)
    with jax.set_mesh(mesh(MIXED)):
        mine = pce.encode(spread(MIXED), context_, **options)
        segments = whole.segments.k.shape[2]
        assert mine.segments.k.shape[2] == -(-segments // 4) * 4
        cut = jax.tree.map(lambda x: np.asarray(x)[:, :, :segments], mine.segments)
    if "store" not in options:
        assert_same(cut, whole.segments)
        return
    for one, other in zip(*map(jax.tree.leaves, (cut, whole.segments)), strict=True):
        assert np.max(np.abs(one.astype(np.float32) - np.asarray(other, np.float32))) <= 1


def test_fewer_segments_than_devices_are_refused():
    with (
        jax.set_mesh(mesh(SEGMENTS)),
        pytest.raises(LayoutError, match="2 segments are spread over 8 devices"),
    ):
        pce.encode(spread(SEGMENTS), context(2))


def test_the_analysis_says_that_it_reads_on_one_device():
    q = jnp.ones((2, 4, 8))
    with jax.set_mesh(mesh(SEGMENTS)), pytest.raises(PceError, match=r"outside jax\.set_mesh"):
        by_token.attention(by_token.mix, q, [])


def collectives(text: str | None) -> dict[str, list[str]]:
    """What a compiled program sends: by kind, the shapes of the results."""
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    found: dict[str, list[str]] = {}
    for shape, kind in re.findall(rf"= (\S+) ({kinds})(?:-start)?\(", text or ""):
        found.setdefault(kind, []).append(shape)
    return found


def compiled_encode(sizes: MeshSizes, segments: int) -> Any:
    with jax.set_mesh(mesh(sizes)):
        lowered = _encode.lower(spread(sizes), context(segments, sink=()), encoder(pce.Method()))
        return lowered.compile()


def test_encoding_segments_side_by_side_sends_nothing():
    assert collectives(compiled_encode(SEGMENTS, 16).as_text()) == {}


def test_encoding_with_weights_spread_gathers_weights_alone():
    found = collectives(compiled_encode(MeshSizes(fsdp=8), 16).as_text())
    assert set(found) == {"all-gather"}
    shapes = {re.sub(r"\{.*", "", shape) for shape in found["all-gather"]}
    whole = [jax.tree.leaves(x)[0].shape for x in parameters_of(model()).values()]
    weights = {",".join(map(str, shape[-2:])) for shape in whole}
    for shape in shapes:
        sizes = [size for size in re.findall(r"\d+", shape.split("[")[1]) if size != "1"]
        assert ",".join(sizes) in weights, shape


def test_the_cache_of_each_device_is_its_share():
    with jax.set_mesh(mesh(SEGMENTS)):
        cache = pce.encode(spread(SEGMENTS), context(16, sink=()))
    for whole in (cache.segments.k, cache.segments.v):
        assert {shard.data.nbytes * 8 for shard in whole.addressable_shards} == {whole.nbytes}


def test_a_decode_step_moves_no_keys_or_values():
    rules = Rules(pce.METHODS["sel"], pce.Sampling(), False)
    with jax.set_mesh(mesh(SEGMENTS)):
        spread_model = spread(SEGMENTS)
        cache = pce.encode(spread_model, context(16, sink=()))
        tokens = jnp.array([[5, 6]])
        keys, stops = jax.random.split(jax.random.key(0), 1), jnp.array([-1])
        rows = start(spread_model, cache, tokens, jnp.array([2]), keys, stops, rules, 16)
        limit = jnp.asarray(4)
        text = go_on.lower(spread_model, cache, rows, stops, limit, rules, 4).compile().as_text()
    found = collectives(text)
    assert "all-reduce" in found  # mixed values and the sums of exponentials
    largest = TINY.num_heads * TINY.head_dim * 4  # of what is sent: a token's mixed values
    for shapes in found.values():
        for shape in shapes:
            sizes = [int(size) for size in re.findall(r"\[([\d,]*)\]", shape)[0].split(",") if size]
            assert np.prod(sizes) <= largest, shape


def test_twice_the_segments_on_twice_the_devices_are_as_much_work_for_each():
    def flops(devices: int) -> float:
        sizes = MeshSizes(segment=devices)
        part = make_mesh(sizes, jax.devices()[:devices])
        layout = MeshLayout(part)
        placed = {
            name: jax.device_put(np.asarray(parameters_of(model())[name]), sharding)
            for name, sharding in layout.shardings(TINY).items()
        }
        with jax.set_mesh(part):
            arguments = changed(model(), parameters=placed), context(2 * devices, sink=())
            done = _encode.lower(*arguments, encoder(pce.Method())).compile()
        return (done.cost_analysis() or {})["flops"]

    found = [flops(devices) for devices in (2, 8)]
    np.testing.assert_allclose(found, found[0], rtol=0.02)
