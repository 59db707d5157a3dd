"""What is read in which step: a fixed order of examples that any number of processes can share.

The order is that of a *global* index: example i of the run is the same however many processes there
are and wherever the run was interrupted. Step s reads examples s * batch to (s + 1) * batch - 1, at
a degree that is drawn for the step. So the number of a step says all there is to know about the
position in the data.

    global batch      0 1 2 3 | 4 5 6 7         two microbatches of four examples
    process 0 of 2    0 1     | 4 5
    process 1 of 2        2 3 |     6 7
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import grain
import jax
import numpy as np

from pce_jax.errors import FinetuneError
from pce_jax.evals.config import TaskSpec
from pce_jax.evals.instance import Instance, Passage
from pce_jax.evals.prepare import Prepared, prepare
from pce_jax.hub.tokenizer import encode_text
from pce_jax.layout import SegmentedContext, aligned
from pce_jax.models.config import LlamaConfig

from .objective import Example

AHEAD = 2
"""Batches that are laid out before they are needed."""


@dataclasses.dataclass(frozen=True)
class Text:
    """Something to learn from: a context and the text behind it.

    Attributes:
        id: Where it is from: name of its data, and its id there.
        parts: In tokens; the query ends with the targets.
        start: The first target in the query.
    """

    id: str
    parts: Prepared
    start: int

    @property
    def targets(self) -> int:
        """How many tokens of the query are targets."""
        return len(self.parts.query) - self.start


@dataclasses.dataclass(frozen=True)
class Batch:
    """What a step reads.

    Attributes:
        step: Its number, from 0.
        degree: Number of segments; 1 is full attention.
        ids: Of all examples of the global batch.
        tokens: Tokens of all of them.
        examples: This process's, with axes `[microbatches, examples]`.
    """

    step: int
    degree: int
    ids: tuple[str, ...]
    tokens: int
    examples: Example


def read_texts(specs: Sequence[TaskSpec], tokenizer: Any, limit: int | None = None) -> list[Text]:
    """Read what tasks describe: windows of text, or documents with a question and its answer.

    The end of a window is its target, and the answer is that of a question (the first, where
    several are accepted).

    Args:
        specs: The tasks.
        tokenizer: A transformers tokenizer.
        limit: Instances of each task at most.

    Raises:
        SettingsError: Data cannot be read.
        FinetuneError: Something has no targets.
    """
    texts = []
    for spec in specs:
        instances: Sequence[Any] = spec.make().instances(tokenizer)[:limit]
        for parts in prepare(instances, tokenizer, spec.name, chat=False):
            texts.append(_text(f"{spec.name}/{parts.source.id}", parts, tokenizer))
    return texts


def _text(id_: str, parts: Prepared, tokenizer: Any) -> Text:
    if isinstance(parts.source, Passage):
        return Text(id_, parts, start=1)
    answer = tuple(encode_text(tokenizer, f" {_answer(parts.source)}"))
    if not answer:
        raise FinetuneError(f"{id_}: its answer has no tokens, so there is no target.")
    start = len(parts.query)
    return Text(id_, dataclasses.replace(parts, query=parts.query + answer), start)


def _answer(instance: Instance) -> str:
    return instance.answers[0].strip() if instance.answers else ""


class Layout:
    """Padded sizes that hold every text at a degree: one compiled program for each degree.

    Args:
        texts: All there are.
        degree: Number of segments.
        config: Of the model, whose positions must suffice.
        sink: Token ids of the method's sink; full attention reads none.
        slots: Positions that sink or learned sink take.
        devices: Over which segments are spread: empty ones fill up what does not divide.

    Raises:
        FinetuneError: The degree does not fit a text or the devices, or a text does not fit the
            model.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        degree: int,
        config: LlamaConfig,
        sink: Sequence[int] = (),
        slots: int = 0,
        devices: int = 1,
    ):
        if 1 < degree < devices:
            raise FinetuneError(
                f"{degree} segments are spread over {devices} devices, of which some would do "
                "nothing. Use a higher degree, or a mesh with fewer devices for segments."
            )
        self.degree = degree
        self.sink = np.asarray(sink if degree > 1 else (), np.int32)
        segments, tokens, query = 1, 1, 1
        for text in texts:
            count = text.parts.context_tokens
            if isinstance(text.parts.source, Passage) and degree > count:
                raise FinetuneError(
                    f"degree {degree} does not fit {text.id}: its context has {count} tokens, and "
                    "every segment needs one. Use a lower degree or longer windows."
                )
            total = slots + count + len(text.parts.query)
            if total > config.max_positions:
                raise FinetuneError(
                    f"{text.id} has {total} tokens with its sink, and the model "
                    f"{config.max_positions} positions. Use shorter windows or fewer documents."
                )
            parts = text.parts.segments(degree)
            segments = max(segments, len(parts))
            tokens = max(tokens, *map(len, parts))
            query = max(query, len(text.parts.query))
        self.segments = segments if segments == 1 else -(-segments // devices) * devices
        self.tokens, self.query = aligned(tokens), aligned(query)

    def example(self, text: Text) -> Example:
        """One text in the padded sizes; numpy arrays."""
        segments = np.zeros((self.segments, self.tokens), np.int32)
        lengths = np.zeros(self.segments, np.int32)
        for number, part in enumerate(text.parts.segments(self.degree)):
            segments[number, : len(part)] = part
            lengths[number] = len(part)
        query = np.zeros(self.query, np.int32)
        query[: len(text.parts.query)] = text.parts.query
        context = SegmentedContext(self.sink, segments, lengths)
        length, start = (np.asarray(n, np.int32) for n in (len(text.parts.query), text.start))
        return Example(context, query, length, start)


def stacked(examples: Sequence[Example]) -> Example:
    """Several of one shape, with an axis in front."""
    return jax.tree.map(lambda *parts: np.stack(parts), *examples)


class Order:
    """Which texts a step reads, and at which degree. Any step can be asked for.

    Args:
        count: How many texts there are.
        batch: Examples a step, on all processes together.
        degrees: Numbers of segments, and how often each is drawn.
        seed: Of the order and the degrees. Every pass over the texts has an order of its own.

    Raises:
        FinetuneError: There are fewer texts than a batch takes.
    """

    def __init__(self, count: int, batch: int, degrees: Mapping[int, float], seed: int):
        if count < batch:
            raise FinetuneError(
                f"the data have {count} examples, and a batch takes {batch}. Use more data, "
                "shorter windows or a smaller batch."
            )
        self.batch, self.seed = batch, seed
        self.degrees, self.shares = zip(*degrees.items(), strict=True)
        self.texts = grain.MapDataset.range(count).seed(seed).shuffle().repeat()

    def step(self, step: int) -> tuple[int, list[int]]:
        """The degree of a step, and the numbers of its texts in their order."""
        random = np.random.default_rng([self.seed, step])
        degree = self.degrees[random.choice(len(self.degrees), p=self.shares)]
        first, texts = step * self.batch, cast(Any, self.texts)
        return degree, [int(texts[first + place]) for place in range(self.batch)]


class Batches:
    """The batches of a run by the number of their step: what grain reads from.

    Args:
        texts: All there are.
        order: Which of them a step reads.
        layouts: By degree.
        microbatch: Examples side by side, on all processes together.
        steps: How many steps there are.
        process: This process's number, and how many there are.

    Raises:
        FinetuneError: A microbatch cannot be shared among the processes.
    """

    def __init__(
        self,
        texts: Sequence[Text],
        order: Order,
        layouts: Mapping[int, Layout],
        *,
        microbatch: int,
        steps: int,
        process: tuple[int, int] = (0, 1),
    ):
        if microbatch % process[1]:
            raise FinetuneError(
                f"a microbatch of {microbatch} cannot be shared among {process[1]} processes. Make "
                "it a multiple of their number."
            )
        self.texts, self.order, self.layouts = texts, order, layouts
        self.microbatch, self.steps, self.process = microbatch, steps, process

    def __len__(self) -> int:
        return self.steps

    def __getitem__(self, index: int) -> Batch:
        degree, numbers = self.order.step(index)
        texts = [self.texts[number] for number in numbers]
        share = self.microbatch // self.process[1]
        first = self.process[0] * share
        rows = [
            texts[start + first : start + first + share]
            for start in range(0, len(texts), self.microbatch)
        ]
        layout = self.layouts[degree]
        examples = stacked([stacked([layout.example(text) for text in row]) for row in rows])
        tokens = sum(text.parts.context_tokens + len(text.parts.query) for text in texts)
        return Batch(index, degree, tuple(text.id for text in texts), tokens, examples)

    def since(self, step: int) -> Iterator[Batch]:
        """The batches from a step on, laid out ahead in another thread."""
        options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=AHEAD)
        source: Any = self
        return iter(grain.MapDataset.source(source)[step:].to_iter_dataset(options))
