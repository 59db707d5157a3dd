"""A model folder as Hugging Face lays it out: random weights, and a tokenizer that knows bytes."""

from pathlib import Path
from typing import Any

import jax
from tiny_models import tiny_config
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from pce_jax.models import init, save_folder

CHAT_TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"


def byte_tokenizer(chat_template: str | None = None) -> PreTrainedTokenizerFast:
    """One token a byte, so that any stream of tokens is a stream of bytes; the last ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {symbol: number for number, symbol in enumerate([*alphabet, "<end>"])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", chat_template=chat_template
    )


def write_folder(folder: Path, chat_template: str | None = None, **fields: Any) -> Path:
    """A folder that `pce_jax.load` reads; `fields` change the config."""
    config = tiny_config(**({"vocab_size": 257, "eos_token_ids": (256,)} | fields))
    model = init(config, jax.random.key(0))
    save_folder(model, folder, byte_tokenizer(chat_template))
    return folder
