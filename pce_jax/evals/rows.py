"""One row of results: an instance read by a method at a degree."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A line of a results file.

    Attributes:
        task: Name of the task.
        method: Name of the method.
        degree: Number of segments asked for, P.
        id: Of the instance.
        metrics: Metrics by name, each between 0 and 1; empty for passages.
        nll: Negative log-likelihood in nats, summed over the scored tokens; passages only.
        scored: Tokens that `nll` sums over.
        prediction: Generated text; `None` for passages.
        answers: Accepted answers.
        entropy: Attention entropy in nats: mean over layers, heads and tokens of the query pass,
            and then over the query pass and each decode step as equal units, as published.
        entropy_query: Of the query pass alone.
        between: Share of `entropy_query` between sink, segments and tail.
        context_tokens: Tokens of the context without sink.
        query_tokens: Tokens of the query.
        sink_tokens: Tokens of the sink.
        segments: Segments really filled (fewer than `degree` if there are fewer items).
        seconds: Time for this instance's share of its batch, compiling excluded.
    """

    task: str
    method: str
    degree: int
    id: str
    metrics: dict[str, float]
    nll: float | None
    scored: int
    prediction: str | None
    answers: tuple[str, ...]
    entropy: float
    entropy_query: float
    between: float
    context_tokens: int
    query_tokens: int
    sink_tokens: int
    segments: int
    seconds: float
