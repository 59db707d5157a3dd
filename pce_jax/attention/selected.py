"""Selective attention: score the segments, choose, attend to what was chosen.

Scores need the logits of all keys, but no values. Where all query tokens and heads choose together,
keys and values of the chosen segments are gathered, and only those are attended to. Where each
chooses for itself, its choice is applied to the exponentials that gave the scores.
"""

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from pce_jax.selection import Select

from .chunked import (
    Rows,
    add,
    by_chunks,
    entropy_of,
    exponentials,
    masses_of,
    mixed_values,
    safe_log,
)
from .keys import HIDDEN, Keys
from .result import Attended

LEAST = 1e-5
"""What is kept is divided by its sum, or by this if that is less, as published."""

Attend = Callable[..., Attended]


@dataclasses.dataclass(frozen=True)
class Selection:
    """What is to be chosen in one layer.

    Attributes:
        select: How.
        valid: Query tokens that are not padding; others have no say.
        choice: Made already, for all layers: from `Select.choose`.
    """

    select: Select
    valid: Bool[Array, " queries"]
    choice: Float[Array, "queries heads segments"] | None = None

    @property
    def shared(self) -> bool:
        """Whether all query tokens and heads choose the same segments, and drop the others."""
        return self.select.tau is None and {"head", "token"} <= self.select.aggregate


def survey(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    select: Select,
    lanes: int = 1,
    place: int = -2,
) -> tuple[Float[Array, "queries heads segments"], Float[Array, "heads queries"]]:
    """Scores of the segments before any selection, and the log of the sum of all exponentials.

    Neither has a slope: a choice has none.

    Args:
        q: Rotated queries.
        groups: The keys.
        select: How segments are scored.
        lanes: How many such calls run side by side under an outer `vmap`.
        place: Which group holds the segments.
    """
    q, groups = jax.lax.stop_gradient((q, list(groups)))

    def chunk(q: Rows, groups: Sequence[Keys], rows: Array, extra: None) -> tuple[Array, Array]:
        xs, es, top = exponentials(q, groups, rows)
        lse = top + jnp.log(add(jnp.sum(e, axis=(-2, -1)) for e in es))
        return select.scores(xs[place], lse, groups[place].counts), lse

    scores, lse = by_chunks(chunk, q, groups, lanes=lanes)
    return scores.swapaxes(0, 1), lse


def attend_selected(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    selection: Selection,
    attend: Attend,
    *,
    entropy: bool,
    lanes: int = 1,
) -> Attended:
    """Attention to sink, tail and the segments that are chosen.

    Args:
        q: Rotated queries.
        groups: Sink, segments and tail.
        selection: What to choose.
        attend: Attention to what was gathered.
        entropy: Also measure it, of what is attended to.
        lanes: How many such calls run side by side under an outer `vmap`.
    """
    select, choice = selection.select, selection.choice
    lengths = groups[-2].counts
    if not selection.shared and choice is None and not select.aggregate:
        return _each(q, groups, selection, None, entropy, lanes)
    lse = None
    if choice is None:
        scores, lse = survey(q, groups, select, lanes)
        choice = select.choose(scores, lengths, selection.valid)
    if selection.shared:
        if lse is None:
            lse = survey(q, groups, select, lanes)[1]
        chosen = [*groups[:-2], gather(groups[-2], choice[0, 0], select.top_k), groups[-1]]
        return renormalised(attend(q, chosen, entropy=entropy, lanes=lanes), lse)
    return _each(q, groups, selection, choice, entropy, lanes)


def gather(keys: Keys, choice: Float[Array, " segments"], top_k: int) -> Keys:
    """The chosen segments alone.

    Args:
        keys: All segments.
        choice: 1 for a chosen segment, else 0.
        top_k: Chosen segments at most.
    """
    kept, places = jax.lax.top_k(choice, min(top_k, choice.shape[0]))
    lengths = jnp.where(kept > 0, keys.counts[places], 0)
    kv = jax.tree.map(lambda x: x[:, places], keys.kv)
    return dataclasses.replace(keys, kv=kv, lengths=lengths)


def renormalised(found: Attended, lse: Float[Array, "heads queries"]) -> Attended:
    """Attention to what was kept, bounded.

    Probabilities that kept too little of the sum of all stay below a sum of 1, as published.

    Args:
        found: Attention to what was kept.
        lse: Log of the sum of the exponentials of all keys.
    """
    kept = jnp.exp(found.lse - lse)
    share = kept / jnp.maximum(kept, LEAST)
    out = (found.out * share[..., None]).astype(found.out.dtype)
    if found.entropy is None:
        return Attended(out, found.lse, None)
    lost = safe_log(share)  # nothing may be left at all
    return Attended(out, found.lse, jax.tree.map(lambda h: share * (h - lost), found.entropy))


def _each(
    q: Array,
    groups: Sequence[Keys],
    selection: Selection,
    choice: Array | None,
    entropy: bool,
    lanes: int,
) -> Attended:
    """Every query token and head with a choice of its own, made here or given."""
    select, lengths = selection.select, groups[-2].counts
    several = jnp.sum(lengths > 0) > 1  # a single segment is no choice at all

    def chunk(q: Rows, groups: Sequence[Keys], rows: Array, choice: Array | None) -> Attended:
        xs, es, top = exponentials(q, groups, rows)
        masses = masses_of(es)
        whole = add(jnp.sum(m, axis=-1) for m in masses)
        if choice is None:
            scores = select.scores(xs[-2], top + jnp.log(whole), lengths)
            choice = select.choose_each(scores, lengths)
        factors = select.factors(choice, masses[-2] / whole[..., None])
        factors = jnp.where(several, factors, 1.0)
        es[-2] = es[-2] * factors[..., None]
        masses[-2] = masses[-2] * factors
        kept = add(jnp.sum(m, axis=-1) for m in masses) / whole
        bound = whole * jnp.maximum(kept, LEAST)
        out = (mixed_values(es, groups) / bound[..., None]).astype(q.dtype)
        found = None
        if entropy:
            # The logit of a weight that has a factor is greater by its log.
            lost = jnp.sum(masses[-2] * safe_log(factors), axis=-1) / bound
            found = entropy_of(xs, es, top, masses, bound)
            found = dataclasses.replace(found, total=found.total - lost)
        return Attended(out, top + jnp.log(kept * whole), found)

    extra = None if choice is None else choice.swapaxes(0, 1)
    return by_chunks(chunk, q, groups, extra, lanes)


def attend_reweighed(
    q: Float[Array, "heads queries head_dim"],
    segments: Keys,
    select: Select,
    choice: Float[Array, "heads queries segments"],
    lse: Float[Array, "heads queries"],
    several: Bool[Array, ""],
    *,
    entropy: bool,
    lanes: int = 1,
) -> Attended:
    """Attention to segments alone, each with its choice; nothing is bounded yet.

    Args:
        q: Rotated queries.
        segments: The keys.
        select: How segments are chosen.
        choice: From `Select.choose`; either of the first two axes may be 1.
        lse: Log of the sum of the exponentials of all keys, those of other groups too.
        several: Whether there are several segments; a single one is no choice at all.
        entropy: Also measure it, of what is attended to.
        lanes: How many such calls run side by side under an outer `vmap`.
    """

    def chunk(q: Rows, groups: Sequence[Keys], rows: Array, extra: tuple[Array, Array]) -> Attended:
        choice, lse = extra
        xs, es, top = exponentials(q, groups, rows)
        masses = masses_of(es)[0]
        factors = select.factors(choice, masses * jnp.exp(top[..., None] - lse))
        factors = jnp.where(several, factors, 1.0)
        es, masses = [es[0] * factors[..., None]], masses * factors
        kept = jnp.sum(masses, axis=-1)
        bound = jnp.where(kept > 0, kept, 1.0)
        out = mixed_values(es, groups) / bound[..., None]
        found = None
        if entropy:
            lost = jnp.sum(masses * safe_log(factors), axis=-1) / bound
            found = entropy_of(xs, es, top, [masses], bound)
            found = dataclasses.replace(found, total=found.total - lost)
        return Attended(out, jnp.where(kept > 0, top + jnp.log(bound), HIDDEN), found)

    return by_chunks(chunk, q, [segments], (choice, lse[..., None]), lanes)
