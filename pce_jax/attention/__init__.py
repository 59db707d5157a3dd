"""Attention to several groups of keys, with exact entropy and bounded memory.

One interface, `attend`, and several implementations of it:

- `einsum`: the plain formula with every array in full, which the others are held against;
- `chunked`: in XLA, query tokens in chunks; runs everywhere;
- `pallas_tpu`, `pallas_gpu`: kernels, one group at a time, merged by `partials`.

`attention` is what the passes call: tokens first, with selection where there is one.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

from jaxtyping import Array, Float

from pce_jax.models.sharding import READING, Rules, mesh_in_use
from pce_jax.selection import Select

from . import by_token, implementations
from .across import attend_across, survey_across
from .implementations import Implementation
from .keys import HIDDEN, Keys, one_group
from .result import Attended, Entropy
from .selected import Selection, attend_selected
from .selected import survey as survey_alone

Attention = Callable[..., tuple[Array, Any]]
"""`attention(q, groups, selection=None, *, lanes=1) -> (mixed, kept)`: what a pass does in a layer.

`plain` keeps nothing, `measured` the entropy, and the analysis more.
"""


def attend(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    *,
    entropy: bool = False,
    implementation: Implementation | None = None,
    lanes: int = 1,
) -> Attended:
    """Attention of query tokens to the keys of all groups together.

    Query heads share key heads in equal consecutive groups; keys and values are not repeated.

    Args:
        q: Rotated queries.
        groups: The keys; each query token sees at least one.
        entropy: Also measure attention entropy, in nats.
        implementation: Which code does it; `None` for the best one where the program is to run.
        lanes: How many such calls run side by side under an outer `vmap`; only bounds memory.
    """
    wide = [keys.widened(q.dtype) for keys in groups]
    return implementations.find(implementation, q)(q, wide, entropy=entropy, lanes=lanes)


def attention(
    q: Float[Array, "tokens heads head_dim"],
    groups: Sequence[Keys],
    selection: Selection | None = None,
    *,
    entropy: bool = False,
    lanes: int = 1,
    rules: Rules = READING,
) -> tuple[Float[Array, "tokens heads head_dim"], Entropy | None]:
    """Attention of a layer, with or without selection, on one device or over a mesh.

    Args:
        q: Rotated queries, as the decoder hands them over.
        groups: Sink, segments and tail; without selection, any.
        selection: What to choose of the segments.
        entropy: Also measure it, `[heads, tokens]`.
        lanes: As in `attend`.
        rules: How the arrays lie on a mesh.
    """
    heads_first = q.swapaxes(0, 1)
    if mesh_in_use() is not None:
        found = attend_across(
            heads_first, groups, selection, attend, rules, entropy=entropy, lanes=lanes
        )
    elif selection is None:
        found = attend(heads_first, groups, entropy=entropy, lanes=lanes)
    else:
        found = attend_selected(
            heads_first, groups, selection, attend, entropy=entropy, lanes=lanes
        )
    return found.out.swapaxes(0, 1), found.entropy


def survey(
    q: Float[Array, "tokens heads head_dim"],
    groups: Sequence[Keys],
    select: Select,
    *,
    lanes: int = 1,
    rules: Rules = READING,
) -> Float[Array, "tokens heads segments"]:
    """Scores of all segments before any selection; they have no slope.

    Args:
        q: Rotated queries.
        groups: Sink, segments and tail.
        select: How segments are scored.
        lanes: As in `attend`.
        rules: As in `attention`.
    """
    heads_first = q.swapaxes(0, 1)
    if mesh_in_use() is not None:
        return survey_across(heads_first, groups, select, rules, lanes)
    return survey_alone(heads_first, groups, select, lanes)[0]


plain = functools.partial(attention, entropy=False)
measured = functools.partial(attention, entropy=True)

__all__ = [
    "HIDDEN",
    "Attended",
    "Attention",
    "Entropy",
    "Implementation",
    "Keys",
    "Selection",
    "attend",
    "attention",
    "by_token",
    "measured",
    "one_group",
    "plain",
    "survey",
]
