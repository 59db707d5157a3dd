import json
import math

import numpy as np
import pytest

import pce_jax as pce
from pce_jax.analysis.study import plan

SMALL = ("--window-tokens", 64, "--query-tokens", 16, "--degrees", 4)
PICTURES = ["entropy-P4.png", "heads.png", "k_norm-P4.png", "logit-P4.png"]


def written(folder):
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*"))


def rows(file):
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def test_of_a_text(run, tiny, tmp_path):
    out = tmp_path / "out"
    ran = run("analyze", "--model", tiny, "--out", out, *SMALL, "--methods", "naive,sink")
    assert ran.status == 0, ran.err
    assert written(out) == sorted([*PICTURES, "layers.jsonl", "tokens.jsonl"])
    assert all((out / name).read_bytes().startswith(b"\x89PNG") for name in PICTURES)
    assert all(len(line) <= 80 for line in ran.out.splitlines() if str(tmp_path) not in line)

    cells = [("full", 1), ("naive", 4), ("sink", 4)]
    layers, tokens = rows(out / "layers.jsonl"), rows(out / "tokens.jsonl")
    assert list(dict.fromkeys((row["method"], row["degree"]) for row in layers)) == cells
    sinks = sum("sink" in name for name, _ in cells)
    assert len(layers) == 2 * 4 * (2 * len(cells) + sinks)  # layers, heads, parts
    assert len(tokens) == 64 * len(cells) + 2 * sinks  # the sink has two bytes
    for row in layers + tokens:
        assert all(math.isfinite(x) for x in row.values() if isinstance(x, float))
        total = row["sink_mass"] + row["segment_mass"] + row["tail_mass"]
        assert total == pytest.approx(1, abs=1e-4)
        parts = row["entropy_between"] + row["entropy_within"]
        assert row["entropy"] == pytest.approx(parts, abs=1e-4)
        if row["part"] == "query":
            assert sum(row["segment_masses"]) == pytest.approx(row["segment_mass"], abs=1e-4)
            assert len(row["segment_masses"]) == row["degree"]
    naive = [row for row in tokens if (row["method"], row["degree"]) == ("naive", 4)]
    assert [row["token"] for row in naive] == list(range(64))
    assert [row["segment"] for row in naive] == [n for n in (1, 2, 3, 4) for _ in range(12)] + [
        None
    ] * 16
    sink = [row["token"] for row in tokens if row["method"] == "sink" and row["degree"] == 4]
    assert sink == list(range(-2, 64))
    full = [row["token_id"] for row in tokens if row["method"] == "full"]
    assert full == [row["token_id"] for row in naive]
    # Each segment's first token sees itself alone; under full attention only the first one does.
    starts = [row["entropy"] for row in naive if row["part"] == "segment" and not row["index"]]
    np.testing.assert_allclose(starts, 0, atol=1e-5)


def test_nothing_is_measured_twice():
    methods = {name: pce.METHODS[name] for name in ("full", "naive", "sink", "sink+sel")}
    assert plan(methods, (1, 2)) == [
        ("full", 1),
        ("sink", 1),
        ("naive", 2),
        ("sink", 2),
        ("sink+sel", 2),
    ]


def test_of_documents_with_swaps(run, tiny, docs, tmp_path):
    ran = run(
        *("analyze", "--model", tiny, "--docs", *docs, "--question", "Who sang?", "--swaps"),
        *("--degrees", 2, "--methods", "naive,sel"),
    )
    assert ran.status == 0, ran.err
    out = tmp_path / "here/pce-analysis"
    found = {(r["method"], r["degree"], r["swapped"]): r for r in rows(out / "swaps.jsonl")}
    assert len(found) == 1 + 2 * 4
    full = found["full", 1, ""]
    both = found["naive", 2, "KV"]
    assert both["perplexity"] == pytest.approx(full["perplexity"], rel=1e-4)
    assert both["entropy"] == pytest.approx(full["entropy"], abs=1e-4)
    assert found["naive", 2, ""]["entropy"] != pytest.approx(full["entropy"], abs=1e-4)
    assert "from full attention:" in ran.out
    assert "entropy-P2.png" in written(out)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--docs", "{docs}"], "--docs needs --question too"),
        (["--question", "Why?"], "--question needs --docs too"),
        (["--docs", "{docs}", "--text", "{docs}"], "Give one of them"),
        (["--docs", "{docs}", "--question", "Why?", "--degrees", "1,2"], "not 2"),
        (["--docs", "{docs}", "--question", " ", "--degrees", "1"], "--question is empty"),
        (["--degrees", "1,49"], "leaves 48 context tokens for 49 segments"),
        (["--query-tokens", "0"], "with --query-tokens 0"),
        (["--text", "absent.txt"], "there is no file absent.txt"),
    ],
)
def test_bad_settings(run, tiny, docs, tmp_path, args, says):
    args = [str(docs[0]) if arg == "{docs}" else arg for arg in args]
    ran = run("analyze", "--model", tiny, *SMALL, *args)
    assert ran.status == 2
    assert says in ran.err and "Traceback" not in ran.err
    assert written(tmp_path / "here") == []
