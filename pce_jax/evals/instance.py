"""What a task is made of: things to read and answer, and how an answer is scored."""

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol


@dataclasses.dataclass(frozen=True, kw_only=True)
class Instance:
    """A context of whole items with a question.

    Attributes:
        id: Unique in its task, and the same whenever the task is made from the same config.
        items: Units that are never cut (demonstrations, documents, sentences), in order; each is
            tokenised on its own.
        query: Text behind the context, which the answer continues.
        answers: Accepted answers, or all the parts that an answer must contain.
    """

    id: str
    items: tuple[str, ...]
    query: str
    answers: tuple[str, ...]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Passage:
    """A stretch of a text whose end is to be predicted (the paper's language-modelling task).

    Attributes:
        id: As in `Instance`.
        tokens: Token ids: the context, one unsplit token that starts the query, and the scored
            tokens.
        scored: Number of tokens to score at the end.
    """

    id: str
    tokens: tuple[int, ...]
    scored: int


class Task(Protocol):
    """A named set of instances with a metric.

    Attributes:
        name: As given in the config; names a folder of results.
        metric: Key of the headline number in what `score` returns (`nll` for passages).
        max_new_tokens: Length of an answer; generation runs to it, as in the paper (0 for
            passages).
    """

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def metric(self) -> str: ...  # noqa: D102

    @property
    def max_new_tokens(self) -> int: ...  # noqa: D102

    def instances(self, tokenizer: Any) -> Sequence[Instance] | Sequence[Passage]:
        """Everything to read, in a fixed order.

        Args:
            tokenizer: A transformers tokenizer.

        Raises:
            SettingsError: The data cannot be read; the message names file and line.
        """
        ...

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        """Score an answer, each metric between 0 and 1.

        Args:
            instance: What was asked.
            output: The generated text.
        """
        ...
