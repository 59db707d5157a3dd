"""A tiny model, contexts of one padded shape, and how the oracle reads them."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from oracle import Dense, dense_pass, place
from tiny_models import arrays_of, tiny_config

import pce_jax as pce
from pce_jax.models import Llama
from pce_jax.models.llama import parameter_shapes

SEGMENTS, TOKENS, SLOTS = 4, 16, 8  # every context and query is padded to these: compile once
SINK = 2

few = settings(max_examples=4, deadline=None, derandomize=True, database=None)

TINY = tiny_config(
    vocab_size=61,
    hidden_size=24,
    intermediate_size=40,
    num_layers=3,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    max_positions=512,
    eos_token_ids=(),
)


@functools.cache
def model() -> Llama:
    """Random, with attention that is neither flat nor a single peak."""
    draw = np.random.default_rng(3)
    parameters = {}
    for name, shape in parameter_shapes(TINY).items():
        scale = {"q_proj": 2.0, "k_proj": 2.0}.get(name.removeprefix("blocks."), 1.0)
        noise = draw.normal(size=shape) * scale * shape[-1] ** -0.5
        value = 1 + 0.3 * draw.normal(size=shape) if name.endswith("norm") else noise
        with jax.ensure_compile_time_eval():  # the first call may come from inside a trace
            parameters[name] = jnp.asarray(value, jnp.float32)
    return Llama(TINY, parameters)


@functools.cache
def weights() -> dict[str, np.ndarray]:
    return arrays_of(model())


@dataclasses.dataclass(frozen=True)
class Case:
    """Tokens without any padding."""

    sink: list[int]
    segments: list[list[int]]
    query: list[int]

    def context(
        self, filler: int = 0, segments: int = SEGMENTS, tokens: int = TOKENS
    ) -> pce.SegmentedContext:
        """In the common shape; `filler` seeds what padding holds."""
        padded = np.random.default_rng(filler).integers(0, 61, (segments, tokens), np.int32)
        lengths = np.zeros(segments, np.int32)
        for number, segment in enumerate(self.segments):
            padded[number, : len(segment)] = segment
            lengths[number] = len(segment)
        return pce.SegmentedContext(np.asarray(self.sink, np.int32), padded, lengths)

    def padded_query(self, filler: int = 0, slots: int = SLOTS) -> np.ndarray:
        padded = np.random.default_rng(filler + 1).integers(0, 61, slots, np.int32)
        padded[: len(self.query)] = self.query
        return padded

    def joined(self) -> "Case":
        return Case(self.sink, [[t for s in self.segments for t in s]], self.query)


def make(seed: int, lengths: list[int], query: int = 5, sink: int = SINK) -> Case:
    """Random tokens in segments of these lengths."""
    draw = np.random.default_rng(seed)

    def tokens(count: int) -> list[int]:
        return draw.integers(0, 61, count).tolist()

    return Case(tokens(sink), [tokens(n) for n in lengths], tokens(query))


@st.composite
def cases(draw: st.DrawFn, sink: int | None = SINK, shortest: int = 0) -> Case:
    """Ragged segments, some of them empty, but not all."""
    lengths = draw(
        st.lists(st.integers(shortest, TOKENS), min_size=SEGMENTS, max_size=SEGMENTS).filter(any)
    )
    sink = draw(st.sampled_from([0, SINK])) if sink is None else sink
    return make(draw(st.integers(0, 2**16)), lengths, draw(st.integers(1, SLOTS)), sink)


def run(case: Case, method: pce.Method, filler: int = 0) -> pce.QueryOutput:
    """Through the library, at the common shape."""
    cache = pce.encode(model(), case.context(filler), method)
    tokens, length = case.padded_query(filler), len(case.query)
    return pce.query(model(), cache, tokens, method, length=length, stats=True)


def expect(
    case: Case, method: pce.Method, answer: list[int] | None = None, parameters: Any = None
) -> Dense:
    """By the oracle; the tokens of `answer` are read one by one behind the query."""
    case = case.joined() if method.full else case
    scheme = dataclasses.asdict(method.positions)
    start = len(case.sink)
    inside, query_start = place([len(s) for s in case.segments], start, **scheme)
    answer = answer or []
    after = [query_start + i for i in range(len(case.query) + len(answer))]
    positions = [*range(start), *(x for part in inside for x in part), *after]
    passes = [case.query, *([token] for token in answer)]
    select = None if method.full else method.select
    return dense_pass(
        parameters or weights(), TINY, case.sink, case.segments, passes, positions, select
    )


def check(out: pce.QueryOutput, dense: Dense, atol: float = 1e-4) -> None:
    """Logits and both entropies agree on all real tokens."""
    real = dense.logits.shape[0]
    assert out.stats is not None
    np.testing.assert_allclose(out.logits[:real], dense.logits, rtol=0, atol=atol)
    entropy = out.stats.entropy
    np.testing.assert_allclose(entropy.total[..., :real], dense.total, rtol=0, atol=atol)
    np.testing.assert_allclose(entropy.between[..., :real], dense.between, rtol=0, atol=atol)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((out.logits, entropy)))
