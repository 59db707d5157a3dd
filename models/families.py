"""Hugging Face's spelling of each family: `config.json` fields and tensor names; only what differs.

All families here compute the same decoder (`llama.py`); they differ in which biases, norms and
rotations it has.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from .config import LlamaConfig, RopeConfig
from .errors import ConfigError

_ACTIVATIONS = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_pytorch_tanh",
}

# Fields of other architectures that change what is computed: present and set means we would be
# wrong.
_FOREIGN = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "logit_softcapping",
    "num_local_experts",
    "num_experts",
    "n_routed_experts",
    "query_pre_attn_scalar",
    "attention_multiplier",
    "embedding_multiplier",
    "residual_multiplier",
    "logits_scaling",
    "quantization_config",
)


def _llama(hf: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(hf.get("attention_bias", False))
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bool(hf.get("mlp_bias", False))}


def _mistral(hf: Mapping[str, Any]) -> dict[str, Any]:
    # Mistral's window is on whenever it is set; an absent field means the published default, 4096.
    window = hf.get("sliding_window", 4096)
    if window is not None and window < _required(hf, "max_position_embeddings"):
        raise ConfigError(
            f"sliding_window is {window}, below max_position_embeddings "
            f"({hf['max_position_embeddings']}): sliding-window attention is not supported. "
            "Use a checkpoint without it (Mistral v0.2 and later), or set it to null if full "
            "attention is meant."
        )
    return {}


def _qwen2(hf: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True}


def _qwen3(hf: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(hf.get("attention_bias", False))
    return {"qkv_bias": bias, "out_bias": bias, "qk_norm": True}


def _smollm3(hf: Mapping[str, Any]) -> dict[str, Any]:
    layers = _required(hf, "num_hidden_layers")
    rotated = hf.get("no_rope_layers")  # in spite of its name, 1 marks a layer *with* rotation
    if rotated is None:
        interval = hf.get("no_rope_layer_interval", 4)
        rotated = [(layer + 1) % interval != 0 for layer in range(layers)]
    if len(rotated) < layers:
        raise ConfigError(f"no_rope_layers has {len(rotated)} entries for {layers} layers")
    return _llama(hf) | {"unrotated_layers": tuple(i for i in range(layers) if not rotated[i])}


FAMILIES: dict[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "llama": _llama,
    "mistral": _mistral,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "smollm3": _smollm3,
}

# What transformers takes for a field that config.json leaves out.
_DEFAULT_HEAD_DIM = {"qwen3": 128}
_DEFAULT_KV_HEADS = {"mistral": 8, "qwen2": 32, "qwen3": 32, "smollm3": 4}
_DEFAULT_THETA = {"smollm3": 2_000_000.0}
_DEFAULT_TIE = {"smollm3": True}


def config_from_hf(hf: Mapping[str, Any]) -> LlamaConfig:
    """See `LlamaConfig.from_hf`."""
    family = _required(hf, "model_type")
    if family not in FAMILIES:
        near = difflib.get_close_matches(str(family), FAMILIES, n=1, cutoff=0.5)
        hint = f" (nearest: {near[0]})" if near else ""
        raise ConfigError(
            f"model_type {family!r} is not supported{hint}. Supported: {', '.join(FAMILIES)}."
        )
    _refuse_foreign(hf)
    activation = hf.get("hidden_act", "silu")
    if activation not in _ACTIVATIONS:
        raise ConfigError(
            f"hidden_act {activation!r} is not supported. Supported: {', '.join(_ACTIVATIONS)}."
        )
    heads, width = _required(hf, "num_attention_heads"), _required(hf, "hidden_size")
    head_dim = hf.get("head_dim") or _DEFAULT_HEAD_DIM.get(family)
    if head_dim is None and width % heads:
        raise ConfigError(
            f"hidden_size ({width}) is not a multiple of num_attention_heads ({heads}): "
            "set head_dim"
        )
    max_positions = _required(hf, "max_position_embeddings")
    eos = hf.get("eos_token_id")
    return LlamaConfig(
        family=family,
        vocab_size=_required(hf, "vocab_size"),
        hidden_size=width,
        intermediate_size=_required(hf, "intermediate_size"),
        num_layers=_required(hf, "num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=hf.get("num_key_value_heads", _DEFAULT_KV_HEADS.get(family)) or heads,
        head_dim=head_dim or width // heads,
        norm_eps=float(hf.get("rms_norm_eps", 1e-6)),
        activation=_ACTIVATIONS[activation],
        tie_embeddings=bool(hf.get("tie_word_embeddings", _DEFAULT_TIE.get(family, False))),
        rope=_rope_from_hf(hf, max_positions, _DEFAULT_THETA.get(family, 10_000.0)),
        max_positions=max_positions,
        bos_token_id=hf.get("bos_token_id"),
        eos_token_ids=tuple(eos)
        if isinstance(eos, (list, tuple))
        else ()
        if eos is None
        else (eos,),
        **FAMILIES[family](hf),
    )


def config_to_hf(config: LlamaConfig) -> dict[str, Any]:
    """See `LlamaConfig.to_hf`.

    Raises:
        ConfigError: transformers' class of this family cannot express the config.
    """
    if config.family not in FAMILIES:
        raise ConfigError(
            f"family {config.family!r} is not supported. Supported: {', '.join(FAMILIES)}."
        )
    hf: dict[str, Any] = {
        "architectures": [f"{_CLASS_PREFIX[config.family]}ForCausalLM"],
        "model_type": config.family,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.norm_eps,
        "hidden_act": config.activation,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        "attention_bias": config.qkv_bias,
        "mlp_bias": config.mlp_bias,
        "bos_token_id": config.bos_token_id,
        "pad_token_id": None,  # else SmolLM3's default, which must lie within the vocabulary
        "eos_token_id": config.eos_token_ids[0]
        if len(config.eos_token_ids) == 1
        else list(config.eos_token_ids) or None,
        **_rope_to_hf(config.rope),
    }
    if config.family in ("mistral", "qwen2", "qwen3", "smollm3"):
        hf["sliding_window"] = None
    if config.family == "smollm3":
        hf["no_rope_layers"] = [
            int(i not in config.unrotated_layers) for i in range(config.num_layers)
        ]
    read_back = config_from_hf(hf)
    if read_back != config:
        fields = [
            name for name in vars(config) if getattr(config, name) != getattr(read_back, name)
        ]
        raise ConfigError(
            f"Hugging Face's {config.family!r} cannot express this model: {', '.join(fields)} "
            "would be lost. Choose the family that has it (for example qwen2 for "
            "query/key/value biases)."
        )
    return hf


_CLASS_PREFIX = {
    "llama": "Llama",
    "mistral": "Mistral",
    "qwen2": "Qwen2",
    "qwen3": "Qwen3",
    "smollm3": "SmolLM3",
}

BLOCK_TENSORS = {
    "attention_norm": "input_layernorm.weight",
    "q_proj": "self_attn.q_proj.weight",
    "k_proj": "self_attn.k_proj.weight",
    "v_proj": "self_attn.v_proj.weight",
    "o_proj": "self_attn.o_proj.weight",
    "q_bias": "self_attn.q_proj.bias",
    "k_bias": "self_attn.k_proj.bias",
    "v_bias": "self_attn.v_proj.bias",
    "o_bias": "self_attn.o_proj.bias",
    "q_norm": "self_attn.q_norm.weight",
    "k_norm": "self_attn.k_norm.weight",
    "mlp_norm": "post_attention_layernorm.weight",
    "gate_proj": "mlp.gate_proj.weight",
    "up_proj": "mlp.up_proj.weight",
    "down_proj": "mlp.down_proj.weight",
    "gate_bias": "mlp.gate_proj.bias",
    "up_bias": "mlp.up_proj.bias",
    "down_bias": "mlp.down_proj.bias",
}
"""Hugging Face's name, within a layer, of each parameter of a block."""

_TOP_TENSORS = {
    "embed": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
}


def hf_tensor_names(name: str, num_layers: int) -> list[str]:
    """Hugging Face's tensors of one of our parameters: one, or one a layer when stacked."""
    if name in _TOP_TENSORS:
        return [_TOP_TENSORS[name]]
    tensor = BLOCK_TENSORS[name.removeprefix("blocks.")]
    return [f"model.layers.{layer}.{tensor}" for layer in range(num_layers)]


def _required(hf: Mapping[str, Any], field: str) -> Any:
    if hf.get(field) is None:
        raise ConfigError(f"config.json lacks {field!r}")
    return hf[field]


def _refuse_foreign(hf: Mapping[str, Any]) -> None:
    for field in _FOREIGN:
        if hf.get(field):
            raise ConfigError(f"{field} is {hf[field]!r}: this decoder does not compute it")
    if hf.get("use_sliding_window"):
        raise ConfigError("use_sliding_window is true: sliding-window attention is not supported")
    other = sorted(set(hf.get("layer_types") or ()) - {"full_attention"})
    if other:
        raise ConfigError(f"layer_types has {', '.join(other)}: only full_attention is supported")


def _rope_from_hf(hf: Mapping[str, Any], max_positions: int, default_theta: float) -> RopeConfig:
    """Read `rope_theta` and `rope_scaling` (transformers 4) or `rope_parameters` (5)."""
    spelled = dict(hf.get("rope_scaling") or {}) | dict(hf.get("rope_parameters") or {})
    if nested := [name for name, value in spelled.items() if isinstance(value, Mapping)]:
        raise ConfigError(
            f"rope_parameters has {', '.join(nested)}: rotation by layer type is not supported"
        )
    kind = spelled.get("rope_type", spelled.get("type", "default"))
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise ConfigError(
            f"rope_type {kind!r} is not supported. Supported: default, linear, llama3, yarn."
        )
    partial = spelled.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
    if partial not in (None, 1, 1.0):
        raise ConfigError(
            f"partial_rotary_factor is {partial}: no supported family rotates part of a head"
        )
    values: dict[str, Any] = {
        "theta": float(spelled.get("rope_theta") or hf.get("rope_theta") or default_theta)
    }
    fields = {"default": (), "linear": ("factor",), "llama3": _LLAMA3, "yarn": ("factor",)}[kind]
    for field in fields:
        if spelled.get(field) is None:
            raise ConfigError(
                f"rope_type {kind!r} needs {field!r} in rope_parameters (or rope_scaling)"
            )
        values[field] = float(spelled[field])
    if kind in ("llama3", "yarn"):
        field = "original_max_position_embeddings"  # outside of rope_parameters it wins, as there
        values["original_max_positions"] = int(hf.get(field) or spelled.get(field) or max_positions)
    if kind == "yarn":
        for field in _YARN:
            if spelled.get(field) is not None:
                values[field] = spelled[field] if field == "truncate" else float(spelled[field])
    return RopeConfig(kind=kind, **values)


def _rope_to_hf(rope: RopeConfig) -> dict[str, Any]:
    """Both spellings at once, so that transformers 4 and 5 read the same model."""
    scaling: dict[str, Any] = {"rope_type": rope.kind}
    if rope.kind != "default":
        scaling["factor"] = rope.factor
    if rope.kind in ("llama3", "yarn"):
        scaling["original_max_position_embeddings"] = rope.original_max_positions
    optional = {"llama3": _LLAMA3, "yarn": _YARN}.get(rope.kind, ())
    scaling |= {
        field: getattr(rope, field) for field in optional if getattr(rope, field) is not None
    }
    legacy = {"rope_theta": rope.theta, "rope_scaling": None if rope.kind == "default" else scaling}
    return {"rope_parameters": {"rope_theta": rope.theta, **scaling}, **legacy}


_LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor")
_YARN = ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate")
