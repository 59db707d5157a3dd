"""One answer over encoded documents, with what it took: what `generate` and `demo` share."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from pce_jax import Method, Sampling, encode, encode_text, generate, pack, padding_waste
from pce_jax.cache import Store
from pce_jax.models import Llama

from .stream import TextStream


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What was generated, and what it took.

    Attributes:
        text: The answer.
        stopped_by: `length`, `token` (the model's own end) or `text` (a stop string).
        documents: Number of documents.
        segment_tokens: Tokens in each segment.
        sink_tokens: Tokens of the shared prefix.
        padded: Segments and tokens per segment, padding included.
        padding_waste: Share of these slots that hold no token.
        query_tokens: Tokens of the question with its template.
        new_tokens: Tokens generated.
        entropy: Attention entropy of the query in nats, mean over tokens, heads and layers.
        encode_seconds: Time to encode the documents, compiling included.
        first_token_seconds: Time from then to the first token, compiling included.
        decode_seconds: Time for the other tokens, compiling included.
    """

    text: str
    stopped_by: str
    documents: int
    segment_tokens: list[int]
    sink_tokens: int
    padded: tuple[int, int]
    padding_waste: float
    query_tokens: int
    new_tokens: int
    entropy: float
    encode_seconds: float
    first_token_seconds: float
    decode_seconds: float

    @property
    def tokens_per_second(self) -> float | None:
        """Decoding speed behind the first token; `None` if there was only one."""
        return (self.new_tokens - 1) / self.decode_seconds if self.new_tokens > 1 else None


def answer(
    model: Llama,
    tokenizer: Any,
    documents: Sequence[str],
    query: str,
    method: Method,
    *,
    degree: int | None = None,
    at_once: int | None = None,
    store: Store | None = None,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
    stops: Sequence[str] = (),
    ignore_end: bool = False,
    on_text: Callable[[str], None] = lambda piece: None,
) -> Answer:
    """Encode documents and answer a query over them.

    Args:
        model: The decoder.
        tokenizer: Its tokenizer.
        documents: Their texts, separators included.
        query: The text to continue.
        method: How to encode and attend.
        degree: Number of segments; one a document by default.
        at_once: Segments to encode side by side at a time; all by default.
        store: What to keep the cache as.
        max_new_tokens: Tokens to generate at most.
        sampling: How to draw them; greedy by default.
        seed: Of the draws.
        stops: Strings that end the answer.
        ignore_end: Go on past the model's own end token.
        on_text: Called with pieces of the answer as they come.

    Raises:
        LayoutError, MethodError: Documents, query and method do not fit each other or the model.
    """
    context = pack(tokenizer, documents, sink=method.sink, degree=degree)
    tokens = encode_text(tokenizer, query)
    start = time.perf_counter()
    cache = jax.block_until_ready(encode(model, context, method, at_once=at_once, store=store))
    encoded = time.perf_counter()
    stream, times = TextStream(tokenizer, stops), []

    def take(new: list[list[int]]) -> bool:
        times.append(time.perf_counter())
        if new[0]:
            on_text(stream.push(new[0][0]))
        return stream.stopped

    out = generate(
        model,
        cache,
        tokens,
        method,
        max_new_tokens=max_new_tokens,
        sampling=sampling or Sampling(),
        seed=seed,
        stop_tokens=() if ignore_end else None,
        on_tokens=take,
        stats=True,
    )
    ended = "length" if out.lengths[0] == max_new_tokens else "token"
    assert out.entropy is not None
    on_text(stream.finish())
    return Answer(
        text=stream.text,
        stopped_by="text" if stream.stopped else ended,
        documents=len(documents),
        segment_tokens=[int(n) for n in context.lengths if n],
        sink_tokens=len(context.sink),
        padded=(int(context.segments.shape[0]), int(context.segments.shape[1])),
        padding_waste=round(padding_waste(context), 4),
        query_tokens=len(tokens),
        new_tokens=len(stream.tokens),
        entropy=float(out.entropy[0, 0]),
        encode_seconds=round(encoded - start, 3),
        first_token_seconds=round(times[0] - encoded, 3),
        decode_seconds=round(times[-1] - times[0], 3),
    )
