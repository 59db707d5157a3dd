"""One batch: instances of one shape encoded side by side, and read by one or more methods."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from pce_jax.cache import ContextCache, Store
from pce_jax.evals.instance import Passage
from pce_jax.evals.prepare import Prepared, Shape
from pce_jax.generate import generate
from pce_jax.many import encode_many, score_many, stack
from pce_jax.method import Method
from pce_jax.models import Llama
from pce_jax.programs import CompileTime


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answered:
    """What a method made of an instance; the names are those of `Row`.

    Attributes:
        nll: For passages.
        tokens: Generated token ids; empty for passages.
        entropy: Mean over the query pass and the decode steps as equal units.
        entropy_query: Of the query pass.
        between: What of that lies between sink, segments and tail.
        sink_tokens: Tokens of the sink.
        segments: Segments filled.
        seconds: A row's share of encoding and reading, compiling excluded.
    """

    nll: float | None
    tokens: list[int]
    entropy: float
    entropy_query: float
    between: float
    sink_tokens: int
    segments: int
    seconds: float


def read_batch(
    model: Llama,
    batch: Sequence[Prepared],
    segments: Sequence[list[list[int]]],
    shape: Shape,
    rows: int,
    sink: list[int],
    methods: Sequence[Method],
    max_new_tokens: int,
    compiling: CompileTime,
    *,
    at_once: int | None = None,
    store: Store | None = None,
) -> list[list[Answered]]:
    """Encode a batch once, and score or answer it by each method.

    Args:
        model: The decoder.
        batch: Instances, at least one; passages or questions, not both.
        segments: Token ids of their segments.
        shape: What to pad to.
        rows: Instances to pad to; the last one is repeated, so that no new program is compiled.
        sink: Token ids of the shared prefix.
        methods: Methods that encode alike.
        max_new_tokens: Length of an answer. It is not ended by the model's end token, as published.
        compiling: Adds up the time to leave out.
        at_once: Segments of each instance to encode side by side; all by default.
        store: What to keep the segments' keys and values as.

    Returns:
        For each method, what it made of each instance.
    """
    filler = range(len(batch), rows)
    padded = [*segments, *(segments[-1] for _ in filler)]
    queries = [one.query for one in [*batch, *(batch[-1] for _ in filler)]]
    contexts = stack(padded, sink, segments=shape.segments, tokens=shape.tokens)
    cache, encode_seconds = _timed(
        lambda: encode_many(model, contexts, methods[0], at_once=at_once, store=store), compiling
    )
    found = []
    for method in methods:
        if isinstance(batch[0].source, Passage):
            parts, seconds = _timed(
                lambda m=method: _score(model, cache, queries, shape, m), compiling
            )
        else:
            parts, seconds = _timed(
                lambda m=method: _answer(model, cache, queries, shape, m, max_new_tokens), compiling
            )
        found.append(
            [
                Answered(
                    sink_tokens=len(sink),
                    segments=len(segments[number]),
                    seconds=round((encode_seconds + seconds) / len(batch), 4),
                    **parts[number],
                )
                for number in range(len(batch))
            ]
        )
    return found


def _score(
    model: Llama,
    cache: ContextCache,
    queries: Sequence[Sequence[int]],
    shape: Shape,
    method: Method,
) -> list[dict[str, Any]]:
    texts = np.zeros((len(queries), shape.query), np.int32)
    for row, query in zip(texts, queries, strict=True):
        row[: len(query)] = query
    lengths = np.asarray([len(query) for query in queries], np.int32)
    out = jax.device_get(score_many(model, cache, texts, method, lengths=lengths))
    return [
        {
            "nll": float(nll),
            "tokens": [],
            "entropy": float(entropy),
            "entropy_query": float(entropy),
            "between": float(between),
        }
        for nll, entropy, between in zip(out.nll, out.entropy, out.between, strict=True)
    ]


def _answer(
    model: Llama,
    cache: ContextCache,
    queries: Sequence[Sequence[int]],
    shape: Shape,
    method: Method,
    max_new_tokens: int,
) -> list[dict[str, Any]]:
    # The published entropy counts the query pass and as many decode steps as there are new tokens;
    # here the first token comes with the query pass, so the last of these steps draws one too many.
    out = generate(
        model,
        cache,
        queries,
        method,
        max_new_tokens=max_new_tokens + 1,
        stop_tokens=(),
        stats=True,
        pad_to=shape.query,
    )
    assert out.entropy is not None and out.between is not None
    return [
        {
            "nll": None,
            "tokens": tokens[:max_new_tokens].tolist(),
            "entropy": float(entropy.mean()),
            "entropy_query": float(entropy[0]),
            "between": float(between[0]),
        }
        for tokens, entropy, between in zip(out.tokens, out.entropy, out.between, strict=True)
    ]


def _timed(work: Callable[[], Any], compiling: CompileTime) -> tuple[Any, float]:
    start, before = time.perf_counter(), compiling.seconds
    result = jax.block_until_ready(work())
    seconds = time.perf_counter() - start - (compiling.seconds - before)
    return result, max(seconds, 0.0)
