"""Shapes of well-known models, for what needs no weights of theirs: planning and measuring."""

from .config import LlamaConfig, RopeConfig

_LLAMA_31 = RopeConfig(
    theta=500_000.0, kind="llama3", factor=8.0, original_max_positions=8192
)  # of all sizes

SHAPES: dict[str, LlamaConfig] = {
    "smollm2-135m": LlamaConfig(
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        norm_eps=1e-5,
        tie_embeddings=True,
        rope=RopeConfig(theta=100_000.0),
        max_positions=8192,
    ),
    "llama-3.1-8b": LlamaConfig(
        vocab_size=128256,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_heads=32,
        num_kv_heads=8,
        head_dim=128,
        norm_eps=1e-5,
        rope=_LLAMA_31,
        max_positions=131072,
    ),
    "llama-3.1-70b": LlamaConfig(
        vocab_size=128256,
        hidden_size=8192,
        intermediate_size=28672,
        num_layers=80,
        num_heads=64,
        num_kv_heads=8,
        head_dim=128,
        norm_eps=1e-5,
        rope=_LLAMA_31,
        max_positions=131072,
    ),
}
"""Configs by name."""
