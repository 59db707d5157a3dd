"""How many programs were compiled, and how long that took.

A program belongs to padded sizes (see `pce_jax.bucket`), a dtype, and what of a method it depends
on: texts of any length that share a bucket share it. So the counts say whether something that was
meant to share a program did not.
"""

import jax

from .decode_loop import go_on, start
from .encode import _encode
from .many import _encode_many, _score_many
from .query import _query, _score

_COMPILED = {
    "encode": (_encode,),
    "query": (_query,),
    "score": (_score,),
    "generate": (start, go_on),
    "encode_many": (_encode_many,),
    "score_many": (_score_many,),
}


def counts() -> dict[str, int]:
    """Programs of this process by the public function that runs on them.

    `generate` has two: one reads the query, the other goes on.

    Example:
        >>> pce.programs.counts()
        {'encode': 1, 'query': 1, 'score': 0, 'generate': 2, 'encode_many': 0, 'score_many': 0}
    """
    return {
        name: sum(program._cache_size() for program in each)  # type: ignore[missing-attribute]
        for name, each in _COMPILED.items()
    }


def count() -> int:
    """Programs of this process, all together."""
    return sum(counts().values())


class CompileTime:
    """A context that adds up the seconds that jax takes to trace, lower and compile.

    Attributes:
        seconds: So far.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> "CompileTime":
        jax.monitoring.register_event_duration_secs_listener(self._take)
        return self

    def __exit__(self, *_: object) -> None:
        jax.monitoring.unregister_event_duration_listener(self._take)

    def _take(self, event: str, duration_secs: float, **_: str | int) -> None:
        if event.startswith("/jax/core/compile/"):
            self.seconds += duration_secs
