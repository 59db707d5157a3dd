"""Controls: the same tokens laid out in ways that tell causes apart (paper, section 5).

On the host, before anything is encoded. Those that cut a stream of tokens return token lists for
`from_segments`, so that they can be combined; the others change a context.
"""

import dataclasses
from collections.abc import Collection, Sequence
from typing import Any, TypeVar

import numpy as np

from pce_jax.cache import ContextCache
from pce_jax.errors import LayoutError
from pce_jax.layout import SegmentedContext, from_segments

Emptied = TypeVar("Emptied", SegmentedContext, ContextCache)


def drop(context: Emptied) -> Emptied:
    """Empty every segment: what does the query owe to the context at all?

    The sink stays. Of a context, the query then starts right behind the sink; of an encoded cache
    it stays where it was.

    Example:
        >>> empty = pce.encode(model, pce.analysis.drop(context))
        >>> int(empty.query_start), int(pce.analysis.drop(cache).query_start)
        (0, 6)
    """
    return dataclasses.replace(context, lengths=np.zeros_like(context.lengths))


def move_to_query(
    items: Sequence[Sequence[int]] | Sequence[int], query: Sequence[int], share: float
) -> tuple[list[Any], list[int]]:
    """Take the last share of a context out of the segments and put it in front of the query.

    Args:
        items: The context: token ids, or items of them that stay whole (documents,
            demonstrations).
        query: Token ids of the query.
        share: Between 0 and 1; of tokens or of items, rounded to whole ones.

    Returns:
        What stays, for `split` or `group`, and the longer query.

    Raises:
        LayoutError: `share` is not between 0 and 1, or leaves nothing.

    Example:
        >>> pce.analysis.move_to_query([1, 2, 3, 4], [9], share=0.5)
        ([1, 2], [3, 4, 9])
        >>> pce.analysis.move_to_query([[1, 2], [3]], [9], share=0.5)
        ([[1, 2]], [3, 9])
    """
    if not 0 <= share <= 1:
        raise LayoutError(f"the share to move into the query must be from 0 to 1, got {share}")
    stay = len(items) - int(len(items) * share + 0.5)
    if not stay:
        raise LayoutError(
            f"a share of {share} of {len(items)} moves the whole context into the query, and there "
            "is nothing left to encode. Use a lower share, or full attention."
        )
    moved: list[int] = []
    for item in items[stay:]:
        moved += item if isinstance(item, Sequence) else [item]
    return list(items[:stay]), moved + list(query)


def overlapping(tokens: Sequence[int], degree: int, times: int) -> list[list[int]]:
    """Cut a stream into segments as long as those of `split`, but overlapping.

    A new one starts every ceil(n / degree) // times tokens, until one reaches the end.

    Args:
        tokens: Token ids of the context.
        degree: Sets the segments' length; about `times` as many come out.
        times: How many segments a token is in, but near the ends; 1 is no overlap.

    Raises:
        LayoutError: `degree` or `times` do not fit the number of tokens.

    Example:
        >>> pce.analysis.overlapping([1, 2, 3, 4, 5, 6, 7, 8], degree=2, times=2)
        [[1, 2, 3, 4], [3, 4, 5, 6], [5, 6, 7, 8]]
    """
    if not 1 <= degree <= len(tokens):
        raise LayoutError(
            f"degree must be from 1 to the context's {len(tokens)} tokens, got {degree}"
        )
    size = -(-len(tokens) // degree)
    if not 1 <= times <= size:
        raise LayoutError(
            f"segments of {size} tokens can overlap from 1 to {size} times, got {times}"
        )
    step = size // times
    last = max(len(tokens) - size, 0)
    starts = range(0, last + step, step)
    return [list(tokens[start : start + size]) for start in starts]


def separators(tokenizer: Any, tokens: Sequence[int], text: str = "\n") -> set[int]:
    r"""The ids among `tokens` whose text holds `text`, for `cut_behind`.

    Example:
        >>> tokens = tokenizer.encode("Ada wrote code.\nBob baked.\n\nCleo sang.")
        >>> ends = pce.analysis.separators(tokenizer, tokens)
        >>> [tokenizer.decode(piece) for piece in pce.analysis.cut_behind(tokens, ends)]
        ['Ada wrote code.\n', 'Bob baked.\n\n', 'Cleo sang.']
    """
    return {token for token in set(tokens) if text in tokenizer.decode([token])}


def cut_behind(tokens: Sequence[int], ends: Collection[int]) -> list[list[int]]:
    """Cut a stream behind every run of separators; `group` puts the pieces into segments.

    Args:
        tokens: Token ids of the context.
        ends: Ids of the separators, from `separators`.

    Raises:
        LayoutError: There are no tokens.

    Example:
        >>> pieces = pce.analysis.cut_behind([1, 2, 0, 0, 3, 0, 4], ends={0})
        >>> pieces, pce.group(pieces, degree=2)
        ([[1, 2, 0, 0], [3, 0], [4]], [[1, 2, 0, 0, 3, 0], [4]])
    """
    if not len(tokens):
        raise LayoutError("the context is empty: there is nothing to cut. Give at least one token.")
    pieces: list[list[int]] = []
    behind = True
    for token in tokens:
        if (behind and token not in ends) or not pieces:
            pieces.append([])
        pieces[-1].append(token)
        behind = token in ends
    return pieces


def same_sizes(pieces: Sequence[Sequence[int]], seed: int) -> list[list[int]]:
    """The control of `cut_behind`: the same stream cut to the same sizes in another order.

    Example:
        >>> pce.analysis.same_sizes([[1, 2, 0, 0], [3, 0], [4]], seed=0)
        [[1], [2, 0, 0, 3], [0, 4]]
    """
    stream = [token for piece in pieces for token in piece]
    sizes = np.random.default_rng(seed).permutation([len(piece) for piece in pieces])
    ends = np.cumsum(sizes)
    return [stream[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def shuffle(context: SegmentedContext, seed: int) -> SegmentedContext:
    """Put the segments into another order.

    With shared positions only full attention and `sequential` positions should notice.

    Example:
        >>> context = pce.from_segments([[1, 2, 3], [4, 5], [6]])
        >>> pce.analysis.shuffle(context, seed=0).lengths
        array([1, 3, 2], dtype=int32)
    """
    pieces = unpack(context)
    order = np.random.default_rng(seed).permutation(len(pieces))
    return from_segments([pieces[number] for number in order], np.asarray(context.sink).tolist())


def repeat_sink(context: SegmentedContext, times: int) -> SegmentedContext:
    """Repeat the shared prefix: does its length matter?

    Raises:
        LayoutError: `times` is below 1, or there is no sink.

    Example:
        >>> context = pce.from_segments([[1, 2, 3]], sink=[8, 9])
        >>> pce.analysis.repeat_sink(context, 2).sink
        array([8, 9, 8, 9], dtype=int32)
    """
    if times < 1:
        raise LayoutError(f"the sink must be repeated at least once, got {times}")
    if not context.sink.shape[0]:
        raise LayoutError("the context has no sink to repeat: lay it out with one.")
    return dataclasses.replace(context, sink=np.tile(context.sink, times))


def unpack(context: SegmentedContext) -> list[list[int]]:
    """The segments' token ids without padding: the reverse of `from_segments`.

    Example:
        >>> pce.analysis.unpack(pce.from_segments([[1, 2, 3], [4]]))
        [[1, 2, 3], [4]]
    """
    rows = zip(np.asarray(context.segments), np.asarray(context.lengths), strict=True)
    return [row[:length].tolist() for row, length in rows if length]
