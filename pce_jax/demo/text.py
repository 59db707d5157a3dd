"""Windows of real English prose to measure on: from Python's own documentation, or from a file."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from pce_jax.errors import PceError
from pce_jax.hub import encode_text

PROSE = (
    "execmodel",
    "import",
    "customization",
    "compound",
    "attribute-access",
    "types",
    "specialnames",
    "calls",
)
"""Long topics that are mostly sentences, in the order in which they are taken."""


@dataclasses.dataclass(frozen=True)
class Window:
    """A stretch of text to measure on.

    Attributes:
        name: Where it comes from.
        tokens: Token ids; all windows of a run have the same number.
    """

    name: str
    tokens: list[int]


def python_topics() -> dict[str, str]:
    """The prose topics of the documentation that comes with Python, stripped.

    Their wording differs a little between versions of Python, and so do results.

    Raises:
        PceError: This Python was installed without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise PceError(
            "This Python was installed without its documentation topics (pydoc_data), the text "
            "that the demo reads by default. Give another: --text FILE."
        ) from error
    return {name: topics[name].strip() for name in PROSE if name in topics}


def topic_windows(
    tokenizer: Any, count: int, size: int, topics: Mapping[str, str] | None = None
) -> list[Window]:
    """The beginnings of the first `count` topics that are long enough; fewer if there are not.

    Args:
        tokenizer: A transformers tokenizer.
        count: Windows wanted.
        size: Tokens in each.
        topics: Texts by name; those of Python by default.

    Raises:
        PceError: No topic is long enough.
    """
    windows, longest = [], 0
    for name, text in (python_topics() if topics is None else topics).items():
        if len(windows) == count:
            break
        tokens = encode_text(tokenizer, text)
        longest = max(longest, len(tokens))
        if len(tokens) >= size:
            windows.append(Window(f"python:{name}", tokens[:size]))
    if not windows:
        raise PceError(
            f"the longest topic of Python's documentation has {longest} tokens, a window needs "
            f"{size}. Lower --window-tokens, or give a longer text: --text FILE."
        )
    return windows


def text_windows(tokenizer: Any, text: str, name: str, count: int, size: int) -> list[Window]:
    """The first `count` consecutive windows of one text; fewer if it is shorter.

    Args:
        tokenizer: A transformers tokenizer.
        text: The text.
        name: How to call it.
        count: Windows wanted.
        size: Tokens in each.

    Raises:
        PceError: It has fewer tokens than one window.
    """
    tokens = encode_text(tokenizer, text)
    if len(tokens) < size:
        raise PceError(
            f"{name} has {len(tokens)} tokens, and one window needs {size}. Give a longer text, or "
            "lower --window-tokens (and --scored-tokens)."
        )
    starts = range(0, len(tokens) - size + 1, size)
    return [Window(f"{name}:{start}", tokens[start : start + size]) for start in starts][:count]
