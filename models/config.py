"""What a Llama-family decoder is made of, and how Hugging Face's `config.json` spells it.

`LlamaConfig` holds exactly what the forward pass depends on, plus three facts about use
(`max_positions`, `bos_token_id`, `eos_token_ids`). Reading is strict: a config that asks for
something this decoder does not compute is refused with the name of the field, never approximated.
"""

import dataclasses
from collections.abc import Mapping
from numbers import Integral
from typing import Any, Literal

from .errors import ConfigError

RopeKind = Literal["default", "linear", "llama3", "yarn"]

_COUNTS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_layers",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_positions",
)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeConfig:
    """Rotary position embedding, in the terms of Hugging Face's `rope_parameters`.

    Attributes:
        theta: Base of the geometric series of wavelengths.
        kind: How frequencies change for contexts past the trained window.
        factor: Context extension factor (`linear`, `llama3`, `yarn`).
        original_max_positions: Trained window that the extension starts from (`llama3`, `yarn`).
        low_freq_factor: `llama3`: wavelengths above `original / low_freq_factor` are stretched
            fully.
        high_freq_factor: `llama3`: wavelengths below `original / high_freq_factor` are kept.
        beta_fast: `yarn`: rotations in the window above which a dimension is kept.
        beta_slow: `yarn`: rotations in the window below which a dimension is stretched fully.
        attention_factor: `yarn`: amplitude of cos and sin; `None` derives it from `factor`.
        mscale: `yarn`: numerator's weight in the derived amplitude (with `mscale_all_dim`).
        mscale_all_dim: `yarn`: denominator's weight in the derived amplitude.
        truncate: `yarn`: round the boundaries of the ramp to whole dimensions.
        rotated_fraction: Share of each head's dimensions that rotate (`partial_rotary_factor`).
    """

    theta: float = 10_000.0
    kind: RopeKind = "default"
    factor: float = 1.0
    original_max_positions: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True
    rotated_fraction: float = 1.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class LlamaConfig:
    """Shape and arithmetic of one decoder.

    Attributes:
        family: Hugging Face `model_type` (`llama`, `mistral`, `qwen2`, `qwen3`, `smollm3`).
        vocab_size: Rows of the embedding.
        hidden_size: Width of the residual stream.
        intermediate_size: Width of the gated MLP.
        num_layers: Number of blocks.
        num_heads: Query heads.
        num_kv_heads: Key/value heads; divides `num_heads`.
        head_dim: Size of a head; `num_heads * head_dim` need not equal `hidden_size`.
        norm_eps: Epsilon of every RMSNorm.
        activation: Gate non-linearity of the MLP: `silu`, `gelu` or `gelu_pytorch_tanh`.
        tie_embeddings: The embedding is also the output head.
        qkv_bias: Biases on the query, key and value projections.
        out_bias: Bias on the attention output projection.
        mlp_bias: Biases on the three MLP projections.
        qk_norm: RMSNorm over each query and key head before rotation.
        rope: Rotary embedding.
        unrotated_layers: Indices of layers whose queries and keys are not rotated.
        max_positions: Positions the model was made for; longer contexts are refused.
        bos_token_id: Start token that the model's own prompts use, if any.
        eos_token_ids: Tokens that end generation.
    """

    family: str = "llama"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float = 1e-6
    activation: str = "silu"
    tie_embeddings: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    rope: RopeConfig = RopeConfig()
    unrotated_layers: tuple[int, ...] = ()
    max_positions: int = 2048
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        """Refuse values that cannot work together, with the field's name.

        Raises:
            ConfigError: A size is not a positive whole number, heads do not divide, or a field is
                out of range.
        """
        for name in _COUNTS:
            value = getattr(self, name)
            if not isinstance(value, Integral) or value < 1:
                raise ConfigError(f"{name} must be a whole number from 1 on, got {value!r}")
        for token in self.eos_token_ids:
            if not isinstance(token, Integral):
                raise ConfigError(f"eos_token_ids must be whole numbers, got {token!r}")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads ({self.num_heads}) must be a multiple of "
                f"num_kv_heads ({self.num_kv_heads})"
            )
        if self.activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation {self.activation!r} is not supported. "
                f"Supported: {', '.join(ACTIVATIONS)}."
            )
        if outside := [
            layer for layer in self.unrotated_layers if layer not in range(self.num_layers)
        ]:
            raise ConfigError(
                f"unrotated_layers has {outside}, but there are {self.num_layers} layers"
            )
        if not 0 < self.rope.rotated_fraction <= 1:
            raise ConfigError(
                f"rotated_fraction must be above 0 and at most 1, got {self.rope.rotated_fraction}"
            )
        if self.rope.kind in ("llama3", "yarn") and self.rope.original_max_positions < 1:
            raise ConfigError(
                f"rope {self.rope.kind!r} needs original_max_positions of at least 1, "
                f"got {self.rope.original_max_positions}"
            )
        if self.rotated_dim % 2:
            raise ConfigError(
                f"rotary embedding needs an even number of rotated dimensions, got "
                f"{self.rotated_dim} (head_dim {self.head_dim} x rotated_fraction "
                f"{self.rope.rotated_fraction})"
            )

    @property
    def rotated_dim(self) -> int:
        """Leading dimensions of each head that rotate."""
        return int(self.head_dim * self.rope.rotated_fraction)

    @property
    def num_parameters(self) -> int:
        """Number of weights (a tied head is counted once)."""
        d, heads, kv = (
            self.hidden_size,
            self.num_heads * self.head_dim,
            self.num_kv_heads * self.head_dim,
        )
        attention = d * (heads + 2 * kv) + heads * d
        attention += self.qkv_bias * (heads + 2 * kv) + self.out_bias * d
        attention += self.qk_norm * 2 * self.head_dim
        mlp = 3 * d * self.intermediate_size + self.mlp_bias * (2 * self.intermediate_size + d)
        tables = self.vocab_size * d * (1 if self.tie_embeddings else 2)
        return self.num_layers * (attention + mlp + 2 * d) + d + tables

    @classmethod
    def from_hf(cls, hf: Mapping[str, Any]) -> "LlamaConfig":
        """Read a Hugging Face `config.json`, in the spelling of transformers 4 or 5.

        Args:
            hf: The parsed JSON object.

        Raises:
            ConfigError: A field is missing or of the wrong kind, or asks for what this decoder does
                not compute (unknown `model_type`, sliding window in use, experts, soft-capping,
                unknown rope type or activation). The message names the field.
        """
        from .families import config_from_hf

        try:
            return config_from_hf(hf)
        except ConfigError:
            raise
        except (TypeError, ValueError, AttributeError) as error:
            raise ConfigError(f"a field has a value of the wrong kind ({error})") from error

    def to_hf(self) -> dict[str, Any]:
        """The `config.json` object that transformers reads as the same model."""
        from .families import config_to_hf

        return config_to_hf(self)
