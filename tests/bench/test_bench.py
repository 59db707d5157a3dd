import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cli.conftest import run
from tiny_models import tiny_config

import pce_jax as pce
from pce_jax.bench import compiled, huggingface, train
from pce_jax.bench.setting import as_one_segment
from pce_jax.cli.bench import Bench
from pce_jax.models import SHAPES, init, llama

__all__ = ["run"]

FAST = ("--quick", "--repeats", 2)


def read(folder):
    return json.loads((folder / "bench.json").read_text(encoding="utf-8"))


def test_shapes_stand_in_for_a_model(run, tmp_path, monkeypatch):
    monkeypatch.setitem(SHAPES, "llama-3.1-8b", tiny_config())
    parts = ("--parts", "compile", "--out", tmp_path / "out")
    ran = run("bench", "--shapes", "llama-3.1-8b", *FAST, *parts)
    assert ran.status == 0, ran.err
    assert read(tmp_path / "out")["setting"]["model"] == "llama-3.1-8b (random weights)"


def test_without_torch(run, tiny, tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface, "installed", lambda package: package != "torch")
    parts = ("--parts", "encode,compile,huggingface")
    ran = run("bench", "--model", tiny, *FAST, *parts, "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    assert "Hugging Face: skipped, because torch is not installed" in ran.err
    assert "pce-jax[parity]" in ran.out
    paths = (str(tmp_path), str(tiny))
    assert all(len(line) <= 80 for line in ran.out.splitlines() if not any(map(line.count, paths)))
    files = sorted(file.name for file in (tmp_path / "out").iterdir())
    assert files == ["bench.json", "bench.md", "bench.png"]
    assert (tmp_path / "out/bench.png").read_bytes().startswith(b"\x89PNG")
    found = read(tmp_path / "out")
    assert found["finished"] and found["setting"]["cores"] >= 1
    assert found["setting"]["versions"]["jax"] == jax.__version__
    assert found["roofline"]["flops"] > 0 and found["roofline"]["bytes"] > 0
    assert "skipped" in found["notes"][0]
    bars = {bar["key"]: bar for bar in found["bars"]}
    assert set(bars) == {"encode-64", "encode-matmul", "programs"}
    assert bars["programs"]["verdict"] == "pass" and bars["encode-64"]["verdict"] == ""
    assert all(len(row["sample"]) == 2 for row in found["rows"])
    text = (tmp_path / "out/bench.md").read_text(encoding="utf-8")
    for bar in found["bars"]:
        assert bar["name"] in text and bar["name"] in ran.out


@pytest.mark.slow
def test_everything(run, tiny, tmp_path):
    args = ("--no-huggingface", "--out", tmp_path / "out")
    ran = run("bench", "--model", tiny, *FAST, *args)
    assert ran.status == 0, ran.err
    assert all(len(line) <= 80 for line in ran.out.splitlines() if str(tmp_path) not in line)
    found = read(tmp_path / "out")
    bars = {bar["key"]: bar for bar in found["bars"]}
    assert set(bars) == {
        *("encode-64", "encode-matmul", "query-entropy", "query-ht", "query-per-head"),
        *("decode-ht", "train-entropy", "memory-query-entropy", "programs"),
    }
    assert all(bar["value"] > 0 for bar in bars.values())
    rows = found["rows"]
    fewer = [row for row in rows if row["part"] == "train" or "2 rows" in row["size"]]
    assert len(fewer) == 2 + 4
    assert all(len(row["sample"]) == (1 if row in fewer else 2) for row in rows)
    decoded = [row for row in rows if row["part"] == "decode"]
    assert len(decoded) == 2 * 4 and {row["tokens"] for row in decoded} == {1, 2}
    assert all(row["compile_seconds"] > 0 for row in decoded)


@pytest.mark.parity
@pytest.mark.slow
def test_against_hugging_face(run, tiny, tmp_path):
    ran = run("bench", "--model", tiny, *FAST, "--parts", "huggingface", "--out", tmp_path / "out")
    assert ran.status == 0, ran.err
    found = read(tmp_path / "out")
    assert [bar["key"] for bar in found["bars"]] == ["huggingface-prefill"]
    assert found["facts"][0]["value"] < 1e-4  # the same logits
    assert not found["notes"]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--parts", "encode,qery"], "Did you mean query?"),
        (["--parts", ","], "no part is named"),
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--parts", "huggingface", "--no-huggingface"], "Name others"),
        (["--model", "nowhere"], "nowhere"),
    ],
)
def test_bad_settings(run, args, says):
    ran = run("bench", *args)
    assert ran.status == 2
    assert says in " ".join(ran.err.replace("│", " ").split())


def test_help(run):
    ran = run("bench", "--help")
    assert ran.status == 0
    for field in dataclasses.fields(Bench):
        assert f"--{field.name.replace('_', '-')}" in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_an_interruption_leaves_what_was_measured(run, tiny, tmp_path, monkeypatch):
    def interrupt(setting):
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "measure", interrupt)
    args = ("--parts", "encode,compile", "--out", tmp_path / "out")
    assert run("bench", "--model", tiny, *FAST, *args).status == 130
    assert [file.name for file in (tmp_path / "out").iterdir()] == ["bench.json"]
    found = read(tmp_path / "out")
    assert not found["finished"] and found["rows"]


def test_full_attention_reads_the_same_keys_in_one_segment():
    model = init(tiny_config(max_positions=128), jax.random.key(0))
    cache = pce.encode(model, pce.split(list(range(1, 40)) + list(range(1, 25)), 4))
    query = jnp.asarray([3, 4, 5])
    several = pce.query(model, cache, query)
    one = pce.query(model, as_one_segment(cache), query)
    np.testing.assert_allclose(one.logits, several.logits, atol=1e-4)


def test_own_prefill_gives_the_last_logits():
    model = init(tiny_config(max_positions=128), jax.random.key(0))
    tokens = list(range(1, 33))
    ours = huggingface.own_prefill(model, tokens)
    np.testing.assert_allclose(ours, llama.forward(model, jnp.asarray(tokens))[-1], atol=1e-4)


@pytest.mark.slow
def test_the_loss_has_entropy_and_a_gradient_through_encoding():
    model = init(tiny_config(max_positions=128, num_layers=1), jax.random.key(0))
    context, tokens = pce.split(list(range(1, 33)), 4), jnp.asarray([5, 6, 7, 8])
    loss, gradient = train.loss_and_gradient(context, tokens, entropy=True)(model)
    out = pce.score(model, pce.encode(model, context), tokens, stats=True)
    assert out.stats is not None
    expected = float(out.nll.sum() / 3 + out.stats.mean())
    assert float(loss) == pytest.approx(expected, abs=1e-4)
    assert float(jnp.abs(gradient.blocks.k_proj[...]).max()) > 0


def test_lengths_of_documents_differ():
    assert len(set(compiled.lengths(100))) == 100
    assert compiled.lengths(100)[0] == 1
