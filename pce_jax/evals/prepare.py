"""From instances to token lists, and from those to batches of equal padded shape."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from pce_jax.errors import LayoutError, SettingsError
from pce_jax.evals.instance import Instance, Passage
from pce_jax.hub.tokenizer import encode_text
from pce_jax.layout import aligned, bucket, cut, group


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prepared:
    """An instance in tokens.

    Attributes:
        source: The instance.
        items: Token ids of the items; those of a passage's context are one item.
        query: Token ids of the query; of a passage, the unsplit token and the scored ones.
    """

    source: Instance | Passage
    items: tuple[tuple[int, ...], ...]
    query: tuple[int, ...]

    @property
    def context_tokens(self) -> int:
        """Tokens of the context without sink."""
        return sum(map(len, self.items))

    def segments(self, degree: int) -> list[list[int]]:
        """Token ids of each segment: a passage is cut anywhere, items stay whole.

        Raises:
            SettingsError: The degree is above the number of a passage's context tokens.
        """
        try:
            if isinstance(self.source, Passage):
                return cut(self.items[0], degree)
            return group(self.items, degree)
        except LayoutError as error:
            raise SettingsError(f"instance {self.source.id!r}: {error}") from error


@dataclasses.dataclass(frozen=True)
class Shape:
    """Padded sizes of an instance."""

    segments: int
    tokens: int
    query: int

    def covers(self, other: "Shape") -> bool:
        """Whether what has the other shape fits into this one."""
        return (
            self.segments >= other.segments
            and self.tokens >= other.tokens
            and self.query >= other.query
        )


def prepare(
    instances: Sequence[Instance] | Sequence[Passage], tokenizer: Any, task: str, chat: bool
) -> list[Prepared]:
    """Tokenise instances: every item on its own, without special tokens.

    Args:
        instances: From a task.
        tokenizer: A transformers tokenizer.
        task: Name of the task, for errors.
        chat: Wrap queries in the chat template; passages have no question and stay as they are.

    Raises:
        SettingsError: An instance has no context or query, or there is no chat template.
    """
    prepared = []
    for instance in instances:
        if isinstance(instance, Passage):
            query = instance.tokens[-instance.scored - 1 :]
            items = (instance.tokens[: -instance.scored - 1],)
        else:
            text = _chat(tokenizer, instance.query) if chat else instance.query
            query = tuple(encode_text(tokenizer, text))
            items = tuple(tuple(encode_text(tokenizer, item)) for item in instance.items)
        items = tuple(item for item in items if item)
        if not items or not query:
            what = "query" if items else "context"
            raise SettingsError(
                f"task {task!r}, instance {instance.id!r}: its {what} has no tokens. "
                "Leave it out of the data."
            )
        prepared.append(Prepared(source=instance, items=items, query=query))
    return prepared


def shapes(sizes: Sequence[tuple[int, int, int]], batch: int) -> list[Shape]:
    """The padded shape of each instance: few shapes, so that few programs are compiled.

    Sizes that share a bucket share the smallest shape that holds them all. What does not fill a
    batch moves on to the next shape that it fits into.

    Args:
        sizes: Segments, tokens of the longest segment, and query tokens of each instance.
        batch: Instances in a batch.
    """
    groups: dict[Shape, list[int]] = {}
    for number, (segments, tokens, query) in enumerate(sizes):
        place = Shape(bucket(segments, smallest=1), bucket(tokens), bucket(query))
        groups.setdefault(place, []).append(number)
    for small in sorted(groups, key=_volume):
        roomier = [one for one in groups if one != small and one.covers(small)]
        if len(groups[small]) < batch and roomier:
            groups[min(roomier, key=_volume)] += groups.pop(small)
    found: dict[int, Shape] = {}
    for members in groups.values():
        segments, tokens, query = (max(sizes[n][axis] for n in members) for axis in range(3))
        shape = Shape(segments, aligned(tokens), aligned(query))
        found |= dict.fromkeys(members, shape)
    return [found[number] for number in range(len(sizes))]


def _volume(shape: Shape) -> tuple[int, int]:
    return shape.segments * shape.tokens, shape.query


def _chat(tokenizer: Any, query: str) -> str:
    if not tokenizer.chat_template:
        raise SettingsError(
            "chat = true, but the model has no chat template, so it is likely no chat model. "
            "Leave it out."
        )
    try:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": query}], tokenize=False, add_generation_prompt=True
        )
    except Exception as error:  # templates are programs, and fail in every way
        raise SettingsError(
            f"the model's chat template fails ({type(error).__name__}: {error}). Leave out chat."
        ) from error
