"""From files and a question to the texts that the model reads."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pce_jax.errors import TokenizerError

from .files import InputError, read_text

SEPARATOR = "\n\n"
TEMPLATE = r"Question: {question}\nAnswer:"


def read_documents(paths: Sequence[Path]) -> list[str]:
    """The documents' texts, each ending in a blank line.

    Raises:
        InputError: No file was named, or one cannot be used.
    """
    if not paths:
        raise InputError("--docs names no file. Give at least one: each file is one document.")
    texts = [read_text(path, f"document {number}") for number, path in enumerate(paths, 1)]
    return [text.strip() + SEPARATOR for text in texts]


def query_text(question: str, template: str = TEMPLATE) -> str:
    r"""The question in its template, in which `\n` stands for a line break.

    Raises:
        InputError: The question is empty, or the template has no place for it.
    """
    if not question.strip():
        raise InputError("--question is empty. Ask something.")
    if "{question}" not in template:
        raise InputError(
            f"--template {template!r} has no {{question}} in it: put it where it goes."
        )
    return template.replace(r"\n", "\n").replace("{question}", question.strip())


def chat_text(tokenizer: Any, question: str) -> str:
    """The question as a user's message in the model's own chat template.

    Raises:
        InputError: The question is empty.
        TokenizerError: The model has no chat template, or a broken one.
    """
    if not question.strip():
        raise InputError("--question is empty. Ask something.")
    if not tokenizer.chat_template:
        raise TokenizerError(
            "the model has no chat template, so it is likely no chat model. Leave out --chat."
        )
    try:
        return tokenizer.apply_chat_template(
            [{"role": "user", "content": question.strip()}],
            tokenize=False,
            add_generation_prompt=True,
        )
    except Exception as error:  # templates are programs, and fail in every way
        raise TokenizerError(
            f"the model's chat template fails ({type(error).__name__}: {error}). Leave out --chat."
        ) from error
