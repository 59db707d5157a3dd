r"""Attention whose heads, and whose segments, lie on several devices.

Heads need nothing of each other. Of the segments, each device attends to those that it holds as if
there were no others; what all of them found becomes one by the log of the sum of exponentials, in
float32. So queries, mixed values and scores travel; keys and values never do::

    every device    sink, tail   ----------------+
    device 1        segments 1 2 --+             +-- out, lse, entropy
    device 2        segments 3 4 --+-- merged ---+
    device 3        segments 5 6 --+
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from pce_jax.models.sharding import Axis, Rules, mesh_in_use, shard
from pce_jax.selection import Select

from .keys import Keys
from .result import Attended, Entropy, joined, share_of
from .selected import Attend, Selection, attend_reweighed, gather, renormalised, survey


@dataclasses.dataclass(frozen=True)
class Spread:
    """What one device knows of the others: axes of the mesh.

    Attributes:
        heads: That heads lie on.
        segments: That segments lie on; none if there is only one segment.
    """

    heads: tuple[str, ...]
    segments: tuple[str, ...]

    def merged(self, own: Attended) -> Attended:
        """What all devices found of their own segments, as one."""
        if not self.segments:
            return own
        lse = self.whole(own.lse)
        out, entropy = jax.lax.psum(share_of(own, lse), self.segments)
        return Attended(out, lse, entropy)

    def whole(self, lse: Array) -> Array:
        """The log of all devices' sums of exponentials."""
        if not self.segments:
            return lse
        top = jax.lax.pmax(jax.lax.stop_gradient(lse), self.segments)
        return top + jnp.log(jax.lax.psum(jnp.exp(lse - top), self.segments))

    def every(self, scores: Float[Array, "queries heads segments"]) -> Array:
        """The scores of all devices."""
        for axis, names in ((1, self.heads), (2, self.segments)):
            if names:
                scores = jax.lax.all_gather(scores, names, axis=axis, tiled=True)
        return scores

    def own(self, choice: Array, heads: int, segments: int) -> Array:
        """This device's part of a choice for all; the first two axes may have size 1."""
        for axis, names, size in ((1, self.heads, heads), (2, self.segments, segments)):
            if names and choice.shape[axis] > 1:
                first = jax.lax.axis_index(names) * size
                choice = jax.lax.dynamic_slice_in_dim(choice, first, size, axis)
        return choice


def attend_across(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    selection: Selection | None,
    attend: Attend,
    rules: Rules,
    *,
    entropy: bool,
    lanes: int,
) -> Attended:
    """Attention, with or without selection, of arrays that lie on a mesh.

    Args:
        q: Rotated queries.
        groups: As in `pce_jax.attention.attention`.
        selection: What to choose of the segments.
        attend: What each device attends with.
        rules: How the arrays lie.
        entropy: Also measure it.
        lanes: How many such calls run side by side under an outer `vmap`.
    """

    def local(spread: Spread, q: Array, groups: Sequence[Keys], extra: Any) -> Attended:
        found = of_device(spread, q, groups, extra)
        return dataclasses.replace(found, out=found.out.astype(q.dtype))

    def of_device(spread: Spread, q: Array, groups: Sequence[Keys], extra: Any) -> Attended:
        look = functools.partial(attend, entropy=entropy, lanes=lanes)
        place = _segments_of(groups)
        if place is None:
            return look(q, groups)
        rest = look(q, [keys for number, keys in enumerate(groups) if number != place])
        if selection is None:
            return joined(spread.merged(look(q, [groups[place]])), rest)
        valid, lengths, choice = extra
        here = dataclasses.replace(selection, valid=valid, choice=choice)
        return _selected(spread, q, groups[place], rest, here, lengths, look, entropy, lanes)

    extra = None
    if selection is not None:
        lengths = groups[-2].counts
        extra = [selection.valid, lengths, selection.choice]
    mixed: Any = ("heads", None, None)
    each: Any = ("heads", None)
    out = Attended(mixed, each, Entropy(each, each) if entropy else None)
    return _on_all(local, q, groups, extra, out, rules)


def survey_across(
    q: Float[Array, "heads queries head_dim"],
    groups: Sequence[Keys],
    select: Select,
    rules: Rules,
    lanes: int,
) -> Float[Array, "queries heads segments"]:
    """Scores of all segments for all heads, before any selection, of arrays on a mesh."""

    def local(spread: Spread, q: Array, groups: Sequence[Keys], extra: None) -> Array:
        place = _segments_of(groups)
        assert place is not None
        rest = [keys for number, keys in enumerate(groups) if number != place]
        _, lse = survey(q, rest, select, lanes, place=0)
        return _scores(spread, q, groups[place], lse, select, lanes)[0]

    return _on_all(local, q, groups, None, (None, None, None), rules)


def _scores(
    spread: Spread, q: Array, segments: Keys, rest: Array, select: Select, lanes: int
) -> tuple[Array, Array]:
    """Scores of all segments, and the log of the sum of the exponentials of all keys."""
    scores, own = survey(q, [segments], select, lanes, place=0)
    lse = jnp.logaddexp(spread.whole(own), jax.lax.stop_gradient(rest))
    return spread.every(scores * jnp.exp(own - lse).T[..., None]), lse


def _selected(
    spread: Spread,
    q: Array,
    segments: Keys,
    rest: Attended,
    selection: Selection,
    lengths: Array,
    look: Attend,
    entropy: bool,
    lanes: int,
) -> Attended:
    """Attention to what is chosen of all devices' segments, and to the rest."""
    select, choice = selection.select, selection.choice
    scores, lse = _scores(spread, q, segments, rest.lse, select, lanes)
    if choice is None:
        choice = select.choose(scores, lengths, selection.valid)
    own = spread.own(choice, q.shape[0], segments.kv.k.shape[1])
    if selection.shared:
        found = look(q, [gather(segments, own[0, 0], select.top_k)])
    else:
        several = jnp.sum(lengths > 0) > 1
        found = attend_reweighed(
            q, segments, select, own.swapaxes(0, 1), lse, several, entropy=entropy, lanes=lanes
        )
    return renormalised(joined(spread.merged(found), rest), lse)


def _segments_of(groups: Sequence[Keys]) -> int | None:
    """Which group holds a context's segments: the one that says how long each is."""
    found = [number for number, keys in enumerate(groups) if keys.lengths is not None]
    return found[0] if found else None


def _on_all(
    local: Callable[..., Any],
    q: Array,
    groups: Sequence[Keys],
    extra: Any,
    out: Any,
    rules: Rules,
) -> Any:
    """Run `local` on every device, on its part of the arrays.

    Args:
        local: Of a `Spread`, queries, groups, and `extra`.
        q: Queries.
        groups: The keys. A number where one starts stays a number: it says more than an array.
        extra: A list of arrays that all devices have in full, or `None`.
        out: What the axes of the result mean, a tuple for each array.
        rules: How the arrays lie.
    """
    mesh, place = mesh_in_use(), _segments_of(groups)
    several = place is not None and groups[place].kv.k.shape[1] > 1
    spread = Spread(rules.on("heads", mesh), rules.on("segment", mesh) if several else ())
    starts = [keys.start if isinstance(keys.start, int) else None for keys in groups]

    def filled(keys: Keys, start: int | None) -> Keys:
        return keys if start is None else dataclasses.replace(keys, start=start)

    def on_one(q: Array, groups: Sequence[Keys], extra: Any) -> Any:
        return local(spread, q, [filled(*pair) for pair in zip(groups, starts, strict=True)], extra)

    arrays = [q, [_without_number(keys) for keys in groups], extra]
    axes = [
        ("heads", None, None),
        [_axes(keys, several and number == place) for number, keys in enumerate(arrays[1])],
        jax.tree.map(lambda x: (None,) * jnp.ndim(x), extra),
    ]
    arrays = jax.tree.map(lambda a, x: shard(x, a, rules), axes, arrays, is_leaf=_is_axes)

    def specs(axes: Any) -> Any:
        return jax.tree.map(lambda a: rules.spec(a, mesh), axes, is_leaf=_is_axes)

    mapped = jax.shard_map(
        on_one, in_specs=tuple(specs(axes)), out_specs=specs(out), check_vma=False
    )
    return mapped(*arrays)


def _without_number(keys: Keys) -> Keys:
    return dataclasses.replace(keys, start=None) if isinstance(keys.start, int) else keys


def _axes(keys: Keys, several: bool) -> Keys:
    """What the axes of a group's arrays mean."""
    segment: Axis | None = "segment" if several else None
    names = {4: ("kv_heads", segment, None, None), 3: ("kv_heads", segment, None)}
    one: dict[str, Any] = {"lengths": (segment,), "start": (), "sharpness": ("heads",)}
    given = {name: axes for name, axes in one.items() if getattr(keys, name) is not None}
    return Keys(kv=jax.tree.map(lambda x: names[x.ndim], keys.kv), **given)


def _is_axes(x: Any) -> bool:
    return isinstance(x, tuple)
