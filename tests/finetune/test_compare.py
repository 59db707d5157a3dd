"""Runs side by side: what the table says, and what is drawn."""

import json
from pathlib import Path
from typing import Any

import pytest

from pce_jax.errors import FinetuneError
from pce_jax.finetune.compare import pictures, read_result, recipes, table
from pce_jax.finetune.measured import Measured, closed


def measured(log_ppl: float, entropy: float) -> Measured:
    return Measured(
        targets=(10.0, 20.0), ce=(9 * log_ppl, 21 * log_ppl), entropy=(10 * entropy, 20 * entropy)
    )


BASE = {1: measured(3.0, 2.8), 8: measured(3.2, 3.8)}


def run(folder: Path, tuned: dict[int, Measured], seed: int = 0, steps: int = 2) -> Path:
    """A folder as a finished run leaves it."""

    def told(found: dict[int, Measured]) -> dict[str, Any]:
        return {str(degree): one.to_json() for degree, one in found.items()}

    folder.mkdir()
    settings = {"steps": steps, "seed": seed}
    (folder / "run.json").write_text(json.dumps({"model": "m", "settings": settings}))
    rows: list[dict[str, Any]] = [
        {"kind": "heldout", "step": step, "task": "book", "who": who, "degrees": told(found)}
        for step, who, found in ((0, "base", BASE), (2, "tuned", tuned))
    ]
    rows.insert(1, {"kind": "step", "step": 1, "seconds": 90.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    summary = {"book": {"base": told(BASE), "tuned": told(tuned)}}
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_means_are_over_tokens_and_the_spread_over_texts():
    one = Measured(targets=(10.0, 30.0), ce=(20.0, 90.0), entropy=(10.0, 30.0))
    assert (one.log_ppl, one.mean_entropy) == (2.75, 1.0)
    assert one.first(1).log_ppl == 2.0
    assert one.first(1).spread == 0.0
    # Residuals -7.5 and 7.5: deviation 10.6 over root 2, in units of 20 tokens a text.
    assert one.spread == pytest.approx(0.375)
    assert Measured.from_json(json.loads(json.dumps(one.to_json()))) == one


def test_the_gap_is_to_the_better_of_the_full_readings(tmp_path):
    better = {1: measured(2.9, 2.7), 8: measured(3.0, 3.0)}
    assert closed(BASE, better, 8) == pytest.approx(0.5)
    worse = {1: measured(3.1, 2.7), 8: measured(3.1, 3.0)}
    assert closed(BASE, worse, 8) == pytest.approx(0.5)
    lines = table([read_result(run(tmp_path / "one", better))], 8).splitlines()
    assert lines[2] == "| before |  | 3.0000 | 3.2000 |  | 2.800 | 3.800 |"
    assert lines[3] == "| one | 2 | 2.9000 | 3.0000 | 50% | 2.700 | 3.000 |"


def test_runs_that_differ_by_their_seed_alone_share_a_row(tmp_path):
    tuned = [{1: BASE[1], 8: measured(log_ppl, 3.0)} for log_ppl in (3.10, 3.12, 3.05)]
    results = [
        read_result(run(tmp_path / "ce-0", tuned[0])),
        read_result(run(tmp_path / "long", tuned[2], steps=9)),
        read_result(run(tmp_path / "ce-1", tuned[1], seed=1)),
    ]
    assert [recipe.name for recipe in recipes(results)] == ["ce", "long"]
    lines = table(results, 8).splitlines()
    closed = "3.0000 ±0.0000 | 3.1100 ±0.0100 | 45% ±5% | 2.800 ±0.000 | 3.000 ±0.000"
    assert lines[3] == f"| ce | 2 ±0 | {closed} |"
    assert lines[4] == "| long | 2 | 3.0000 | 3.0500 | 75% | 2.800 | 3.000 |"


def test_a_picture_for_each_task(tmp_path):
    names = ("one", "two")
    results = [read_result(run(tmp_path / name, BASE)) for name in names]
    assert results[0].curve("book", 8, 1) == [
        (0, pytest.approx(2.88), 3.8),
        (2, pytest.approx(2.88), 3.8),
    ]
    drawn = pictures(results, 8)
    assert list(drawn) == ["book-P8.png"]
    assert drawn["book-P8.png"].startswith(b"\x89PNG")


def test_what_cannot_be_compared_is_said(tmp_path):
    fewer = {degree: one.first(1) for degree, one in BASE.items()}
    results = [
        read_result(run(tmp_path / name, found)) for name, found in (("all", BASE), ("few", fewer))
    ]
    with pytest.raises(FinetuneError, match="few was measured on 1 other texts of book than the"):
        table(results, 8)
    folder = run(tmp_path / "one", {1: BASE[1]})
    with pytest.raises(FinetuneError, match="one was not measured on book at degree 8"):
        table([read_result(folder)], 8)
    (folder / "summary.json").unlink()
    with pytest.raises(FinetuneError, match="one is not finished"):
        read_result(folder)
    with pytest.raises(FinetuneError, match="holds no run"):
        read_result(tmp_path)
