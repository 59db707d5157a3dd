from pathlib import Path

import pytest
from core.goldens import optional
from evals.tasks.helpers import WordTokenizer, public, write_jsonl
from smollm2 import smollm2_path

from pce_jax.errors import SettingsError
from pce_jax.evals.tasks import LmTask, make_task
from pce_jax.hub import Source, load_tokenizer

__all__ = ["smollm2_path"]


def words(count, first=0):
    return " ".join(f"w{number}" for number in range(first, first + count))


def test_windows_are_whole_and_do_not_overlap(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(words(25))
    task = LmTask(name="lm", files=(str(file),), length=10, scored=4)
    passages = task.instances(WordTokenizer())
    assert [passage.tokens for passage in passages] == [tuple(range(10)), tuple(range(10, 20))]
    assert {passage.scored for passage in passages} == {4}
    assert [passage.id for passage in passages] == ["0:a.txt:0:0", "0:a.txt:0:1"]


def test_each_row_of_jsonl_is_a_text_of_its_own(tmp_path):
    rows = [{"text": words(9)}, {"text": words(12)}, {"text": ""}, {"text": words(11)}]
    files = (write_jsonl(tmp_path / "a.jsonl", rows), write_jsonl(tmp_path / "a.jsonl.gz", rows))
    task = LmTask(name="lm", files=files, length=10, scored=4)
    passages = task.instances(WordTokenizer())
    assert [one.id for one in passages[:2]] == ["0:a.jsonl:1:0", "0:a.jsonl:3:0"]
    assert len({one.id for one in passages}) == len(passages) == 4
    assert passages[0].tokens == passages[2].tokens


def test_the_limit_keeps_the_first_of_one_fixed_order(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text(words(400))

    def ids(**fields):
        task = LmTask(name="lm", files=(str(file),), length=10, scored=4, **fields)
        return [passage.id for passage in task.instances(WordTokenizer())]

    assert ids(limit=3) == ids()[:3]
    assert ids(limit=3, shuffle_seed=1) == ids(shuffle_seed=1)[:3] != ids(limit=3)
    assert sorted(ids(shuffle_seed=1)) == sorted(ids())


def test_what_cannot_work_is_said(tmp_path):
    short = tmp_path / "short.txt"
    short.write_text(words(8))
    with pytest.raises(SettingsError, match=r"none of its 1 texts.*10.*longest has 8"):
        LmTask(name="lm", files=(str(short),), length=10, scored=4).instances(WordTokenizer())
    with pytest.raises(SettingsError, match=r"length 5 and scored 4"):
        LmTask(name="lm", files=(str(short),), length=5, scored=4)
    with pytest.raises(SettingsError, match="files is empty"):
        make_task("lm", name="lm", files=[])
    row = write_jsonl(tmp_path / "a.jsonl", [{"text": "a"}, {"txt": "b"}])
    with pytest.raises(SettingsError, match=r'a.jsonl, line 2: there is no field "text".*txt'):
        LmTask(name="lm", files=(row,), length=10, scored=4).instances(WordTokenizer())


def test_windows_of_the_books_are_those_of_the_goldens(smollm2_path, tmp_path):
    goldens = optional("lm_books.json")
    tokenizer = load_tokenizer(Source("gguf", smollm2_path))
    for name, book in (("katrine", "katrine"), ("sheppard", "jack-sheppard")):
        tokens = goldens["sequences"][name]
        text = Path(public(f"books/{book}.txt")).read_text()
        start = text.index(tokenizer.decode(tokens[:40]))  # they begin in the middle of a word
        file = tmp_path / f"{book}.txt"
        file.write_text(text[start:])
        task = LmTask(
            name="lm", files=(str(file),), length=goldens["length"], scored=goldens["scored"]
        )
        assert list(task.instances(tokenizer)[0].tokens) == tokens
