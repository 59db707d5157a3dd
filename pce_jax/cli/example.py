"""The question with which the demo ends, answered with and without the repairs."""

from collections.abc import Iterator
from typing import Any

from pce_jax import METHODS
from pce_jax.models import Llama

from .answer import answer
from .prompt import SEPARATOR, chat_text, query_text

DOCUMENTS = (
    "The river Zell is 340 kilometers long. It flows into the North Sea.",
    "Mount Karo is 2,950 meters high. It is covered with snow all year.",
    "Lake Mirin is 70 meters deep. It is known for its trout.",
)
"""Invented, so that no answer can come from memory."""

QUESTION = "Answer from the documents above. How deep is Lake Mirin?"
SHOWN = ("full", "naive", "sink+sel")


def answers(model: Llama, tokenizer: Any) -> Iterator[tuple[str, str]]:
    """Yield each method's name and its greedy answer.

    The question goes into the model's chat template where it has one: a chat model that is handed
    bare text tends to end its answer before it begins.
    """
    chat = bool(tokenizer.chat_template)
    query = chat_text(tokenizer, QUESTION) if chat else query_text(QUESTION)
    documents = [document + SEPARATOR for document in DOCUMENTS]
    for name in SHOWN:
        done = answer(model, tokenizer, documents, query, METHODS[name], max_new_tokens=24)
        yield name, done.text.strip().split("\n")[0]
