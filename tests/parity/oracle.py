"""Logits by transformers and PyTorch in float32; imported only where PyTorch is at hand."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint
from transformers.utils import logging

logging.disable_progress_bar()


def load_folder(folder: Path) -> Any:
    """The folder's model; a tensor that is missing, left over or misshapen is an error.

    Raises:
        ValueError: Tensors and model do not match one to one.
    """
    model, report = AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=torch.float32,
        attn_implementation="eager",
        output_loading_info=True,
    )
    if problems := {kind: names for kind, names in report.items() if names}:
        raise ValueError(f"{folder} does not fit its config: {problems}")
    return model.eval()


def load_gguf(path: Path) -> Any:
    """The model in a GGUF file, by transformers' own reader.

    `from_pretrained(gguf_file=...)` is the same, but asks for accelerate as well.
    """
    config = load_gguf_checkpoint(path)["config"]
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(**config), dtype=torch.float32, attn_implementation="eager"
    )
    tensors = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    left_over = set(tensors) - set(model.state_dict())
    missing = set(model.state_dict()) - set(tensors) - {"lm_head.weight"}  # tied, checked below
    if left_over or missing or not model.config.tie_word_embeddings:
        raise ValueError(f"{path}: {left_over=}, {missing=}, or the head is not tied")
    model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    return model.eval()


def logits(model: Any, tokens: np.ndarray, positions: np.ndarray | None = None) -> np.ndarray:
    """Logits `[batch, tokens, vocab]`, float32."""
    ids = torch.tensor(tokens, dtype=torch.long)
    if positions is None:
        positions = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    # A given mask keeps transformers from taking a jump in the positions for a new packed sequence.
    with torch.inference_mode():
        out = model(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            position_ids=torch.tensor(positions),
            use_cache=False,
        )
    return out.logits.numpy()
