import pytest
from evals.tasks.helpers import public, write_jsonl

from pce_jax.errors import SettingsError
from pce_jax.evals.metrics import normalise
from pce_jax.evals.tasks import RagTask


def row(number, **fields):
    passage = {"title": f"Title {number}", "text": f"It says code{number}x.", "isgold": True}
    question = {"question": f"what is {number}", "answers": [f"code{number}x"], "ctxs": [passage]}
    return question | fields


@pytest.fixture
def file(tmp_path):
    return write_jsonl(tmp_path / "qa.jsonl", [row(number) for number in range(12)])


def golds(instance):
    return [n for n, item in enumerate(instance.items) if instance.answers[0] in item]


def test_prompts_are_the_published_ones(file):
    instance = RagTask(name="qa", file=file, shuffle_seed=None).instances()[3]
    assert instance.items == ("Document (Title: Title 3): It says code3x.\n\n",)
    assert instance.query == (
        "Use the given documents to write a concise and short answer to the question. Write your "
        "answer in the following format:\nAnswer: [answer]\n\nQuestion: what is 3\nAnswer:"
    )
    assert (instance.id, instance.answers) == ("3", ("code3x",))


def test_gold_among_distractors(file):
    task = RagTask(name="qa", file=file, documents=5)
    instances = task.instances()
    assert {golds(one)[0] for one in instances} > {0, 4}
    for one in instances:
        assert len(one.items) == len(set(one.items)) == 5 and len(golds(one)) == 1
    assert len({one.items[1:] for one in instances}) == 12
    fixed = RagTask(name="qa", file=file, documents=5, gold_position=2).instances()
    assert all(golds(one) == [2] for one in fixed)
    few = RagTask(name="qa", file=file, documents=5, limit=4).instances()
    assert few == instances[:4]
    assert RagTask(name="qa", file=file, documents=5, seed=1).instances() != instances


def test_distractors_hold_no_answer(tmp_path):
    rows = [row(0, answers=["Title 7", "code3x"]), *(row(number) for number in range(1, 12))]
    task = RagTask(name="qa", file=write_jsonl(tmp_path / "a.jsonl", rows), documents=10)
    text = "".join(next(one for one in task.instances() if one.id == "0").items)
    assert "code3x" not in text and "Title 7" not in text
    with pytest.raises(SettingsError, match=r"line 1: 10 distractors.*have 9 documents"):
        RagTask(name="qa", file=task.file, documents=11).instances()


def test_several_golds(tmp_path):
    two = [{"title": f"T{n}", "text": "a key", "isgold": n < 2} for n in range(3)]
    rows = [row(0, answers=["key"], ctxs=two), *(row(number) for number in range(1, 9))]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    task = RagTask(name="qa", file=file, documents=5, gold_position=3, shuffle_seed=None, limit=1)
    assert golds(task.instances()[0]) == [3, 4]
    with pytest.raises(SettingsError, match="2 gold documents from place 4"):
        RagTask(
            name="qa", file=file, documents=5, gold_position=4, shuffle_seed=None, limit=1
        ).instances()


def test_fields_of_other_collections(tmp_path):
    passage = [{"wikipedia_title": "T", "contents": "C"}]
    rows = [
        {"question": "q", "possible_answers": '["one", "two"]', "ctxs": passage},
        {"input": "q", "output": [{"answer": "one"}, {"provenance": []}], "ctxs": passage},
        {"question": "q", "answers": [["one"], ["two"]], "ctxs": passage},
        {"question": "q", "answer": "one", "ctxs": passage},
    ]
    file = write_jsonl(tmp_path / "a.jsonl.gz", rows)
    instances = RagTask(name="qa", file=file, shuffle_seed=None).instances()
    assert [one.answers for one in instances] == [
        ("one", "two"),
        ("one",),
        ("one", "two"),
        ("one",),
    ]
    assert {one.items for one in instances} == {("Document (Title: T): C\n\n",)}


def test_popularity(tmp_path):
    rows = [row(number, s_pop=10**number) for number in range(5)]
    file = write_jsonl(tmp_path / "a.jsonl", rows)
    task = RagTask(name="qa", file=file, popularity=3, shuffle_seed=None)
    assert [one.id for one in task.instances()] == ["0", "1", "2"]
    with pytest.raises(SettingsError, match=r"no questions with popularity below -1"):
        RagTask(name="qa", file=file, popularity=-1).instances()
    bad = write_jsonl(tmp_path / "b.jsonl", [row(0, s_pop=0)])
    with pytest.raises(SettingsError, match=r'b.jsonl, line 1: "s_pop"'):
        RagTask(name="qa", file=bad, popularity=3).instances()


def test_scores(file):
    task = RagTask(name="qa", file=file, limit=1, shuffle_seed=None)
    (instance,) = task.instances()
    assert task.score(instance, " code0x\n\nQuestion:") == {
        "substring_exact_match": 1,
        "exact_match": 1,
        "f1": 1,
    }
    assert task.score(instance, " the code0x thing")["f1"] == pytest.approx(2 / 3)
    assert task.score(instance, " nothing")[task.metric] == 0


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"answers": ["a"], "ctxs": [{"title": "t", "text": "x"}]}, 'no field "question" or "inp'),
        ({"question": "q", "ctxs": [{"title": "t", "text": "x"}]}, 'no field "answers"'),
        ({"question": "q", "answers": ["a"]}, 'no field "ctxs"'),
        ({"question": "q", "answers": [], "ctxs": [{"title": "t", "text": "x"}]}, "the answers"),
        ({"question": "q", "answers": 7, "ctxs": [{"title": "t", "text": "x"}]}, "the answers"),
        ({"question": "q", "answers": ["a"], "ctxs": []}, '"ctxs" must be a list'),
        ({"question": "q", "answers": ["a"], "ctxs": ["x"]}, r"ctxs\[0\]: a document"),
        ({"question": "q", "answers": ["a"], "ctxs": [{"text": "x"}]}, r'ctxs\[0\]: .*"title"'),
        ({"question": " ", "answers": ["a"], "ctxs": [{}]}, '"question" must be text'),
        (["a list"], "a JSON object is wanted"),
    ],
)
def test_malformed_rows(tmp_path, bad, problem):
    file = write_jsonl(tmp_path / "bad.jsonl", [row(0), bad])
    with pytest.raises(SettingsError, match=f"bad.jsonl, line 2.*{problem}"):
        RagTask(name="qa", file=file).instances()


def test_what_cannot_work_is_said(file):
    with pytest.raises(SettingsError, match="gold_position 5"):
        RagTask(name="qa", file=file, documents=5, gold_position=5)
    with pytest.raises(SettingsError, match="gold_position 0"):
        RagTask(name="qa", file=file, gold_position=0)


def test_public_file():
    file = public("nq-open-oracle.jsonl.gz")
    instances = RagTask(name="nq", file=file, documents=20, limit=20).instances()
    assert len(instances) == 20
    for one in instances:
        assert len(set(one.items)) == 20
        answering = [
            item
            for item in one.items
            if any(normalise(answer) in normalise(item) for answer in one.answers)
        ]
        assert len(answering) <= 1  # not every gold passage holds an answer to the letter
