"""From a prompt's tokens to segments and a query."""

import dataclasses
import itertools
from collections.abc import Sequence

from pce_jax.layout import cut, group


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reading:
    """What is read for one request.

    Attributes:
        sink: Token ids of the shared prefix.
        segments: Token ids of each segment; one empty segment where there is no context.
        query: Token ids of the unsplit end of the prompt, at least one, and of what is scored.
        scored: How many tokens at the end of `query` are scored.
    """

    sink: tuple[int, ...]
    segments: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]
    scored: int = 0

    @property
    def context(self) -> tuple[tuple[int, ...], ...]:
        """What is encoded: readings that share it share the encoding."""
        return (self.sink, *self.segments)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cut:
    """How prompts are cut.

    Attributes:
        degree: Number of segments, P; prompts with fewer tokens or items have fewer.
        sink: Token ids of the method's shared prefix.
        shared: Token that moves from the front of a prompt into the shared prefix: the tokenizer's
            beginning-of-sequence token, which counts as a sink.
        query_tokens: Tokens at the end of a prompt that stay unsplit, where it is not cut at
            separators.
    """

    degree: int
    sink: tuple[int, ...] = ()
    shared: int | None = None
    query_tokens: int = 1

    def read(
        self, prompt: Sequence[int], scored: Sequence[int] = (), ends: Sequence[int] | None = None
    ) -> Reading:
        """Cut a prompt into segments of equal length, or at the ends of its items.

        Args:
            prompt: Token ids, at least one.
            scored: Token ids that continue it.
            ends: Number of tokens up to the end of each item, ascending. What stands behind the
                last end is the query; if nothing does, the last item is.
        """
        prompt, front = list(prompt), list(self.sink)
        if len(prompt) > 1 and prompt[0] == self.shared:
            front.insert(0, prompt.pop(0))
            ends = None if ends is None else [end - 1 for end in ends]
        if ends is None:
            start = max(len(prompt) - self.query_tokens, 0)
            items = [prompt[:start]]
        else:
            bounds = [0, *(end for end in ends if 0 < end < len(prompt))]
            start = bounds[-1]
            items = [prompt[a:b] for a, b in itertools.pairwise(bounds)]
        return Reading(
            sink=tuple(front),
            segments=tuple(map(tuple, self._segments([item for item in items if item]))),
            query=(*prompt[start:], *scored),
            scored=len(scored),
        )

    def _segments(self, items: list[list[int]]) -> list[list[int]]:
        if not items:
            return [[]]
        if len(items) == 1:
            return cut(items[0], min(self.degree, len(items[0])))
        return group(items, self.degree)


def item_ends(text: str, separator: str, starts: Sequence[int], shift: int = 0) -> list[int]:
    r"""Where items end that are followed by a separator, in tokens; separators belong to items.

    A token that reaches past a separator belongs to the item in front of it.

    Args:
        text: The prompt.
        separator: Such as `"\n\n"`; not empty.
        starts: First character of each of its tokens.
        shift: Tokens that were cut off at the front.

    Example:
        >>> item_ends("one|two|", "|", starts=[0, 3, 4, 7])
        [2, 4]
    """
    ends, place = [], text.find(separator)
    while place >= 0:
        place += len(separator)
        end = next((n for n, start in enumerate(starts) if start >= place), len(starts))
        ends.append(end - shift)
        place = text.find(separator, place)
    return ends
