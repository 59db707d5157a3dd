"""How well what is trained reads text that it was not trained on."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from pce_jax.method import Method
from pce_jax.models import Llama

from .data import Layout, Text, stacked
from .objective import FULL, Example, Terms, objective
from .step import Trained


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What was measured of each of some held-out texts: sums over its target tokens.

    Attributes:
        targets: How many there are.
        ce: Negative log-likelihood, in nats.
        entropy: Attention entropy, mean over layers and heads, in nats.
    """

    targets: tuple[float, ...]
    ce: tuple[float, ...]
    entropy: tuple[float, ...]

    @property
    def log_ppl(self) -> float:
        """Of a token, in nats: the logarithm of the perplexity."""
        return sum(self.ce) / sum(self.targets)

    @property
    def spread(self) -> float:
        """Standard error of `log_ppl` over texts; 0 for a single one."""
        count = len(self.ce)
        if count < 2:
            return 0.0
        rest = np.asarray(self.ce) - self.log_ppl * np.asarray(self.targets)  # a ratio of sums
        return float(np.sqrt(np.var(rest, ddof=1) / count) / np.mean(self.targets))

    @property
    def mean_entropy(self) -> float:
        """Of a token, in nats."""
        return sum(self.entropy) / sum(self.targets)

    def first(self, count: int | None) -> "Measured":
        """Those of the first texts alone."""
        return Measured(
            **{field.name: getattr(self, field.name)[:count] for field in dataclasses.fields(self)}
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values: the means, and what they are of."""
        return {
            "log_ppl": self.log_ppl,
            "spread": self.spread,
            "entropy": self.mean_entropy,
            "texts": len(self.ce),
            "each": {name: list(values) for name, values in dataclasses.asdict(self).items()},
        }

    @staticmethod
    def from_json(values: Mapping[str, Any]) -> "Measured":
        """The inverse of `to_json`."""
        return Measured(**{name: tuple(each) for name, each in values["each"].items()})


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
    return Measured(
        **{
            name: tuple(np.concatenate([getattr(terms, name) for terms in found]).tolist())
            for name in ("targets", "ce", "entropy")
        }
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
