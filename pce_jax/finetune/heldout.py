"""How well what is trained reads text that it was not trained on."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence

import jax
import numpy as np

from pce_jax.method import Method
from pce_jax.models import Llama

from .data import Layout, Text, stacked
from .objective import FULL, Example, Terms, objective
from .step import Trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """Means over the target tokens of some held-out texts.

    Attributes:
        log_ppl: Negative log-likelihood of a token, in nats: the logarithm of the perplexity.
        spread: Standard error of the same over texts.
        entropy: Attention entropy, mean over layers and heads, in nats.
        texts: How many texts.
    """

    log_ppl: float
    spread: float
    entropy: float
    texts: int


def measure(
    trained: Trained,
    base: Llama,
    texts: Sequence[Text],
    layout: Layout,
    method: Method,
    *,
    batch: int = 1,
    progress: Callable[[int], None] = lambda done: None,
) -> Measured:
    """Read held-out texts and measure likelihood and entropy.

    Args:
        trained: What is measured; `Trained(None, Adapters())` for the weights from before.
        base: Those weights.
        texts: What to read.
        layout: That holds them, at the degree in question.
        method: How to read segments; `METHODS["full"]` for full attention.
        batch: Texts side by side.
        progress: Called with the number of texts done.
    """
    found: list[Terms] = []
    for start in range(0, len(texts), batch):
        some = [layout.example(text) for text in texts[start : start + batch]]
        blank = dataclasses.replace(some[0], length=np.asarray(0, np.int32))
        examples = stacked(some + [blank] * (batch - len(some)))
        terms = jax.device_get(_terms(trained, base, examples, method))
        real = slice(len(some))
        found.append(jax.tree.map(lambda x, real=real: x[real], terms))
        progress(start + len(some))
    targets, ce, entropy = (
        np.concatenate([getattr(terms, name) for terms in found]).astype(np.float64)
        for name in ("targets", "ce", "entropy")
    )
    mean = float(ce.sum() / targets.sum())
    spread = 0.0
    if len(ce) > 1:  # of a ratio of sums
        spread = math.sqrt(np.var(ce - mean * targets, ddof=1) / len(ce)) / targets.mean()
    return Measured(
        log_ppl=mean,
        spread=float(spread),
        entropy=float(entropy.sum() / targets.sum()),
        texts=len(ce),
    )


@functools.partial(jax.jit, static_argnames="method")
def _terms(trained: Trained, base: Llama, examples: Example, method: Method) -> Terms:
    student = trained.student(base)
    return jax.vmap(lambda one: objective(student, trained.adapters, None, one, method))(examples)


def student_method(method: Method, degree: int) -> Method:
    """How a student reads at a degree: 1 is full attention."""
    return FULL if degree == 1 else method


def gap(base: Mapping[int, Measured], tuned: Mapping[int, Measured], degree: int) -> float:
    """What parallel reading costs, in nats a token, against the better of the full readings.

    Args:
        base: By degree, of the weights from before; 1 is full attention.
        tuned: By degree, of what was trained.
        degree: Where.
    """
    return tuned[degree].log_ppl - min(base[1].log_ppl, tuned[1].log_ppl)


def closed(base: Mapping[int, Measured], tuned: Mapping[int, Measured], degree: int) -> float:
    """The share of the base's gap that training has closed; 1 is all of it."""
    return 1 - gap(base, tuned, degree) / gap(base, base, degree)
