"""`pce-jax finetune` and `export`: killed, stopped, gone on with, and used."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finetune.conftest import CONFIG

TIMES = ("seconds", "tokens_per_second")


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory, tiny: Path) -> Path:
    folder = tmp_path_factory.mktemp("finetune")
    letters = np.random.default_rng(0).integers(97, 123, 480).astype(np.uint8)
    (folder / "letters.txt").write_bytes(letters.tobytes())
    file = folder / "tiny.toml"
    file.write_text(CONFIG.format(model=tiny, text="letters.txt"), encoding="utf-8")
    return file


def rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [
        {key: value for key, value in json.loads(line).items() if key not in TIMES}
        for line in lines
    ]


def process(config: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pce_jax.cli", "finetune", str(config), "--out", str(out)]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=config.parent
    )


def finish(running: subprocess.Popen[str]) -> None:
    _, error = running.communicate()
    assert running.returncode == 0, error


def wait_for(file: Path, text: str, running: subprocess.Popen[str]) -> None:
    while not (file.exists() and text in file.read_text()):
        assert running.poll() is None, running.communicate()
        time.sleep(0.01)


@pytest.mark.slow
def test_a_run_from_a_config_to_adapters_in_use(run, config, tmp_path, docs):
    out = tmp_path / "out"
    quick = ("steps=2", "optimizer.learning_rate=0.1", "evaluate.final=1")
    ran = run("finetune", config, "--out", out, *(part for one in quick for part in ("--set", one)))
    assert ran.status == 0, ran.err
    assert "step     0  text       base     log PPL: full" in ran.out
    assert "text, 4 segments: log PPL" in ran.out
    assert f"Written: {out}" in ran.out
    assert "2 of 2 steps" in ran.err
    for form in ("adapters", "model"):
        ran = run("export", out, "--out", tmp_path / form, "--form", form)
        assert ran.status == 0, ran.err
    assert (tmp_path / "model" / "adapters" / "context_adapters.safetensors").exists()
    tiny = json.loads((out / "run.json").read_text())["model"]
    asked = ("--question", "Who?", "--max-new-tokens", 2, "--method", "naive", "--json")
    answers = [
        json.loads(run("generate", "--docs", *docs, *asked, "--model", *model).out)
        for model in (
            (tiny, "--adapters", tmp_path / "adapters"),
            (tmp_path / "model", "--adapters", tmp_path / "model" / "adapters"),
            (tiny,),
        )
    ]
    entropies = [answer["entropy"] for answer in answers]
    np.testing.assert_allclose(entropies[0], entropies[1], atol=1e-5)
    assert abs(entropies[0] - entropies[2]) > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("step", [1, 2, 4])
def test_a_killed_run_goes_on_to_the_numbers_of_an_unbroken_one(config, tmp_path, step):
    finish(process(config, tmp_path / "whole"))
    for again in range(2):  # at a step, and while its checkpoint may be on its way
        out = tmp_path / f"killed-{again}"
        killed = process(config, out)
        wait_for(out / "metrics.jsonl", f'"step": {step}, "degree"', killed)
        time.sleep(0.05 * again)
        killed.kill()
        killed.communicate()
        finish(process(config, out))
        assert rows(out) == rows(tmp_path / "whole")


@pytest.mark.slow
def test_sigterm_keeps_everything_and_ends_well(config, tmp_path):
    running = process(config, tmp_path)
    wait_for(tmp_path / "metrics.jsonl", '"kind": "step"', running)
    running.send_signal(signal.SIGTERM)
    out, error = running.communicate()
    assert running.returncode == 0, error
    if "Stopped, with everything kept" in out:  # it was not at its last step
        assert not (tmp_path / "summary.json").exists()
    steps = [row["step"] for row in rows(tmp_path) if row["kind"] == "step"]
    kept = [int(path.name) for path in (tmp_path / "checkpoints").glob("[0-9]*")]
    assert max(kept) == max(steps)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("finetune", "none.toml"), "there is no config none.toml"),
        (("finetune", "{config}", "--set", "loss.entrpy=1"), "Did you mean 'entropy'?"),
        (("export", "nowhere", "--out", "x"), "nowhere holds no run"),
    ],
)
def test_bad_arguments_end_with_2(run, config, arguments, problem):
    ran = run(*(str(one).format(config=config) for one in arguments))
    assert ran.status == 2
    assert problem in " ".join(ran.err.split())
