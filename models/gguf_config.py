"""What a GGUF's metadata says about a model, as a `LlamaConfig`.

Facts that llama.cpp keeps out of the metadata are supplied here: which layers of SmolLM3 are not
rotated, and that Llama 3's scaling is stored as a tensor of factors.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from .config import LlamaConfig, RopeConfig
from .errors import ConfigError
from .rope import rotary

ARCHITECTURES = ("llama", "qwen2", "qwen3", "smollm3")
PERMUTED = ("llama", "smollm3")
"""Architectures whose query and key rows llama.cpp's converter pairs up for its own rotation."""

_SMOLLM3_INTERVAL = 4  # llama.cpp has it in its source, not in the file

# Keys that change what is computed: present and set means we would be wrong.
_FOREIGN = (
    "expert_count",
    "attention.scale",
    "attention.max_alibi_bias",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_scale",
    "residual_scale",
    "embedding_scale",
)
_ROPE_SCALING = (
    "type",
    "factor",
    "original_context_length",
    "finetuned",
    "yarn_beta_fast",
    "yarn_beta_slow",
)
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


def config_from_gguf(
    metadata: Mapping[str, Any],
    tensor_shapes: Mapping[str, tuple[int, ...]],
    rope_factors: np.ndarray | None = None,
) -> LlamaConfig:
    """Read a config.

    Args:
        metadata: Keys and values of the file.
        tensor_shapes: Shape of every tensor of the file, for what the metadata leaves out: rows of
            the embedding, which biases there are, and whether the head is tied.
        rope_factors: The tensor `rope_freqs.weight`, if the file has it.

    Raises:
        ConfigError: A key is missing, or asks for what `Llama` does not compute.
    """
    arch = metadata.get("general.architecture")
    if arch not in ARCHITECTURES:
        raise ConfigError(
            f"general.architecture {arch!r} is not supported. "
            f"Supported: {', '.join(ARCHITECTURES)}."
        )
    facts = _Facts(metadata, arch)
    facts.refuse_foreign()
    heads, width = facts.integer("attention.head_count"), facts.integer("embedding_length")
    head_dim = facts.integer("attention.key_length", width // heads)
    for key in ("attention.value_length", "rope.dimension_count"):
        if facts.integer(key, head_dim) != head_dim:
            raise ConfigError(
                f"{arch}.{key} is {facts.get(key)}, expected the head size {head_dim}"
            )
    layers, max_positions = facts.integer("block_count"), facts.integer("context_length")
    interval = _SMOLLM3_INTERVAL if arch == "smollm3" else layers + 1
    embedding = tensor_shapes.get("token_embd.weight")
    ends = [metadata.get(f"tokenizer.ggml.{key}") for key in _END_KEYS]
    config = LlamaConfig(
        family=arch,
        vocab_size=embedding[0] if embedding else facts.vocab_size(),
        hidden_size=width,
        intermediate_size=facts.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=facts.integer("attention.head_count_kv", heads),
        head_dim=head_dim,
        norm_eps=facts.real("attention.layer_norm_rms_epsilon"),
        tie_embeddings="output.weight" not in tensor_shapes,
        qkv_bias=arch == "qwen2" or "blk.0.attn_q.bias" in tensor_shapes,
        out_bias="blk.0.attn_output.bias" in tensor_shapes,
        mlp_bias="blk.0.ffn_up.bias" in tensor_shapes,
        qk_norm=arch == "qwen3",
        rope=facts.rope(max_positions),
        unrotated_layers=tuple(range(interval - 1, layers, interval)),
        max_positions=max_positions,
        bos_token_id=metadata.get("tokenizer.ggml.bos_token_id"),
        eos_token_ids=tuple(dict.fromkeys(end for end in ends if end is not None)),
    )
    return config if rope_factors is None else _with_factors(config, rope_factors)


@dataclasses.dataclass(frozen=True)
class _Facts:
    """Metadata of one architecture, read with checks."""

    metadata: Mapping[str, Any]
    arch: str

    def get(self, key: str) -> Any:
        return self.metadata.get(f"{self.arch}.{key}")

    def integer(self, key: str, default: int | None = None) -> int:
        value = self.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            what = "is missing" if value is None else f"is {value!r}, expected one number above 0"
            raise ConfigError(f"{self.arch}.{key} {what}")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, float):
            what = "is missing" if value is None else f"is {value!r}, expected a number"
            raise ConfigError(f"{self.arch}.{key} {what}")
        return float(str(np.float32(value)))  # 1e-05, not the 9.999999747378752e-06 it is stored as

    def vocab_size(self) -> int:
        tokens = self.metadata.get("tokenizer.ggml.tokens", ())
        return self.integer("vocab_size", len(tokens) or None)

    def refuse_foreign(self) -> None:
        for key in _FOREIGN:
            if self.get(key):
                raise ConfigError(
                    f"{self.arch}.{key} is {self.get(key)}: this decoder does not compute it"
                )
        window = self.get("attention.sliding_window")
        if window and window < self.integer("context_length"):
            raise ConfigError(
                f"{self.arch}.attention.sliding_window is {window}: "
                "sliding-window attention is not supported"
            )
        if self.get("attention.causal") is False:
            raise ConfigError(
                f"{self.arch}.attention.causal is false: only causal models are supported"
            )

    def rope(self, max_positions: int) -> RopeConfig:
        theta = self.real("rope.freq_base", 10_000.0)
        kind = self.get("rope.scaling.type") or "none"
        factor = self.real("rope.scaling.factor", self.real("rope.scale_linear", 0.0)) or 1.0
        if kind == "none" and self.get("rope.scale_linear"):
            kind = "linear"  # how old files spelled it
        if kind not in ("none", "linear", "yarn"):
            key = f"{self.arch}.rope.scaling.type"
            raise ConfigError(f"{key} {kind!r} is not supported. Supported: none, linear, yarn.")
        prefix = f"{self.arch}.rope.scaling."
        for key, value in self.metadata.items():
            field = key.removeprefix(prefix)
            known = field in _ROPE_SCALING or (field, value) == ("attn_factor", 1.0)
            if key.startswith(prefix) and not known:
                raise ConfigError(f"{key} is {value}: this refinement is not supported")
        if kind == "none" or factor == 1.0:
            return RopeConfig(theta=theta)
        if kind == "linear":
            return RopeConfig(theta=theta, kind="linear", factor=factor)
        window = self.integer("rope.scaling.original_context_length", max_positions)
        return RopeConfig(
            theta=theta,
            kind="yarn",
            factor=factor,
            original_max_positions=window,
            beta_fast=self.real("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.real("rope.scaling.yarn_beta_slow", 1.0),
        )


def _with_factors(config: LlamaConfig, factors: np.ndarray) -> LlamaConfig:
    """Recognise Llama 3's scaling by the divisors it gives each frequency.

    Every published Llama 3 has the same bounds and window, so that the largest divisor, which long
    wavelengths get, is the one free number.
    """
    if np.all(factors == 1.0):
        return config
    rope = RopeConfig(
        theta=config.rope.theta,
        kind="llama3",
        factor=float(factors.max()),
        original_max_positions=8192,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )
    scaled = dataclasses.replace(config, rope=rope)
    if config.rope.kind == "default" and factors.shape == (config.rotated_dim // 2,):
        ratio = rotary(config).frequencies / rotary(scaled).frequencies
        if np.allclose(ratio, factors, rtol=1e-4, atol=0.0):
            return scaled
    raise ConfigError(
        "rope_freqs.weight holds frequency factors other than those of Llama 3.1's scaling (window "
        "8192, low 1, high 4), which are not supported. Use the safetensors of this model instead."
    )
