"""Retrieval-augmented question answering: a question behind many documents."""

import dataclasses
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Instance
from pce_jax.evals.metrics import normalise, raw_or_parsed
from pce_jax.evals.tasks.answers import HELMET_SINK, with_last_line
from pce_jax.evals.tasks.draws import keep, stream
from pce_jax.evals.tasks.sources import Record, records
from pce_jax.selection import Dim

_QUERY = (
    "Use the given documents to write a concise and short answer to the question. Write your "
    "answer in the following format:\nAnswer: [answer]\n\nQuestion: {question}\nAnswer:"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Document:
    """A passage.

    Attributes:
        title: Of the article that it is from.
        text: The passage.
        gold: Marked as the source of the answer (`isgold`, else `has_answer`).
    """

    title: str
    text: str
    gold: bool = dataclasses.field(default=False, compare=False)

    @property
    def item(self) -> str:
        """As it stands in the context."""
        return f"Document (Title: {self.title}): {self.text}\n\n"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """A row of the data.

    Attributes:
        id: Position in its file.
        text: The question.
        answers: Accepted answers.
        documents: Its passages, in order.
        where: File and line.
    """

    id: str
    text: str
    answers: tuple[str, ...]
    documents: tuple[Document, ...]
    where: str


@dataclasses.dataclass(frozen=True, kw_only=True)
class RagTask:
    """Documents, a question, and whether an accepted answer stands in the output.

    Attributes:
        name: Names the task in results.
        file: JSONL or JSON (may end in `.gz`), or a Hugging Face dataset. Each row has `question`
            (KILT: `input`), `answers` (PopQA: `possible_answers`, KILT: `output`) and `ctxs` with
            `title` and `text`.
        documents: Documents an instance has: its gold ones, and distractors drawn from the other
            rows. With `None` the row's own documents are taken as they are, which is the protocol
            for HELMET's files.
        gold_position: Place of the first gold document, from 0; drawn with `None`. Only with
            `documents`.
        popularity: Keep rows whose log10 of `s_pop` is below this (PopQA; the paper uses 3).
        seed: Of distractors and gold positions.
        limit: Questions to keep; all with `None`.
        shuffle_seed: Shuffle of the questions before `limit`; `None` keeps their order.
        max_new_tokens: Length of an answer.
    """

    name: str
    file: str
    documents: int | None = None
    gold_position: int | None = None
    popularity: float | None = None
    seed: int = 42
    limit: int | None = 100
    shuffle_seed: int | None = 42
    max_new_tokens: int = 20

    path_fields: ClassVar[tuple[str, ...]] = ("file",)
    sink_text: ClassVar[str] = HELMET_SINK
    aggregate: ClassVar[frozenset[Dim]] = frozenset({"head", "token"})
    metric: ClassVar[str] = "substring_exact_match"

    def __post_init__(self) -> None:
        """Checks the place of the gold documents.

        Raises:
            SettingsError: It is outside the documents.
        """
        if self.gold_position is not None and not 0 <= self.gold_position < (self.documents or 0):
            raise SettingsError(
                f"task {self.name!r}: gold_position {self.gold_position} is not among its "
                f"documents ({self.documents}). Set documents, and count from 0."
            )

    def instances(self, tokenizer: Any = None) -> list[Instance]:
        """The questions in order; see `Task`.

        Raises:
            SettingsError: The file cannot be read, a row is malformed, no row is left, or there are
                too few other documents.
        """
        questions = [_question(record) for record in records(self.file) if self._wanted(record)]
        if not questions:
            raise SettingsError(
                f"task {self.name!r}: {self.file} has no questions"
                + (
                    f" with popularity below {self.popularity}."
                    if self.popularity is not None
                    else "."
                )
            )
        kept = keep(questions, self.limit, self.shuffle_seed)
        if self.documents is None:
            contexts: Iterator[Sequence[Document]] = (question.documents for question in kept)
        else:
            pool = _pool(questions)
            contexts = (self._among_others(question, self.documents, pool) for question in kept)
        return [
            Instance(
                id=question.id,
                items=tuple(document.item for document in context),
                query=_QUERY.format(question=question.text),
                answers=question.answers,
            )
            for question, context in zip(kept, contexts, strict=True)
        ]

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        """Best of the raw and the parsed answer; see `Task`."""
        return raw_or_parsed(with_last_line(instance, output), instance.answers, "Answer:")

    def _wanted(self, record: Record) -> bool:
        if self.popularity is None:
            return True
        views = record.get("s_pop")
        if not isinstance(views, int | float) or views <= 0:
            raise record.error(f'"s_pop" must be a number above 0, it is {views!r:.60}.')
        return math.log10(views) < self.popularity

    def _among_others(
        self, question: Question, count: int, pool: dict[Document, str]
    ) -> list[Document]:
        """The question's gold documents among distractors without any of its answers."""
        marked = [document for document in question.documents if document.gold]
        gold = marked or list(question.documents)
        first = 0 if self.gold_position is None else self.gold_position
        if first + len(gold) > count:
            raise SettingsError(
                f"{question.where}: {len(gold)} gold documents from place {first} do not fit into "
                f"{count} documents. Raise documents or lower gold_position."
            )
        random = stream(self.seed, question.id)
        others = _without(pool, question, random.permutation(len(pool)).tolist(), count - len(gold))
        if len(gold) + len(others) < count:
            raise SettingsError(
                f"{question.where}: {count - len(gold)} distractors are needed, and the other rows "
                f"have {len(others)} documents without an answer. Lower documents (now {count})."
            )
        places = (
            set(random.permutation(count)[: len(gold)].tolist())
            if self.gold_position is None
            else set(range(first, first + len(gold)))
        )
        rest = iter(others)
        remaining = iter(gold)
        return [next(remaining) if place in places else next(rest) for place in range(count)]


def _without(
    pool: dict[Document, str], question: Question, order: Sequence[int], count: int
) -> list[Document]:
    """The first `count` documents of the pool, in this order, that do not answer the question."""
    documents = list(pool)
    own = set(question.documents)
    answers = [normal for normal in map(normalise, question.answers) if normal]
    found: list[Document] = []
    for index in order:
        if len(found) == count:
            break
        document = documents[index]
        if document not in own and not any(answer in pool[document] for answer in answers):
            found.append(document)
    return found


def _pool(questions: Sequence[Question]) -> dict[Document, str]:
    """Every document once, as a distractor, with its normal form."""
    return {
        document: normalise(f"{document.title} {document.text}")
        for question in questions
        for document in question.documents
    }


def _question(record: Record) -> Question:
    documents = record.get("ctxs")
    if not isinstance(documents, list) or not documents:
        raise record.error('"ctxs" must be a list of documents, and not empty.')
    return Question(
        id=str(record.number),
        text=record.text("question", "input"),
        answers=_answers(record),
        documents=tuple(_document(record, number, one) for number, one in enumerate(documents)),
        where=record.where,
    )


def _document(record: Record, number: int, values: Any) -> Document:
    where = f"{record.where}, ctxs[{number}]"
    if not isinstance(values, dict):
        raise SettingsError(f"{where}: a document must be an object, this is {values!r:.60}.")
    inner = Record(where=where, number=number, values=values)
    return Document(
        title=inner.text("title", "wikipedia_title"),
        text=inner.text("text", "contents"),
        gold=bool(values.get("isgold", values.get("has_answer", values.get("hasanswer")))),
    )


def _answers(record: Record) -> tuple[str, ...]:
    """Accepted answers from a list, a list of lists, one text, a JSON text, or KILT's objects."""
    value = record.get("answers", "answer", "possible_answers", "output")
    if isinstance(value, str) and value is record.values.get("possible_answers"):
        try:
            value = json.loads(value)
        except json.JSONDecodeError as error:
            raise record.error(f'"possible_answers" is malformed JSON: {error}.') from error
    flat: list[Any] = []
    for one in value if isinstance(value, list) else [value]:
        flat.extend(one if isinstance(one, list) else [one])
    flat = [one.get("answer") if isinstance(one, dict) else one for one in flat]
    answers = tuple(one for one in flat if one is not None)  # KILT: provenance without an answer
    if not answers or not all(isinstance(one, str) and one.strip() for one in answers):
        raise record.error(f"the answers must be a list of texts, and not empty: {value!r:.60}.")
    return answers
