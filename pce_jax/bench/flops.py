"""Floating-point operations and bytes that the method asks for, counted from a model's config.

Only matrix products count (two operations for each multiplication), and in attention only pairs
that are visible: masked-out halves, norms and exponentials are work, but not asked for.
"""

from collections.abc import Iterable

from pce_jax.models import LlamaConfig


def linear_shapes(config: LlamaConfig) -> dict[str, tuple[int, int]]:
    """`(out, in)` of each projection of one layer."""
    d, mlp = config.hidden_size, config.intermediate_size
    q_out, kv_out = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    return {
        "q": (q_out, d),
        "k": (kv_out, d),
        "v": (kv_out, d),
        "o": (d, q_out),
        "gate": (mlp, d),
        "up": (mlp, d),
        "down": (d, mlp),
    }


def linear_flops(config: LlamaConfig, tokens: int) -> int:
    """The projections of all layers."""
    weights = sum(out * into for out, into in linear_shapes(config).values())
    return 2 * config.num_layers * weights * tokens


def attention_flops(config: LlamaConfig, pairs: int) -> int:
    """Logits and mixed values of all layers.

    Args:
        config: The model.
        pairs: Query tokens times the keys that each sees, in one layer and head.
    """
    return 4 * config.num_layers * config.num_heads * config.head_dim * pairs


def head_flops(config: LlamaConfig, tokens: int) -> int:
    """Logits over the vocabulary."""
    return 2 * config.vocab_size * config.hidden_size * tokens


def causal_pairs(tokens: int, before: int = 0) -> int:
    """Pairs of tokens that see `before` others, themselves, and those in front of them."""
    return tokens * before + tokens * (tokens + 1) // 2


def encode_flops(config: LlamaConfig, segments: Iterable[int]) -> int:
    """Encoding segments of these lengths without a sink; one segment is full attention."""
    lengths = list(segments)
    pairs = sum(causal_pairs(length) for length in lengths)
    return linear_flops(config, sum(lengths)) + attention_flops(config, pairs)


def query_flops(config: LlamaConfig, context: int, tokens: int, logits: int = 1) -> int:
    """A query pass over a context, with the logits of some tokens."""
    return (
        linear_flops(config, tokens)
        + attention_flops(config, causal_pairs(tokens, context))
        + head_flops(config, logits)
    )


def cache_bytes(config: LlamaConfig, tokens: int, itemsize: int) -> int:
    """Keys and values of so many tokens, in all layers."""
    return 2 * config.num_layers * config.num_kv_heads * config.head_dim * tokens * itemsize


def weight_bytes(config: LlamaConfig, itemsize: int) -> int:
    """The weights that a pass reads whole: all but an embedding that is not the head too."""
    lookup = 0 if config.tie_embeddings else config.vocab_size * config.hidden_size
    return (config.num_parameters - lookup) * itemsize


def decode_bytes(config: LlamaConfig, context: int, itemsize: int, values: float = 1.0) -> float:
    """What a decode step has to read: weights, and a context that all rows share.

    Args:
        config: The model.
        context: Tokens in it.
        itemsize: Bytes of a number.
        values: Share of the segments whose values are read; keys are read of all.
    """
    half = cache_bytes(config, context, itemsize) / 2
    return weight_bytes(config, itemsize) + half * (1 + values)
