"""`LlamaConfig`: `config.json` in and out, what is refused, and that every field counts."""

import dataclasses
import functools
import re
from typing import Any

import jax
import numpy as np
import pytest
from parity.cases import CASES, Case, weights

from pce_jax.models import SHAPES, ConfigError, LlamaConfig, RopeConfig
from pce_jax.models.llama import Llama, forward, init, parameter_shapes

HF = {
    "model_type": "llama",
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 32,
    "beta_fast": 16.0,
    "mscale": 1.5,
    "mscale_all_dim": 0.5,
    "truncate": False,
}
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


# Reading


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ({"rope_theta": 700.0}, {"rope_theta": 700.0, "rope_type": "default"}),
        ({"rope_theta": 700.0, "rope_scaling": None}, {"rope_theta": 700.0}),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}},
            {"rope_type": "linear", "factor": 2.0, "rope_theta": 10_000.0},
        ),
        ({"rope_theta": 700.0, "rope_scaling": LLAMA3}, LLAMA3 | {"rope_theta": 700.0}),
        ({"rope_theta": 700, "rope_scaling": YARN}, YARN | {"rope_theta": 700.0}),
        ({"torch_dtype": "bfloat16"}, {"rope_theta": 10_000.0}),
    ],
)
def test_old_and_new_spelling_read_the_same(old: dict[str, Any], new: dict[str, Any]):
    written = {"rope_parameters": new, "dtype": "bfloat16"}
    assert LlamaConfig.from_hf(HF | old) == LlamaConfig.from_hf(HF | written)


def test_every_rope_field_is_read():
    rope = LlamaConfig.from_hf(HF | {"rope_parameters": YARN | {"rope_theta": 700.0}}).rope
    assert rope == RopeConfig(
        kind="yarn",
        theta=700.0,
        factor=4.0,
        original_max_positions=32,
        beta_fast=16.0,
        mscale=1.5,
        mscale_all_dim=0.5,
        truncate=False,
    )
    rope = LlamaConfig.from_hf(HF | {"rope_parameters": LLAMA3}).rope
    assert rope == RopeConfig(
        kind="llama3",
        factor=8.0,
        original_max_positions=32,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
    )


@pytest.mark.parametrize(
    ("eos", "read", "written"),
    [(None, (), None), (7, (7,), 7), ([7], (7,), 7), ([7, 9], (7, 9), [7, 9]), (0, (0,), 0)],
)
def test_end_tokens_may_be_none_one_or_several(eos: Any, read: tuple[int, ...], written: Any):
    config = LlamaConfig.from_hf(HF | {"eos_token_id": eos})
    assert config.eos_token_ids == read
    assert config.to_hf()["eos_token_id"] == written


def test_a_window_no_shorter_than_the_context_is_no_window():
    hf = HF | {"model_type": "mistral", "num_key_value_heads": 2}
    full = LlamaConfig.from_hf(hf | {"sliding_window": None})
    assert LlamaConfig.from_hf(hf | {"sliding_window": 64}) == full


def test_published_parameter_counts():
    llama_3_2_1b = {
        "model_type": "llama",
        "vocab_size": 128256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131072,
        "tie_word_embeddings": True,
    }
    qwen2_0_5b = {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": True,
    }
    assert LlamaConfig.from_hf(llama_3_2_1b).num_parameters == 1_235_814_400
    assert LlamaConfig.from_hf(qwen2_0_5b).num_parameters == 494_032_768


def test_sizes_of_the_shapes_that_are_known_by_name():
    assert {name: config.num_parameters for name, config in SHAPES.items()} == {
        "smollm2-135m": 134_515_008,
        "llama-3.1-8b": 8_030_261_248,
        "llama-3.1-70b": 70_553_706_496,
    }


@each_case
def test_parameters_are_those_of_the_checkpoint(case: Case):
    config = LlamaConfig.from_hf(case.hf)
    counted = sum(array.size for array in weights(case).values())
    model = jax.eval_shape(lambda: init(config, jax.random.key(0)))
    assert config.num_parameters == counted
    assert sum(leaf.size for leaf in jax.tree.leaves(model)) == counted


# Writing


@each_case
def test_what_is_written_reads_back(case: Case):
    config = LlamaConfig.from_hf(case.hf)
    assert LlamaConfig.from_hf(config.to_hf()) == config


@each_case
def test_transformers_reads_what_is_written_as_the_original(case: Case):
    original = _declared(case.hf)
    written = _declared(LlamaConfig.from_hf(case.hf).to_hf())
    assert written == original


def _declared(hf: dict[str, Any]) -> dict[str, Any]:
    """The fields that transformers' class of the family declares, as transformers reads them."""
    from transformers import AutoConfig

    read = AutoConfig.for_model(**hf)
    read.standardize_rope_params()
    fields = read.to_dict()
    rope = {key: value for key, value in fields["rope_parameters"].items() if key != "type"}
    if rope["rope_type"] == "yarn":
        rope = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True} | rope
    declared = dict.fromkeys(type(read)().to_dict().keys() - _IDLE)
    return {key: fields[key] for key in declared} | {"rope_parameters": rope}


# Not part of the model, or (the window, the interval) without effect once read.
_IDLE = {"architectures", "dtype", "pad_token_id", "sliding_window", "no_rope_layer_interval"}


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "smollm3"])
@pytest.mark.parametrize(
    "field",
    ["num_key_value_heads", "rms_norm_eps", "hidden_act", "tie_word_embeddings", "rope_theta",
     "attention_bias", "mlp_bias", "rope_parameters", "no_rope_layers"],
)  # fmt: skip
def test_a_field_left_out_is_what_transformers_makes_of_it(family: str, field: str):
    from transformers import AutoConfig

    hf = HF | {
        "model_type": family,
        "hidden_size": 128,
        "num_attention_heads": 32,  # transformers' qwen families default to 32 key/value heads
        "num_key_value_heads": 16,
        "head_dim": 4,
        "rms_norm_eps": 1e-3,
        "tie_word_embeddings": False,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    hf.pop(field, None)
    theirs = AutoConfig.for_model(**hf).to_dict()
    ours = LlamaConfig.from_hf(hf)
    read = LlamaConfig.from_hf(theirs)
    assert ours == dataclasses.replace(
        read, bos_token_id=ours.bos_token_id, eos_token_ids=ours.eos_token_ids
    )


@pytest.mark.parametrize(
    ("family", "change", "lost"),
    [
        ("llama", {"qkv_bias": True}, "out_bias"),
        ("llama", {"out_bias": True}, "out_bias"),
        ("llama", {"qk_norm": True}, "qk_norm"),
        ("llama", {"unrotated_layers": (1,)}, "unrotated_layers"),
        ("llama", {"rope": RopeConfig(rotated_fraction=0.5)}, "rope"),
        ("mistral", {"qkv_bias": True}, "qkv_bias"),
        ("qwen2", {"mlp_bias": True}, "mlp_bias"),
        ("qwen2", {"qkv_bias": False}, "qkv_bias"),
        ("qwen3", {"mlp_bias": True, "qk_norm": True}, "mlp_bias"),
        ("qwen3", {"qk_norm": False}, "qk_norm"),
        ("smollm3", {"qk_norm": True}, "qk_norm"),
        ("smollm3", {"unrotated_layers": (1, 0)}, "unrotated_layers"),
    ],
)
def test_what_the_family_cannot_express_is_not_written(
    family: str, change: dict[str, Any], lost: str
):
    plain = dataclasses.replace(BASE, family=family, qkv_bias=family == "qwen2")
    config = dataclasses.replace(plain, **change)
    with pytest.raises(ConfigError, match=rf"{family}.*{lost}.* would be lost"):
        config.to_hf()


def test_a_family_that_transformers_lacks_is_not_written():
    with pytest.raises(ConfigError, match="family 'gpt2'"):
        dataclasses.replace(BASE, family="gpt2").to_hf()


# Refusals


@pytest.mark.parametrize(
    ("change", "message"),
    [
        # Mistral 7B v0.1
        (
            {"model_type": "mistral", "sliding_window": 4096, "max_position_embeddings": 32768},
            "sliding_window is 4096",
        ),
        ({"model_type": "mistral", "max_position_embeddings": 32768}, "sliding_window is 4096"),
        ({"model_type": "qwen2", "use_sliding_window": True}, "use_sliding_window"),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
            "layer_types has sliding_attention",
        ),
        ({"num_local_experts": 8}, "num_local_experts is 8"),
        ({"num_experts": 4}, "num_experts is 4"),
        ({"n_routed_experts": 64}, "n_routed_experts is 64"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"embedding_multiplier": 12.0}, "embedding_multiplier is 12.0"),
        ({"quantization_config": {"quant_method": "awq"}}, "quantization_config.*awq"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "rope_type 'dynamic'.*Supported"),
        ({"rope_parameters": {"rope_type": "longrope"}}, "rope_type 'longrope'.*Supported"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
            "rope_parameters.*full_attention",
        ),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        ({"rope_parameters": {"partial_rotary_factor": 0.25}}, "partial_rotary_factor is 0.25"),
        ({"hidden_act": "relu2"}, "hidden_act 'relu2'.*Supported: silu"),
        ({"model_type": "lama"}, r"model_type 'lama'.*\(nearest: llama\)"),
        ({"model_type": "qwen2_moe"}, r"model_type 'qwen2_moe'.*\(nearest: qwen2\)"),
        ({"model_type": "bert"}, "model_type 'bert' is not supported. Supported: llama, mistral"),
        ({"num_attention_heads": 5}, "hidden_size .48. is not a multiple of num_attention_heads"),
        ({"num_key_value_heads": 3}, "num_heads .4. must be a multiple of num_kv_heads .3."),
        ({"head_dim": 15}, "even number of rotated dimensions, got 15"),
        ({"vocab_size": 0}, "vocab_size must be a whole number from 1 on, got 0"),
        ({"vocab_size": "64"}, "vocab_size must be a whole number from 1 on, got '64'"),
        ({"eos_token_id": ["2"]}, "eos_token_ids must be whole numbers, got '2'"),
        ({"rope_parameters": [1]}, "a field has a value of the wrong kind"),
        ({"rms_norm_eps": "small"}, "a field has a value of the wrong kind .*'small'"),
        ({"model_type": "smollm3", "no_rope_layers": [1]}, "no_rope_layers has 1 entries for 2"),
        ({"rope_scaling": {"type": "linear"}}, "'linear' needs 'factor'"),
        ({"rope_scaling": {"type": "yarn", "factor": None}}, "'yarn' needs 'factor'"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0, "high_freq_factor": 4.0}},
            "'llama3' needs 'low_freq_factor'",
        ),
    ],
)
def test_what_is_not_computed_is_refused_by_name(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        LlamaConfig.from_hf(HF | change)


@pytest.mark.parametrize("field", HF)
def test_a_missing_field_is_named(field: str):
    with pytest.raises(ConfigError, match=re.escape(repr(field))):
        LlamaConfig.from_hf({key: value for key, value in HF.items() if key != field})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_layers": 0}, "num_layers must be a whole number from 1 on"),
        ({"num_kv_heads": 3}, "num_heads .4. must be a multiple"),
        ({"rope": RopeConfig(rotated_fraction=0.6)}, "even number of rotated dimensions, got 7"),
        ({"rope": RopeConfig(rotated_fraction=1.5)}, "rotated_fraction must be .* got 1.5"),
        ({"rope": RopeConfig(rotated_fraction=0.0)}, "rotated_fraction must be .* got 0.0"),
        ({"rope": RopeConfig(kind="yarn")}, "'yarn' needs original_max_positions"),
        ({"unrotated_layers": (2,)}, "unrotated_layers"),
        ({"unrotated_layers": (-1,)}, "unrotated_layers"),
        ({"activation": "relu"}, "activation 'relu'"),
    ],
)
def test_a_config_that_cannot_work_is_refused(change: dict[str, Any], message: str):
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(BASE, **change)


# Every field counts: a field that nothing reads is a defect that no parity test would show.

BASE = LlamaConfig(
    vocab_size=29,
    hidden_size=20,
    intermediate_size=24,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=12,
)

CHANGED: dict[str, Any] = {
    "vocab_size": 30,
    "hidden_size": 24,
    "intermediate_size": 28,
    "num_layers": 3,
    "num_heads": 2,
    "num_kv_heads": 4,
    "head_dim": 6,
    "norm_eps": 0.05,
    "activation": "gelu",
    "tie_embeddings": True,
    "qkv_bias": True,
    "out_bias": True,
    "mlp_bias": True,
    "qk_norm": True,
    "rope": RopeConfig(theta=100.0),
    "unrotated_layers": (1,),
}

NOT_COMPUTED: dict[str, tuple[Any, str, Any]] = {
    # field of ours: a value, and what it is in config.json
    "family": ("mistral", "model_type", "mistral"),
    "max_positions": (77, "max_position_embeddings", 77),
    "bos_token_id": (5, "bos_token_id", 5),
    "eos_token_ids": ((5, 6), "eos_token_id", [5, 6]),
}

_LINEAR = RopeConfig(kind="linear", factor=4.0)
_LLAMA3 = RopeConfig(kind="llama3", factor=4.0, original_max_positions=16)
_YARN = RopeConfig(kind="yarn", theta=30.0, factor=4.0, original_max_positions=32, beta_fast=3.0)

CHANGED_ROPE: dict[str, list[tuple[RopeConfig, Any]]] = {
    "theta": [(RopeConfig(), 100.0), (_LINEAR, 100.0), (_LLAMA3, 100.0), (_YARN, 100.0)],
    "kind": [(_LINEAR, "default"), (_LLAMA3, "linear"), (_YARN, "llama3")],
    "factor": [(_LINEAR, 2.0), (_LLAMA3, 2.0), (_YARN, 2.0)],
    "original_max_positions": [(_LLAMA3, 32), (_YARN, 64)],
    "low_freq_factor": [(_LLAMA3, 2.0)],
    "high_freq_factor": [(_LLAMA3, 9.0)],
    "beta_fast": [(_YARN, 2.0)],
    "beta_slow": [(_YARN, 0.2)],
    "attention_factor": [(_YARN, 2.0)],
    "mscale": [(dataclasses.replace(_YARN, mscale_all_dim=0.5), 2.5)],
    "mscale_all_dim": [(dataclasses.replace(_YARN, mscale=2.5), 0.5)],
    "truncate": [(_YARN, False)],
    "rotated_fraction": [(RopeConfig(), 0.5), (_LINEAR, 0.5), (_LLAMA3, 0.5), (_YARN, 0.5)],
}


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(LlamaConfig)])
def test_every_field_changes_the_logits_or_the_parameters_or_is_named_here(field: str):
    if field in NOT_COMPUTED:
        value, key, written = NOT_COMPUTED[field]
        config = dataclasses.replace(BASE, **{field: value})
        assert config.to_hf()[key] == written
        assert getattr(LlamaConfig.from_hf(config.to_hf()), field) == value
        np.testing.assert_array_equal(_logits(config), _logits(BASE))
    else:
        assert field in CHANGED, f"say in CHANGED how {field} shows, or in NOT_COMPUTED that not"
        _assert_matters(BASE, dataclasses.replace(BASE, **{field: CHANGED[field]}))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(RopeConfig)])
def test_every_rope_field_changes_the_logits(field: str):
    assert field in CHANGED_ROPE, f"say in CHANGED_ROPE how {field} shows"
    for rope, value in CHANGED_ROPE[field]:
        changed = dataclasses.replace(rope, **{field: value})
        _assert_matters(
            dataclasses.replace(BASE, rope=rope), dataclasses.replace(BASE, rope=changed)
        )


def _assert_matters(config: LlamaConfig, changed: LlamaConfig) -> None:
    if parameter_shapes(config) == parameter_shapes(changed):
        assert np.abs(_logits(config) - _logits(changed)).max() > 1e-3


@functools.cache
def _logits(config: LlamaConfig) -> np.ndarray:
    """Logits of the weights that the shapes determine, past every rope window in use."""
    parameters = {
        name: np.random.default_rng(len(name)).normal(size=shape).astype(np.float32)
        for name, shape in parameter_shapes(config).items()
    }
    scaled = {
        name: value * np.float32(value.shape[-1] ** -0.5) for name, value in parameters.items()
    }
    tokens: Any = np.arange(80) * 7 % config.vocab_size
    with jax.disable_jit():  # the config is static: compiling for each would take far longer
        return np.asarray(forward(Llama(config, scaled), tokens))
