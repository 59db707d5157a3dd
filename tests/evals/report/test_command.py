import pytest
from evals.report.result_rows import answers, passages, write_folder

from pce_jax.cli import main


@pytest.fixture
def run(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")

    def run(*args):
        status = main(["report", *map(str, args)])
        return status, *capsys.readouterr()

    return run


def test_report(run, tmp_path):
    folder = write_folder(tmp_path / "results", answers() + passages())
    status, out, err = run(folder, "--resamples", 50)
    assert status == 0, err
    written = {path.name for path in (folder / "report").iterdir()}
    assert {"report.md", "cells.csv", "statistics.csv", "score.png"} <= written
    assert str(folder / "report" / "report.md") in out
    text = (folder / "report" / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# Results: model\n")
    assert "some/model, float32" in text and "50 resamples, seed 0" in text
    assert "## Read this first" not in text
    assert run(folder, "--resamples", 50)[0] == 0  # its own files do not disturb it


def test_unfinished(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pce_jax.evals.report.report.pictures", lambda studies, title: {})
    rows = [r for r in answers() if not (r.degree == 4 and r.method == "sink")]
    folder = write_folder(tmp_path / "results", rows[:-1])
    assert run(folder, "--out", tmp_path / "out", "--resamples", 50)[0] == 0
    text = (tmp_path / "out" / "report.md").read_text(encoding="utf-8")
    assert "qa: not finished: sink P=2 (7 of 8 instances)" in text
    assert "qa: not measured: sink P=4." in text


def test_bad_folders(run, tmp_path, monkeypatch):
    monkeypatch.setattr("pce_jax.evals.report.report.pictures", lambda studies, title: {})

    def fails(*args):
        status, _, err = run(*args)
        assert status == 2 and "Traceback" not in err
        return " ".join(err.split())

    (tmp_path / "empty").mkdir()
    assert "there is no manifest.json" in fails(tmp_path / "empty")
    assert "there is no manifest.json" in fails(tmp_path / "absent")
    assert "no rows yet" in fails(write_folder(tmp_path / "no-rows", []))
    folder = write_folder(tmp_path / "results", answers())
    strange = folder / "cells" / "notes.txt"
    strange.write_text("", encoding="utf-8")
    assert "is no cell of results" in fails(folder)
    strange.unlink()
    other = folder / "cells" / "qa" / "tau" / "4.jsonl"
    other.parent.mkdir()
    other.write_text("", encoding="utf-8")
    assert "no task 'qa' with a method 'tau'" in fails(folder)
    other.unlink()
    assert "--resamples must be at least 1" in fails(folder, "--resamples", 0)
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert "Name another with --out" in fails(folder, "--out", tmp_path / "file" / "out")
    assert not (folder / "report").exists()
    broken = write_folder(tmp_path / "broken", answers(), tasks=None)
    assert "is not as `pce-jax eval` writes it" in fails(broken)
