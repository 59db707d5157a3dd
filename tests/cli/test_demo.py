import json
import sys

import pytest

from pce_jax.demo import study, text

SMALL = ("--window-tokens", 64, "--scored-tokens", 16, "--no-answer", "--degrees", "1,4")
LESS = ("--methods", "naive,sel,sink")


def written(folder):
    """Everything under a folder."""
    return sorted(str(f.relative_to(folder)) for f in folder.rglob("*"))


def rows(folder):
    lines = (folder / "rows.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def test_demo_on_a_tiny_model(run, tiny, tmp_path):
    ran = run("demo", "--model", tiny, "--out", tmp_path / "out", "--windows", 1, *SMALL, *LESS)
    assert ran.status == 0, ran.err
    assert written(tmp_path / "out") == ["demo.png", "rows.jsonl"]
    assert (tmp_path / "out/demo.png").read_bytes().startswith(b"\x89PNG")
    assert all(len(line) <= 80 for line in ran.out.splitlines() if str(tmp_path) not in line)
    found = rows(tmp_path / "out")
    assert len(found) == 1 + 2 * 3  # full, and degrees x methods
    by = {(r["window"], r["degree"], r["method"]): r for r in found}
    window = found[0]["window"]
    assert by[window, 1, "naive"]["same_as"] == "full"
    assert by[window, 1, "sel"]["nll"] == by[window, 1, "full"]["nll"]
    assert by[window, 1, "sink"]["same_as"] is None
    assert by[window, 4, "sel"]["settings"]["select"]["aggregate"] == []
    assert by[window, 4, "sink"]["tokens"] == 16
    assert by[window, 4, "sink"]["versions"]["jax"]


@pytest.mark.slow
def test_text_of_ones_own_and_the_answer(run, tiny, tmp_path):
    file = tmp_path / "own.txt"
    file.write_text("Some words of my own. " * 10, encoding="utf-8")
    small = (*SMALL[:4], "--degrees", 1, "--methods", "naive")
    ran = run("demo", "--model", tiny, "--text", file, "--windows", 5, *small)
    assert ran.status == 0, ran.err
    assert "The text gives 3 windows, not 5" in ran.err
    assert "How deep is Lake Mirin?" in ran.out
    assert {r["method"] for r in rows(tmp_path / "here/pce-demo")} == {"full", "naive"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--degrees", "1,48"], "48 is above the 47 context tokens"),
        (["--windows", "0"], "--windows must be at least 1"),
        (["--scored-tokens", "0"], "--scored-tokens must be at least 1"),
        (["--scored-tokens", "64"], "leaves -1 context tokens"),
        (["--window-tokens", "1024"], "the model has 512"),
        (["--text", "absent.txt"], "there is no file absent.txt"),
    ],
)
def test_bad_settings(run, tiny, tmp_path, args, says):
    ran = run("demo", "--model", tiny, *SMALL, *args)
    assert ran.status == 2
    assert says in ran.err and "Traceback" not in ran.err
    assert written(tmp_path / "here") == []


@pytest.mark.parametrize(
    ("content", "says"), [(b"", "is empty"), (b"\xff\xfe", "UTF-8"), (b"short", "has 5 tokens")]
)
def test_bad_text(run, tiny, tmp_path, content, says):
    (tmp_path / "text").write_bytes(content)
    ran = run("demo", "--model", tiny, *SMALL, "--text", tmp_path / "text")
    assert ran.status == 2
    assert says in ran.err
    assert written(tmp_path / "here") == []


def test_folder_that_cannot_be_made(run, tiny, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    ran = run("demo", "--model", tiny, *SMALL, "--out", tmp_path / "file" / "out")
    assert ran.status == 2
    assert "Name another with --out" in ran.err


def test_interruption_leaves_no_file(run, tiny, tmp_path, monkeypatch):
    def interrupt(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("pce_jax.demo.picture.draw", interrupt)
    assert run("demo", "--model", tiny, *SMALL, "--windows", 1, "--methods", "naive").status == 130
    assert written(tmp_path / "here") == ["pce-demo", "pce-demo/rows.jsonl"]


def test_nothing_is_done_twice():
    jobs = study.plan(["naive", "sink", "sel", "sink+sel"], [1, 2, 4])
    assert [(job.degree, list(job.methods)) for job in jobs] == [
        (1, ["full"]),
        (1, ["sink"]),
        (2, ["naive", "sel"]),
        (2, ["sink", "sink+sel"]),
        (4, ["naive", "sel"]),
        (4, ["sink", "sink+sel"]),
    ]
    assert jobs[1].aliases == {"sink+sel": "sink"}
    assert study.steps(jobs, 2) == 2 * (2 * 2 + 4 * 3)


def test_python_has_the_topics():
    assert len(text.python_topics()) >= 6


def test_python_without_its_topics(run, tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "pydoc_data.topics", None)
    ran = run("demo", "--model", tiny, *SMALL)
    assert ran.status == 2
    assert "--text FILE" in ran.err


def test_entropy_of_the_real_model(run, smollm2_path, tmp_path):
    ran = run(
        *("demo", "--model", smollm2_path, "--out", tmp_path, "--windows", 1, "--degrees", "8"),
        *("--methods", "naive,sink", "--no-answer"),
        *("--window-tokens", 512, "--scored-tokens", 64),
    )
    assert ran.status == 0, ran.err
    entropy = {r["method"]: r["entropy"] for r in rows(tmp_path)}
    assert entropy["naive"] > entropy["full"] + 0.5
    assert entropy["full"] < entropy["sink"] < entropy["naive"] - 0.2
