"""What was trained, for others: Hugging Face folders and peft adapters, with the same logits."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

import pce_jax as pce
from pce_jax.adapters import Adapters, from_text_sink, log_temperature
from pce_jax.errors import AdapterError, FinetuneError, MethodError
from pce_jax.finetune.export import export, tuned
from pce_jax.finetune.step import Trained
from pce_jax.models import forward, init_lora

TOKENS = jnp.asarray([[5, 17, 200, 3, 99, 120, 7, 64]])
CONTEXT = pce.from_segments([[5, 6, 7, 8], [9, 10, 11], [12, 13, 14, 15, 16]])


def random_adapters(model: Any, targets: tuple[str, ...] = ("q", "v", "o", "gate", "down")) -> Any:
    lora = init_lora(model.config, jax.random.key(1), rank=3, alpha=6, targets=targets)
    b = {
        name: 0.3 * jax.random.normal(jax.random.key(number), x.shape)
        for number, (name, x) in enumerate(lora.b.items())
    }
    heat = 0.1 * jax.random.normal(jax.random.key(9), log_temperature(model.config).shape)
    sink = from_text_sink(model, [3, 4])
    return Adapters(dataclasses.replace(lora, b=b), heat, sink)


@pytest.fixture
def adapters(loaded: Any) -> Adapters:
    return random_adapters(loaded[0])


def logits(model: Any) -> np.ndarray:
    cache = pce.encode(model, CONTEXT)
    return np.asarray(pce.query(model, cache, TOKENS[0]).logits)


def test_adapters_come_back_from_files_as_they_were(loaded, adapters, tmp_path):
    pce.save_adapters(adapters, tmp_path / "made")
    found = pce.load_adapters(tmp_path / "made", loaded[0].config)
    assert jax.tree.structure(found) == jax.tree.structure(adapters)
    for mine, other in zip(*map(jax.tree.leaves, (found, adapters)), strict=True):
        np.testing.assert_array_equal(mine, other)


def test_a_tuned_model_reads_with_all_its_adapters(loaded, adapters):
    model, _ = loaded
    whole = pce.with_adapters(model, adapters)
    cache = pce.encode(whole, CONTEXT)
    assert cache.sharpness is not None
    np.testing.assert_allclose(cache.sharpness, jnp.exp(-adapters.log_temperature))
    assert cache.sink.k.shape[-2] == 2
    full = pce.Method(full=True)
    plain = pce.with_adapters(model, Adapters(lora=adapters.lora))
    mine, other = (
        pce.query(one, pce.encode(one, CONTEXT, full), TOKENS[0], full).logits
        for one in (whole, plain)
    )
    np.testing.assert_array_equal(mine, other)  # full attention has LoRA alone


def test_lora_can_be_for_segments_alone(loaded, adapters, tmp_path):
    model, tokenizer = loaded
    apart = dataclasses.replace(adapters, lora_in_full=False)
    pce.save_adapters(apart, tmp_path / "made")
    found = pce.load_adapters(tmp_path / "made", model.config)
    assert not found.lora_in_full
    tuned_model, full = pce.with_adapters(model, found), pce.Method(full=True)
    mine, plain = (
        pce.query(one, pce.encode(one, CONTEXT, full), TOKENS[0], full).logits
        for one in (tuned_model, model)
    )
    np.testing.assert_array_equal(mine, plain)
    np.testing.assert_array_equal(logits(tuned_model), logits(pce.with_adapters(model, adapters)))
    with pytest.raises(FinetuneError, match="trained for segments alone"):
        export(Trained(None, apart), model, tokenizer, tmp_path / "model", form="model")


def test_a_learned_sink_and_one_of_text_do_not_mix(loaded, adapters):
    model = pce.with_adapters(loaded[0], adapters)
    context = dataclasses.replace(CONTEXT, sink=np.asarray([1], np.int32))
    with pytest.raises(MethodError, match="the model has a learned sink"):
        pce.encode(model, context, pce.METHODS["sink"])


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_peft_gives_the_same_logits(tiny, loaded, adapters, tmp_path):
    peft = pytest.importorskip("peft", reason="compares with peft: make parity")
    torch = pytest.importorskip("torch", reason="compares with PyTorch: make parity")
    pce.save_adapters(adapters, tmp_path / "made", str(tiny))
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(base, tmp_path / "made")
    with torch.no_grad():
        expected = theirs(torch.tensor(np.asarray(TOKENS))).logits.numpy()
    found = forward(pce.with_adapters(loaded[0], Adapters(lora=adapters.lora)), TOKENS)
    np.testing.assert_allclose(found, expected, atol=2e-5)
    assert np.abs(expected - np.asarray(forward(loaded[0], TOKENS))).max() > 0.01


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_what_peft_writes_is_read(tiny, loaded, tmp_path):
    peft = pytest.importorskip("peft", reason="compares with peft: make parity")
    torch = pytest.importorskip("torch", reason="compares with PyTorch: make parity")
    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_pretrained(tiny, dtype=torch.float32)
    made = peft.get_peft_model(
        base,
        peft.LoraConfig(
            r=2, lora_alpha=5, target_modules=["k_proj", "up_proj"], init_lora_weights=False
        ),
    )
    made.save_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        expected = made(torch.tensor(np.asarray(TOKENS))).logits.numpy()
    found = pce.load_adapters(tmp_path / "theirs", loaded[0].config)
    np.testing.assert_allclose(
        forward(pce.with_adapters(loaded[0], found), TOKENS), expected, atol=2e-5
    )


def test_an_exported_model_gives_the_same_logits(loaded, adapters, tmp_path):
    model, tokenizer = loaded
    trained = Trained(None, adapters)
    export(trained, model, tokenizer, tmp_path / "made", form="model")
    merged, _ = pce.load(str(tmp_path / "made"))
    rest = pce.load_adapters(tmp_path / "made" / "adapters", merged.config)
    assert rest.lora is None
    mine = logits(pce.with_adapters(merged, rest))
    np.testing.assert_allclose(mine, logits(tuned(model, trained)), atol=2e-5)


def test_trained_weights_are_exported_as_they_are(loaded, tmp_path):
    model, tokenizer = loaded
    moved = jax.tree.map(lambda x: x + 0.01, model)
    export(Trained(moved, Adapters()), model, tokenizer, tmp_path / "made", form="model")
    found, _ = pce.load(str(tmp_path / "made"))
    for mine, other in zip(*map(jax.tree.leaves, (found, moved)), strict=True):
        np.testing.assert_array_equal(mine, other)
    with pytest.raises(FinetuneError, match="all weights were trained"):
        export(Trained(moved, Adapters()), model, tokenizer, tmp_path / "x", form="adapters")


def change(folder: Path, **changes: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def retensor(folder: Path, name: str, old: str, new: str | None) -> None:
    tensors = load_file(folder / name)
    value = tensors.pop(old)
    if new is not None:
        tensors[new] = value
    save_file(tensors, folder / name)


FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda folder: change(folder, use_dora=True), "use_dora is set"),
        (lambda folder: change(folder, peft_type="IA3"), "only LoRA without biases"),
        (
            lambda folder: change(folder, r=4),
            r"lora_A.weight is \[3, .*needs \[4, ",
        ),
        (lambda folder: change(folder, r=None), "adapter_config.json cannot be read"),
        (
            lambda folder: retensor(folder, "adapter_model.safetensors", FIRST, "other"),
            "holds other, which is no LoRA factor",
        ),
        (
            lambda folder: retensor(folder, "adapter_model.safetensors", FIRST, None),
            "lora_A of q_proj is there for 1 layers, and the model has 2",
        ),
        (
            lambda folder: retensor(
                folder, "context_adapters.safetensors", "log_temperature", "warmth"
            ),
            "holds warmth, which is unknown",
        ),
        (
            lambda folder: (folder / "adapter_model.safetensors").write_bytes(b"x"),
            "adapter_model.safetensors cannot be read",
        ),
        (lambda folder: [file.unlink() for file in folder.iterdir()], "holds no adapters"),
    ],
)
def test_adapters_that_do_not_fit_are_refused(loaded, adapters, tmp_path, spoil, problem):
    folder = tmp_path / "made"
    pce.save_adapters(adapters, folder)
    spoil(folder)
    with pytest.raises(AdapterError, match=problem):
        pce.load_adapters(folder, loaded[0].config)


def test_a_folder_that_is_not_empty_is_left_alone(adapters, tmp_path):
    (tmp_path / "mine").write_text("x")
    with pytest.raises(AdapterError, match="exists and is not an empty folder"):
        pce.save_adapters(adapters, tmp_path)
    with pytest.raises(AdapterError, match="no adapters to write"):
        pce.save_adapters(Adapters(), tmp_path / "new")
