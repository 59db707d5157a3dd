"""In-context learning: label a question by the example of many (HELMET's classification tasks).

Labels are integers that mean something else in every instance, so that they can only be learnt from
the demonstrations.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Instance
from pce_jax.evals.metrics import exact_match, parse_answer
from pce_jax.evals.tasks.answers import HELMET_SINK, with_last_line
from pce_jax.evals.tasks.draws import keep, stream
from pce_jax.evals.tasks.intents import Labelled, load
from pce_jax.selection import Dim

_QUERY = (
    "Use the provided mapping from the text to label to assign a label to the text. "
    'Only output "label: {{label}}" and nothing else.\n\n{text}\nlabel:'
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class IclTask:
    """Label-balanced demonstrations and a question to label; exact match.

    Which demonstrations there are is drawn once. Every instance shuffles them, round by round (a
    round holds each label once), cuts the last round to `shots`, and deals out new integers.

    Attributes:
        name: Names the task in results.
        dataset: Which questions.
        train: File of the demonstrations (TREC: `.label`, Banking77: `.csv`, CLINC150: `.json`,
            NLU: `.csv`) or a Hugging Face dataset as `hf:OWNER/NAME[/CONFIG]:SPLIT`.
        test: The same for the questions to label. Leave it out for CLINC150's file, which holds
            all (its validation part is used, as published), and for NLU (a tenth is held out).
        shots: Number of demonstrations.
        natural_labels: Keep the names of the labels.
        out_of_scope: CLINC150: out-of-scope questions are a class of their own, as published.
        skip_malformed: TREC: leave malformed rows out.
        seed: Of demonstrations and integers.
        limit: Questions to keep; all with `None`.
        shuffle_seed: Shuffle of the questions before `limit`; `None` keeps their order.
        max_new_tokens: Length of an answer.
    """

    name: str
    dataset: Literal["trec_coarse", "trec_fine", "banking77", "clinc150", "nlu"]
    train: str
    test: str = ""
    shots: int = 400
    natural_labels: bool = False
    out_of_scope: bool = True
    skip_malformed: bool = False
    seed: int = 42
    limit: int | None = 100
    shuffle_seed: int | None = 42
    max_new_tokens: int = 20

    path_fields: ClassVar[tuple[str, ...]] = ("train", "test")
    sink_text: ClassVar[str] = HELMET_SINK
    aggregate: ClassVar[frozenset[Dim]] = frozenset({"head", "token"})
    metric: ClassVar[str] = "exact_match"

    def instances(self, tokenizer: Any = None) -> list[Instance]:
        """The questions in order; see `Task`.

        Raises:
            SettingsError: A file cannot be read, it has a single class, a question's class has no
                demonstration, or more demonstrations are asked for than there are.
        """
        train, test = load(
            self.dataset, self.train, self.test, self.out_of_scope, self.skip_malformed
        )
        by_label: dict[str, list[Labelled]] = {row.label: [] for row in train}
        for row in train:
            by_label[row.label].append(row)
        labels = sorted(by_label)
        if len(labels) < 2:
            raise SettingsError(
                f"task {self.name!r}: {self.train} has one class only, {labels[0]!r}, so there is "
                "nothing to tell apart. Name the whole file."
            )
        if not 1 <= self.shots <= len(train):
            raise SettingsError(
                f"task {self.name!r}: {self.shots} demonstrations are asked for (shots); "
                f"{self.train} has {len(train)}. Use a number from 1 to that."
            )
        for row in test:
            if row.label not in by_label:
                raise SettingsError(
                    f"{row.where}: no demonstration in {self.train} has the class {row.label!r}."
                )
        rounds = self._rounds([by_label[label] for label in labels])
        return [
            self._instance(str(number), row, rounds, labels)
            for number, row in keep(list(enumerate(test)), self.limit, self.shuffle_seed)
        ]

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        """Exact match of what stands behind "label:"; see `Task`."""
        parsed = parse_answer(with_last_line(instance, output), "label:")
        return {self.metric: max(exact_match(parsed, answer) for answer in instance.answers)}

    def _rounds(self, rows_of_label: Sequence[Sequence[Labelled]]) -> list[list[Labelled]]:
        """Rounds of one demonstration a label; a rare label's are repeated, as published."""
        count = -(-self.shots // len(rows_of_label))
        random = stream(self.seed, "demonstrations")
        rounds: list[list[Labelled]] = [[] for _ in range(count)]
        for rows in rows_of_label:
            drawn: list[int] = []
            while len(drawn) < count:
                drawn.extend(random.permutation(len(rows)))
            for one_round, index in zip(rounds, drawn, strict=False):
                one_round.append(rows[index])
        return rounds

    def _instance(
        self, id_: str, row: Labelled, rounds: list[list[Labelled]], labels: list[str]
    ) -> Instance:
        random = stream(self.seed, "instance", id_)
        integers = map(str, random.permutation(len(labels)))
        shown: Mapping[str, str] = dict(
            zip(labels, labels if self.natural_labels else integers, strict=True)
        )
        demos = [one[index] for one in rounds for index in random.permutation(len(one))]
        return Instance(
            id=id_,
            items=tuple(
                f"{demo.text}\nlabel: {shown[demo.label]}\n\n" for demo in demos[: self.shots]
            ),
            query=_QUERY.format(text=row.text),
            answers=(shown[row.label],),
        )
