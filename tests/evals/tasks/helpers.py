"""A tokenizer of words, files made on the spot, and the public data where it is there."""

import gzip
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

DATA = Path(os.environ.get("PCE_JAX_DATA") or Path(__file__).parents[3].parent / "shared" / "data")


def public(name: str) -> str:
    """A file of the public data; skips without it."""
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{name} is not there (PCE_JAX_DATA names its folder)")
    return str(path)


def write_jsonl(path: Path, rows: Iterable[Any]) -> str:
    data = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


class WordTokenizer:
    """Every word is a token, its number the order of appearance."""

    def __init__(self) -> None:
        self.ids: dict[str, int] = {}

    def encode(self, text: str, add_special_tokens: bool, verbose: bool) -> list[int]:
        assert not add_special_tokens
        return [self.ids.setdefault(word, len(self.ids)) for word in text.split()]
