"""`pce-jax generate`: answer a question over documents that are read side by side."""

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from .console import error_console
from .flags import (
    Files,
    MaybeCount,
    MaybeDtype,
    MaybeFolder,
    MaybeStore,
    MaybeText,
    MaybeWeights,
    MethodName,
    Texts,
)

if TYPE_CHECKING:
    from pce_jax.method import Method

    from .answer import Answer


@dataclasses.dataclass(frozen=True, kw_only=True)
class Generate:
    r"""Answer a question over documents that are encoded side by side.

    The answer goes to stdout (as it is made, on a terminal), a summary to stderr.

    Attributes:
        docs: UTF-8 text files; each is one document and, without --degree, one segment.
        question: What to ask.
        model: smollm2-135m (fetched once), a Hugging Face id, a model folder or a .gguf file.
        method: How to encode and attend; "full" reads the documents as one.
        degree: Group the documents into this many segments. By default each is one.
        sink: Text of the shared prefix, instead of the method's own.
        select_top_k: Segments that each query keeps (methods with "sel"), instead of 2.
        template: The query. {question} is replaced, and \n is a line break.
        chat: Put the question into the model's own chat template, instead of --template.
        max_new_tokens: Length of the answer at most, in tokens.
        temperature: 0 takes the most likely token each time.
        top_k: Draw among this many most likely tokens; 0 means all.
        top_p: Draw among the most likely tokens that make up this share of probability.
        seed: Seed of the draws.
        stop: Strings that end the answer (\n is a line break).
        ignore_end: Do not stop at the model's own end token.
        adapters: Folder of adapters from pce-jax export (or LoRA from peft) to put on the model.
        dtype: Of weights and activations.
        weights: Keep weights as 8-bit integers, with a scale a row: a quarter of float32's memory.
        cache: Keep keys and values of the documents smaller.
        at_once: Segments to encode side by side at a time: bounds memory, changes no result.
        json: Print the answer and the summary as one JSON object, nothing else.
    """

    docs: Files
    question: str
    model: str = "smollm2-135m"
    method: MethodName = "sink+sel"
    degree: MaybeCount = None
    sink: MaybeText = None
    select_top_k: MaybeCount = None
    template: str = r"Question: {question}\nAnswer:"
    chat: bool = False
    max_new_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: Texts = ()
    ignore_end: bool = False
    adapters: MaybeFolder = None
    dtype: MaybeDtype = None
    weights: MaybeWeights = None
    cache: MaybeStore = None
    at_once: MaybeCount = None
    json: bool = False

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: A file, the model or a setting cannot be used.
        """
        from pce_jax import Sampling

        from .answer import answer
        from .files import InputError
        from .model import load_model
        from .prompt import chat_text, query_text, read_documents

        # Everything that can be wrong without the model comes before it is loaded.
        documents = read_documents(self.docs)
        query = query_text(self.question, self.template)
        method = self._method()
        sampling = Sampling(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if self.degree is not None and not 1 <= self.degree <= len(documents):
            raise InputError(
                f"--degree {self.degree}: documents stay whole, so it must lie between 1 and "
                f"their number, {len(documents)}."
            )
        if self.max_new_tokens < 1:
            raise InputError(f"--max-new-tokens must be at least 1, got {self.max_new_tokens}.")
        if self.at_once is not None and self.at_once < 1:
            raise InputError(f"--at-once must be at least 1, got {self.at_once}.")
        model, tokenizer = load_model(self.model, self.dtype, self.weights, self.adapters)
        if self.chat:
            query = chat_text(tokenizer, self.question)
        streaming = sys.stdout.isatty() and not self.json
        done = answer(
            model,
            tokenizer,
            documents,
            query,
            method,
            degree=self.degree,
            at_once=self.at_once,
            store=self.cache,
            max_new_tokens=self.max_new_tokens,
            sampling=sampling,
            seed=self.seed,
            stops=[stop.replace(r"\n", "\n") for stop in self.stop],
            ignore_end=self.ignore_end,
            on_text=_write if streaming else lambda piece: None,
        )
        if self.json:
            fields = dataclasses.asdict(done) | {"model": self.model, "method": self.method}
            _write(json.dumps(fields | {"tokens_per_second": done.tokens_per_second}) + "\n")
            return 0
        _write("\n" if streaming else done.text.strip() + "\n")
        error_console().print(_summary(done), style="dim", soft_wrap=True)
        return 0

    def _method(self) -> "Method":
        """The named method with the changes that the flags ask for.

        Raises:
            MethodError: They have no meaning.
        """
        from pce_jax import METHODS
        from pce_jax.errors import MethodError

        method = METHODS[self.method]
        if self.sink is not None:
            method = dataclasses.replace(method, sink=self.sink.replace(r"\n", "\n"))
        if self.select_top_k is not None:
            if method.select is None:
                raise MethodError(
                    f"--select-top-k: the method {self.method} attends to every segment. Use it "
                    "with sel or sink+sel."
                )
            select = dataclasses.replace(method.select, top_k=self.select_top_k)
            method = dataclasses.replace(method, select=select)
        return method


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _summary(done: "Answer") -> str:
    segments = ", ".join(map(str, done.segment_tokens[:8]))
    more = f" and {len(done.segment_tokens) - 8} more" if len(done.segment_tokens) > 8 else ""
    speed = f"{done.tokens_per_second:.1f} tokens/s" if done.tokens_per_second else "-"
    return (
        f"documents  {done.documents} in {len(done.segment_tokens)} segments of {segments}{more} "
        f"tokens, sink {done.sink_tokens}\n"
        f"padded     {done.padded[0]} segments x {done.padded[1]} tokens, "
        f"{done.padding_waste:.0%} of them padding\n"
        f"query      {done.query_tokens} tokens, attention entropy {done.entropy:.3f} nats\n"
        f"answer     {done.new_tokens} tokens, ended by {done.stopped_by}, {speed}\n"
        f"seconds    encode {done.encode_seconds:.1f}, first token "
        f"{done.first_token_seconds:.1f}, the rest {done.decode_seconds:.1f} (compiling included)"
    )
