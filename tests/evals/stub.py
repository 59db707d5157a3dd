"""A stub task and a config of it, so that running is tested apart from the real tasks."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pce_jax.evals.batches import Answered
from pce_jax.evals.config import EvalConfig, load_config
from pce_jax.evals.instance import Instance, Passage

WORDS = ["ada", "bob", "cleo", "dora", "egon", "fritz", "gerda", "hans", "ida", "jan"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class StubTask:
    """Sentences of a few words, or passages."""

    name: str
    count: int = 6
    scored: int = 0
    length: int = 40
    file: str = ""

    path_fields = ("file",)
    sink_text = "Read:\n"
    aggregate = frozenset({"head", "token"})
    max_new_tokens = 4

    @property
    def metric(self) -> str:
        return "nll" if self.scored else "same"

    def instances(self, tokenizer: Any) -> Any:
        if self.scored:
            return [
                Passage(
                    id=f"p{n}",
                    tokens=tuple((7 * n + 3 * i) % 250 for i in range(self.length)),
                    scored=self.scored,
                )
                for n in range(self.count)
            ]
        return [
            Instance(
                id=f"i{n}",
                items=tuple(f"{WORDS[(n + k) % 10]}. " for k in range(3 + n % 3)),
                query="Who" + "?" * (n % 4),
                answers=(WORDS[n % 10],),
            )
            for n in range(self.count)
        ]

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        return {"same": float(output == instance.answers[0])}


def pretend_to_read(model, batch, segments, shape, rows, sink, methods, *others, **settings):
    """In place of `read_batch`: the same answer to everything, and nothing is compiled."""
    return [
        [
            Answered(
                nll=1.0 if isinstance(one.source, Passage) else None,
                tokens=[65],
                entropy=2.0,
                entropy_query=2.0,
                between=1.0,
                sink_tokens=len(sink),
                segments=len(cut),
                seconds=0.1,
            )
            for one, cut in zip(batch, segments, strict=True)
        ]
        for _ in methods
    ]


def write_config(folder: Path, tiny: Path, **changes: Any) -> Path:
    """A config of two stub tasks; `changes` are top-level values."""
    values = {
        "model": str(tiny),
        "degrees": [1, 2],
        "methods": ["naive", "sink+sel"],
        "batch": 2,
        "profile": False,
        "out": "results",
        "task": {
            "ask": {"kind": "stub"},
            "read": {"kind": "stub", "scored": 8, "count": 3},
        },
    } | changes
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "config.toml"
    path.write_text("\n".join(_toml(values)), encoding="utf-8")
    return path


def config_of(folder: Path, tiny: Path, **changes: Any) -> EvalConfig:
    return load_config(write_config(folder, tiny, **changes))


def _toml(values: dict[str, Any], prefix: str = "") -> list[str]:
    plain = {key: value for key, value in values.items() if not isinstance(value, dict)}
    lines = [f"{key} = {json.dumps(value)}" for key, value in plain.items() if value is not None]
    for key, value in values.items():
        if isinstance(value, dict):
            lines += [f'[{prefix}"{key}"]', *_toml(value, f'{prefix}"{key}".')]
    return lines
