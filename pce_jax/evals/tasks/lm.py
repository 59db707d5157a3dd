"""Language modelling: predict the end of a window of text (the paper's LM task).

    [ context: length - 1 - scored | one unsplit token | scored ]

The context is cut into segments; the query holds the rest.
"""

import dataclasses
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from pce_jax.demo.text import python_topics
from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Instance, Passage
from pce_jax.evals.tasks.draws import keep
from pce_jax.evals.tasks.sources import is_hugging_face, read_text, records
from pce_jax.hub.tokenizer import encode_text
from pce_jax.selection import Dim

PYTHON_TOPICS = "python:topics"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LmTask:
    """Non-overlapping windows of exactly `length` tokens; what is left of a text is dropped.

    The paper scores 1024 of 4096, 8192 or 16384 tokens; the defaults suit a small model.

    Attributes:
        name: Names the task in results.
        files: Text files, `.jsonl` or `.json` with a `text` in each row (each may end in `.gz`), or
            Hugging Face datasets as `hf:OWNER/NAME[/CONFIG]:SPLIT`, or `python:topics`: prose from
            the documentation that comes with Python.
        length: Tokens in a window, N.
        scored: Tokens at its end that are scored.
        limit: Windows to keep; all with `None`.
        shuffle_seed: Shuffle all windows before `limit` keeps the first; else they stay in order.
    """

    name: str
    files: tuple[str, ...]
    length: int = 1024
    scored: int = 256
    limit: int | None = None
    shuffle_seed: int | None = None

    path_fields: ClassVar[tuple[str, ...]] = ("files",)
    sink_text: ClassVar[str] = (
        "Given the following partial context, predicting the next sequence of words:\n\n"
    )
    aggregate: ClassVar[frozenset[Dim]] = frozenset()
    metric: ClassVar[str] = "nll"
    max_new_tokens: ClassVar[int] = 0

    def __post_init__(self) -> None:
        """Checks what has no meaning.

        Raises:
            SettingsError: There are no files, or the window has no room for context and scored
                tokens.
        """
        if not self.files:
            raise SettingsError(f"task {self.name!r}: files is empty. Name at least one text file.")
        if self.scored < 1 or self.length < self.scored + 2:
            raise SettingsError(
                f"task {self.name!r}: length {self.length} and scored {self.scored}: at least one "
                "token must be scored, and two more are needed, one of context and one unsplit."
            )

    def instances(self, tokenizer: Any) -> list[Passage]:
        """The windows in order; see `Task`.

        Raises:
            SettingsError: A file cannot be read, or no text is as long as a window.
        """
        lengths: list[int] = []
        windows = self._windows(tokenizer, lengths)
        if self.shuffle_seed is None:  # read no further than needed
            passages = list(itertools.islice(windows, self.limit))
        else:
            passages = keep(list(windows), self.limit, self.shuffle_seed)
        if not passages and self.limit != 0:
            raise SettingsError(
                f"task {self.name!r}: none of its {len(lengths)} texts has the {self.length} "
                f"tokens of a window (length); the longest has {max(lengths, default=0)}. Use a "
                "shorter length or longer texts."
            )
        return passages

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        """Passages are scored by their likelihood, so there is nothing to do here."""
        return {}

    def _windows(self, tokenizer: Any, lengths: list[int]) -> Iterator[Passage]:
        for number, source in enumerate(self.files):
            for row, text in enumerate(_texts(source)):
                tokens = encode_text(tokenizer, text)
                lengths.append(len(tokens))
                for window in range(len(tokens) // self.length):
                    start = window * self.length
                    yield Passage(
                        id=f"{number}:{Path(source).name}:{row}:{window}",
                        tokens=tuple(tokens[start : start + self.length]),
                        scored=self.scored,
                    )


def _texts(source: str) -> Iterator[str]:
    if source == PYTHON_TOPICS:
        yield from python_topics().values()
    elif is_hugging_face(source) or source.removesuffix(".gz").endswith((".jsonl", ".json")):
        for record in records(source):
            text = record.get("text")
            if not isinstance(text, str):
                raise record.error(f'"text" must be text, it is {text!r:.60}.')
            yield text
    else:
        yield read_text(source)
