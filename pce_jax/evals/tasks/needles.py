"""Hidden numbers (RULER's needles in a haystack): made here, or read from its files.

    A special magic number is hidden within the following text. ...
    One of the special magic numbers for quiet-harbor is: 4059873.
    ...

A text is cut at every full stop; these units are never cut further.
"""

import dataclasses
import re
import uuid
from collections.abc import Iterator, Sequence

import numpy as np

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Instance
from pce_jax.evals.tasks.draws import stream
from pce_jax.evals.tasks.sources import Record, read_text, records
from pce_jax.evals.tasks.words import ADJECTIVES, NOUNS

_NEEDLE = "One of the special magic {kind}s for {key} is: {value}."
_HIDDEN = {
    False: "A special magic {kind} is hidden within the {where} text.",
    True: "Some special magic {kind}s are hidden within the {where} text.",
}
_MEMORISE = " Make sure to memorize it. I will quiz you about the {kinds} afterwards.\n"
_ASKED = {
    False: " The special magic {kind} for {key} mentioned in the provided text is",
    True: " The special magic {kind}s for {key} mentioned in the provided text are",
}
_RULER_QUESTION = re.compile(
    r"\n[^\n]*\bspecial magic \w+ for (?P<key>[^\n]+?) mentioned in the provided text\?[^\n]*\s*$"
)
_FILLER = (
    "The grass is green.",
    "The sky is blue.",
    "The sun is yellow.",
    "Here we go.",
    "There and back again.",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needles:
    """What is hidden and what is asked for.

    Attributes:
        kind: `number` or `uuid`; a UUID's key is one too.
        values: Values of the key that is asked for; several are asked for in the plural.
        among_others: Whether the rest of the text is needles too, of other keys.
    """

    kind: str = "number"
    values: int = 1
    among_others: bool = True

    def query(self, key: str) -> str:
        """The question for a key, as in the paper's code."""
        plural = self.values > 1
        hidden = _HIDDEN[plural].format(kind=self.kind, where="above")
        return "\n\n" + hidden + _ASKED[plural].format(kind=self.kind, key=key)

    def header(self) -> str:
        """What RULER says before the text."""
        plural = self.values > 1
        kinds = self.kind + "s" * plural
        hidden = _HIDDEN[plural].format(kind=self.kind, where="following")
        return hidden + _MEMORISE.format(kinds=kinds)


def cut_at_stops(text: str) -> tuple[str, ...]:
    """Units that end in a full stop, as the paper's code cuts; blank ones are dropped.

    Example:
        >>> cut_at_stops("One. Two. Three")
        ('One.', ' Two.', ' Three.')
    """
    return tuple(unit + "." for unit in text.split(".") if unit.strip())


def generate(
    needles: Needles, id_: str, size: int, position: float | None, background: str, seed: int
) -> Instance:
    """An instance of `size` lines or sentences.

    Args:
        needles: What is hidden.
        id_: Of the instance; with `seed` it settles every draw.
        size: Units without the header: needles, or sentences of the background and needles.
        position: Depth of the (first) asked-for needle between 0 and 1; drawn with `None`.
        background: Text around needles that stand alone; empty for RULER's noise sentences.
        seed: Of all draws.
    """
    random = stream(seed, needles.kind, needles.values, id_)
    rest = size - needles.values
    values = _values(random, size, needles.kind)  # all different, as are the keys
    key, *other_keys = _keys(random, 1 + rest, needles.kind)
    needle = _NEEDLE.format
    hidden = (needle(kind=needles.kind, key=key, value=value) for value in values)
    if needles.among_others:
        pairs = zip(other_keys, values[needles.values :], strict=True)
        others = [needle(kind=needles.kind, key=other, value=value) for other, value in pairs]
    else:
        others = _sentences(random, background, rest)
    places, rest_of_text = _places(random, size, needles.values, position), iter(others)
    lines = [next(hidden if place in places else rest_of_text) for place in range(size)]
    text = needles.header() + ("\n" if needles.among_others else " ").join(lines)
    return Instance(
        id=id_,
        items=cut_at_stops(text),
        query=needles.query(key),
        answers=tuple(values[: needles.values]),
    )


def _places(
    random: np.random.RandomState, size: int, count: int, position: float | None
) -> set[int]:
    """Where the asked-for needles stand; the first one at `position`, if that is given."""
    if position is None:
        return set(random.permutation(size)[:count].tolist())
    first = round(position * (size - count))
    behind = random.permutation(size - 1 - first)[: count - 1] + first + 1
    return {first, *behind.tolist()}


def read(needles: Needles, source: str) -> Iterator[Instance]:
    """Instances of a RULER file (`input`, `outputs`) or HELMET's form of it (`context`, `query`).

    Raises:
        SettingsError: It cannot be read, a row is malformed, or an answer is not in the text.
    """
    for record in records(source):
        text, key = _text_and_key(record)
        answers = record.get("answer", "outputs")
        answers = [answers] if isinstance(answers, str) else answers
        if not isinstance(answers, list) or not answers:
            raise record.error(f"the answers must be a list of texts, they are {answers!r:.60}.")
        for answer in answers:
            if not isinstance(answer, str) or answer not in text:
                raise record.error(f"the answer {answer!r:.60} does not stand in the text.")
            if answer.isdigit() == (needles.kind == "uuid"):
                raise record.error(f"the answer {answer!r:.60} is no {needles.kind}. Set variant.")
        if len(answers) > 1 and needles.values == 1:
            raise record.error(
                f"there are {len(answers)} answers where one is asked for. Is it multivalue?"
            )
        yield Instance(
            id=str(record.number),
            items=cut_at_stops(text),
            query=needles.query(key),
            answers=tuple(answers),
        )


def _text_and_key(record: Record) -> tuple[str, str]:
    if "input" not in record.values:
        return record.text("context"), record.text("query")
    text = record.text("input")
    found = _RULER_QUESTION.search(text)
    if found is None:
        raise record.error(
            '"input" does not end in a question for a special magic number or uuid. Name a file of '
            "RULER's niah tasks."
        )
    return text[: found.start()], found["key"]


def background_text(sources: Sequence[str]) -> str:
    """The texts of files behind each other, with every stretch of blanks as one space."""
    return " ".join(" ".join(read_text(source).split()) for source in sources)


def _sentences(random: np.random.RandomState, background: str, count: int) -> list[str]:
    """Consecutive sentences of the background from a drawn place on, or noise."""
    if not background:
        return [_FILLER[index % len(_FILLER)] for index in range(count)]
    sentences = [unit.strip() for unit in cut_at_stops(background)]
    if len(sentences) < count:
        raise SettingsError(
            f"the background has {len(sentences)} sentences, {count} are needed. Lower size or "
            "name longer texts."
        )
    first = random.randint(len(sentences) - count + 1)
    return sentences[first : first + count]


def _keys(random: np.random.RandomState, count: int, kind: str) -> list[str]:
    """Different keys."""
    if kind == "uuid":
        return _values(random, count, kind)
    pairs = random.permutation(len(ADJECTIVES) * len(NOUNS))[:count]
    return [f"{ADJECTIVES[pair // len(NOUNS)]}-{NOUNS[pair % len(NOUNS)]}" for pair in pairs]


def _values(random: np.random.RandomState, count: int, kind: str) -> list[str]:
    """Different values: numbers of seven digits, or UUIDs."""
    found: dict[str, None] = {}
    while len(found) < count:
        found[_uuid(random) if kind == "uuid" else str(random.randint(10**6, 10**7))] = None
    return list(found)


def _uuid(random: np.random.RandomState) -> str:
    return str(uuid.UUID(bytes=random.bytes(16), version=4))
