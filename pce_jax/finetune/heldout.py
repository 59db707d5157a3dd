"""How well what is trained reads text that it was not trained on."""

import dataclasses
import functools
from collections.abc import Callable, Sequence

import jax
import numpy as np

from pce_jax.method import Method
from pce_jax.models import Llama

from .data import Layout, Text, stacked
from .measured import Measured
from .objective import FULL, Example, Terms, objective
from .step import Trained, side_by_side


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
    examples = jax.tree.map(lambda x: side_by_side(x, base.rules), examples)
    return jax.vmap(lambda one: objective(student, trained.adapters, None, one, method))(examples)


def student_method(method: Method, degree: int) -> Method:
    """How a student reads at a degree: 1 is full attention."""
    return FULL if degree == 1 else method
