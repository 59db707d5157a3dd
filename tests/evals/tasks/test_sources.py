import gzip
import importlib
import sys
import types

import pytest
from evals.tasks.helpers import WordTokenizer

from pce_jax.errors import SettingsError
from pce_jax.evals.tasks import IclTask, LmTask
from pce_jax.evals.tasks.draws import keep, stream
from pce_jax.evals.tasks.sources import records


def test_the_kept_ones_are_the_published_ones():
    # numpy.random.RandomState(42).shuffle(list(range(10)))
    assert keep(range(10), None, 42) == [8, 1, 5, 0, 7, 2, 9, 4, 3, 6]
    assert keep(range(10), 3, 42) == [8, 1, 5]
    assert keep(range(10), 3, None) == [0, 1, 2]
    with pytest.raises(SettingsError, match="shuffle_seed must be from 0"):
        keep(range(10), 3, -1)


def test_streams_are_told_apart_by_every_key():
    draws = {stream(*keys).randint(10**9) for keys in [(1, "a"), (1, "b"), (2, "a"), (1,)]}
    assert len(draws) == 4
    assert stream(1, "a").randint(10**9) == stream(1, "a").randint(10**9)


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        ("a.jsonl", b'{"a": 1}\n\n{"a": \n', "a.jsonl, line 3: malformed JSON"),
        ("a.jsonl", b'{"a": 1}\n\xff\n', "a.jsonl, line 2: this is not UTF-8"),
        ("a.jsonl", b" \n", "a.jsonl is empty"),
        ("a.jsonl.gz", b"plain", "no whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-9], "no whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 30, "no whole gzip file"),
        ("a.jsonl.gz", gzip.compress(b"", mtime=0), "a.jsonl.gz is empty"),
        (
            "a.jsonl.gz",
            gzip.compress(b'{"a": 1}\n{', mtime=0),
            "a.jsonl.gz, line 2: malformed JSON",
        ),
        ("a.jsonl", b"1" * 5000, "a.jsonl, line 1: malformed JSON: Exceeds"),
        ("a.jsonl", b'{"a": "\\ud83d\\ude00"}\n{"a": "\\uD83D"}', "a.jsonl, line 2: .*surrogates"),
        ("a.json", b'{"rows": []}', "a list of objects"),
        ("a.json", b'{"data": [{}, 3]}', "a.json, row 2: a JSON object"),
        ("a.csv", b"a,b\n1,2\n1,2,3\n", "a.csv, line 3: the header has 2 fields"),
    ],
)
def test_bad_files(tmp_path, name, data, problem):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SettingsError, match=problem):
        list(records(str(path)))


def test_unusual_but_right_files(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('\ufeff{"a": "x\u2028y"}\r\n\n{"a": 2}', encoding="utf-8")
    assert [(row.where[-6:], row.number, row.values["a"]) for row in records(str(path))] == [
        ("line 1", 0, "x\u2028y"),
        ("line 3", 1, 2),
    ]
    with pytest.raises(SettingsError, match="cannot be read"):
        list(records(str(tmp_path)))


class Rows(list):
    """What `datasets.load_dataset` gives, as far as it is used."""

    features = types.SimpleNamespace(
        get={"fine_label": types.SimpleNamespace(names=["NUM:date", "HUM:ind"])}.get
    )


@pytest.fixture
def hub(monkeypatch):
    asked = []

    def load_dataset(*name, split):
        asked.append((*name, split))
        if split == "gone":
            raise ValueError('Unknown split "gone".\nmore')
        return Rows({"text": f"t{n} " * 12, "fine_label": n % 2} for n in range(6))

    fake = types.ModuleType("datasets")
    fake.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", fake)
    return asked


def test_hugging_face(hub):
    task = LmTask(name="lm", files=("hf:owner/name/config:train",), length=10, scored=4)
    assert len(task.instances(WordTokenizer())) == 6
    assert hub == [("owner/name", "config", "train")]
    icl = IclTask(
        name="icl", dataset="trec_fine", train="hf:CogComp/trec:train", test="hf:CogComp/trec:test",
        shots=2, natural_labels=True,
    )  # fmt: skip
    assert {one.answers for one in icl.instances()} == {("NUM:date",), ("HUM:ind",)}
    with pytest.raises(SettingsError, match="has no field 'label'"):
        IclTask(name="i", dataset="banking77", train="hf:a/b:train", test="hf:a/b:c").instances()
    with pytest.raises(SettingsError, match='cannot be loaded: ValueError: Unknown split "gone"'):
        list(records("hf:owner/name:gone"))
    for malformed in ("hf:name:train", "hf:owner/name", "hf:a/b/c/d:train"):
        with pytest.raises(SettingsError, match="names no dataset"):
            list(records(malformed))


def test_hugging_face_without_its_package(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(SettingsError, match=r"pip install 'pce-jax\[data\]'"):
        list(records("hf:owner/name:train"))
