"""The measurement: the paper's language-modelling task at several degrees (section 3).

A window of N tokens is laid out as N - scored - 1 context tokens, cut into `degree` segments, then
one unsplit token that starts the query, then the scored tokens.
"""

import dataclasses
import functools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from pce_jax import METHODS, Method, encode, encode_text, score, split
from pce_jax.models import Llama

from .text import Window

FULL = "full"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One window read by one method at one degree.

    Attributes:
        window: Name of the window.
        degree: Number of segments.
        method: Name of the method.
        same_as: Method whose run this is: at degree 1 there is nothing to select, and without a
            sink what remains is full attention.
        nll: Negative log-likelihood of the scored tokens, summed, in nats.
        tokens: Scored tokens.
        entropy: Attention entropy of the query, in nats: mean over tokens, heads and layers.
        entropy_between: Its share between sink, segments and query.
        entropy_within: Its share inside them.
        encode_seconds: Time to encode; methods that share a cache share it. The first window of a
            shape includes compiling.
        score_seconds: Time to score, likewise.
    """

    window: str
    degree: int
    method: str
    same_as: str | None
    nll: float
    tokens: int
    entropy: float
    entropy_between: float
    entropy_within: float
    encode_seconds: float
    score_seconds: float

    @property
    def perplexity(self) -> float:
        """exp(nll per token)."""
        return float(np.exp(self.nll / self.tokens))


@dataclasses.dataclass(frozen=True)
class Job:
    """Methods that read one encoded context.

    Attributes:
        degree: Number of segments.
        encoder: The method as far as encoding goes.
        methods: What to score, by name.
        aliases: Methods with the same result as a scored one.
    """

    degree: int
    encoder: Method
    methods: dict[str, Method]
    aliases: dict[str, str]


def lm_method(name: str) -> Method:
    """A named method as the paper uses it for language modelling.

    There every head and token selects for itself. Aggregating over tokens, the default, would let
    a token's choice of segments depend on later tokens, which it is to predict.
    """
    method = METHODS[name]
    if method.select is None:
        return method
    return dataclasses.replace(
        method, select=dataclasses.replace(method.select, aggregate=frozenset())
    )


def plan(names: Sequence[str], degrees: Sequence[int]) -> list[Job]:
    """What to encode and score, without doing anything twice.

    Full attention, the yardstick, comes first and always. Degree 1 has one job for each sink.
    """
    methods = {name: lm_method(name) for name in names if name != FULL}
    jobs = []
    plain = [name for name, method in methods.items() if not method.sink] if 1 in degrees else []
    full = lm_method(FULL)
    jobs.append(Job(1, full, {FULL: full}, dict.fromkeys(plain, FULL)))
    for degree in degrees:
        groups: dict[Method, dict[str, Method]] = {}
        for name, method in methods.items():
            groups.setdefault(dataclasses.replace(method, select=None), {})[name] = method
        for encoder, group in groups.items():
            if degree > 1:
                jobs.append(Job(degree, encoder, group, {}))
            elif encoder.sink:
                first, *others = group
                jobs.append(Job(1, encoder, {first: group[first]}, dict.fromkeys(others, first)))
    return jobs


def steps(jobs: Sequence[Job], windows: int) -> int:
    """Encodings and scorings in all, for a progress bar."""
    return windows * sum(1 + len(job.methods) for job in jobs)


def measure(
    model: Llama,
    tokenizer: Any,
    windows: Sequence[Window],
    jobs: Sequence[Job],
    scored: int,
    on_step: Callable[[str], None] = lambda what: None,
) -> Iterator[Row]:
    """Do the jobs, one after another on every window.

    Args:
        model: The decoder.
        tokenizer: Its tokenizer, for the sink.
        windows: What to read.
        jobs: From `plan`.
        scored: Tokens to score at the end of each window.
        on_step: Called after every encoding and scoring with what was done.

    Yields:
        Rows as they are measured.

    Raises:
        LayoutError: A degree is above the number of context tokens, or the window does not fit the
            model's positions.
    """
    for job in jobs:
        sink = encode_text(tokenizer, job.encoder.sink) if job.encoder.sink else ()
        for window in windows:
            context = split(window.tokens[: -scored - 1], job.degree, sink)
            query = jnp.asarray(window.tokens[-scored - 1 :])
            cache, encode_seconds = _timed(functools.partial(encode, model, context, job.encoder))
            on_step(f"degree {job.degree}")
            for name, method in job.methods.items():
                out, score_seconds = _timed(
                    functools.partial(score, model, cache, query, method, stats=True)
                )
                on_step(f"degree {job.degree}")
                total, between = out.stats.mean(), out.stats.entropy.between.mean()
                row = Row(
                    window=window.name,
                    degree=job.degree,
                    method=name,
                    same_as=None,
                    nll=float(out.sum()),
                    tokens=scored,
                    entropy=float(total),
                    entropy_between=float(between),
                    entropy_within=float(total - between),
                    encode_seconds=encode_seconds,
                    score_seconds=score_seconds,
                )
                yield row
                for alias, original in job.aliases.items():
                    if original == name:
                        yield dataclasses.replace(row, method=alias, same_as=name)


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    result = jax.block_until_ready(work())
    return result, round(time.perf_counter() - start, 4)
