"""How many programs were compiled, and how long that took."""

import jax

from pce_jax import decode_loop, many

PROGRAMS = (many._encode_many, many._score_many, decode_loop.start, decode_loop.go_on)


def count() -> int:
    """Compiled programs of this process that evaluation runs on."""
    return sum(program._cache_size() for program in PROGRAMS)  # type: ignore[missing-attribute]


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
