"""Obtaining models: the embedded default, local files and folders, and the Hugging Face Hub."""

from pce_jax.hub.cache import cache_folder
from pce_jax.hub.embedded import fetch_embedded
from pce_jax.hub.resolve import resolve
from pce_jax.hub.source import Source
from pce_jax.hub.tokenizer import encode_text, load_tokenizer

__all__ = [
    "Source",
    "cache_folder",
    "encode_text",
    "fetch_embedded",
    "load_tokenizer",
    "resolve",
]
