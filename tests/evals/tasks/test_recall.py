import json
import re
from typing import Any

import pytest
from evals.tasks.helpers import public, write_jsonl

from pce_jax.errors import SettingsError
from pce_jax.evals.tasks import RecallTask
from pce_jax.evals.tasks.words import ADJECTIVES, NOUNS

UUID = "[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"


def make(variant: str, **fields: Any) -> RecallTask:
    defaults: dict[str, Any] = {"name": "recall", "variant": variant, "size": 30, "limit": 10}
    return RecallTask(**(defaults | fields))


@pytest.mark.parametrize("variant", ["kv", "multikey", "uuid", "multivalue"])
def test_what_is_made_here_is_settled_by_its_fields(variant):
    instances = make(variant).instances()
    assert instances == make(variant, limit=12).instances()[:10]
    assert instances != make(variant, seed=1).instances()
    assert len({one.items for one in instances}) == len({one.query for one in instances}) == 10
    assert [one.id for one in instances] == [str(number) for number in range(10)]
    text = "".join(instances[0].items)
    assert all(text.count(answer) == 1 for answer in instances[0].answers)


def test_the_same_on_every_machine():
    assert make("multikey").instances()[0].answers == ("6520809",)
    assert make("kv").instances()[0].answers == ("e730aefc-3aaa-4fb4-8e5c-ed01930addff",)


def test_key_value_prompts():
    instance = make("kv").instances()[0]
    assert len(instance.items) == 30
    assert all(re.fullmatch(f'    "{UUID}": "{UUID}",\n', item) for item in instance.items)
    found = re.fullmatch(
        r"\}\n\nExtract the value corresponding to the specified key in the JSON object above\.\n\n"
        f"Key: ({UUID})\nCorresponding value:",
        instance.query,
    )
    assert found
    assert f'    "{found[1]}": "{instance.answers[0]}",\n' in instance.items


@pytest.mark.parametrize(
    ("variant", "kind", "key", "value"),
    [("multikey", "number", "[a-z]+-[a-z]+", "[0-9]{7}"), ("uuid", "uuid", UUID, UUID)],
)
def test_needle_prompts(variant, kind, key, value):
    instance = make(variant).instances()[0]
    assert instance.items[:3] == (
        f"A special magic {kind} is hidden within the following text.",
        " Make sure to memorize it.",
        f" I will quiz you about the {kind} afterwards.",
    )
    needle = f"\nOne of the special magic {kind}s for {key} is: {value}\\."
    assert len(instance.items) == 33
    assert all(re.fullmatch(needle, item) for item in instance.items[3:])
    found = re.fullmatch(
        rf"\n\nA special magic {kind} is hidden within the above text\. The special magic {kind} "
        f"for ({key}) mentioned in the provided text is",
        instance.query,
    )
    assert found
    line = f"\nOne of the special magic {kind}s for {found[1]} is: {instance.answers[0]}."
    assert line in instance.items


def test_multivalue_prompts(tmp_path):
    instance = make("multivalue").instances()[0]
    assert len(instance.answers) == 4 and len(instance.items) == 33
    assert instance.items[0] == "Some special magic numbers are hidden within the following text."
    assert instance.items[2] == " I will quiz you about the numbers afterwards."
    assert re.fullmatch(
        r"\n\nSome special magic numbers are hidden within the above text\. The special magic "
        r"numbers for [a-z]+-[a-z]+ mentioned in the provided text are",
        instance.query,
    )
    text = tmp_path / "text.txt"
    text.write_text("".join(f"Line\n{number}. " for number in range(40)))
    other = make("multivalue", background=(str(text),), values=2).instances()[0]
    said = [unit.strip() for unit in other.items[3:] if "magic" not in unit]
    first = int(said[0].removeprefix("Line ").removesuffix("."))
    assert said == [f"Line {number}." for number in range(first, first + 28)]
    with pytest.raises(SettingsError, match="has 40 sentences, 46 are needed"):
        make("multivalue", background=(str(text),), size=50).instances()


@pytest.mark.parametrize("variant", ["kv", "multikey", "uuid", "multivalue"])
def test_position(variant):
    def places(position):
        for one in make(variant, position=position).instances():
            items = one.items[0 if variant == "kv" else 3 :]
            yield [n for n, item in enumerate(items) if any(a in item for a in one.answers)]

    assert {found[0] for found in places(0.0)} == {0}
    assert {found[-1] for found in places(1.0)} == {29}
    assert len({tuple(found) for found in places(None)}) > 4


def test_scores():
    task = make("multivalue")
    instance = task.instances()[0]
    assert task.metric == "contained"
    output = f" {instance.answers[0]}, {instance.answers[2]}"
    assert task.score(instance, output) == {"contained": 0.5}
    task = make("kv")
    instance = task.instances()[0]
    scores = task.score(instance, f" {instance.answers[0].upper()}\n\nKey: ...")
    assert scores[task.metric] == scores["exact_match"] == 1
    lengths = [make(variant).max_new_tokens for variant in ("kv", "multikey", "uuid", "multivalue")]
    assert lengths == [100, 50, 100, 50]
    assert make("kv", max_new_tokens=7).max_new_tokens == 7


def test_key_value_files(tmp_path):
    pairs = [[f"k{number}", f"v{number}"] for number in range(5)]
    middle = {"ordered_kv_records": pairs, "key": "k3", "value": "v3"}
    context = "JSON data:\n" + json.dumps(dict(pairs), indent=4)
    helmet = {"context": context, "question": "k3", "answer": "v3", "num_kvs": 5}
    file = write_jsonl(tmp_path / "kv.jsonl", [middle, helmet])
    one, two = make("kv", file=file, shuffle_seed=None).instances()
    assert one.items[3] == '    "k3": "v3",\n' and len(one.items) == 5
    assert (one.items, one.query, one.answers) == (two.items, two.query, two.answers)
    for bad, problem in (
        ({"key": "k9"}, "the key 'k9'"),
        ({"value": "v4"}, "the key 'k3'"),
        ({"ordered_kv_records": [["k3"]]}, "list of pairs"),
        ({"ordered_kv_records": None, "question": "k3"}, 'no field "ordered_kv_records"'),
        ({"ordered_kv_records": [["k3", 7]], "value": 7}, "must be texts, not 7"),
    ):
        file = write_jsonl(tmp_path / "bad.jsonl", [middle, middle | bad])
        with pytest.raises(SettingsError, match=f"bad.jsonl, line 2: .*{problem}"):
            make("kv", file=file).instances()


def test_a_file_without_rows_is_named(tmp_path):
    file = tmp_path / "none.json"
    file.write_text("[]")
    with pytest.raises(SettingsError, match=r"'recall': .*none.json has no rows"):
        make("kv", file=str(file)).instances()


def test_needle_files(tmp_path):
    made = make("multikey", limit=1).instances()[0]
    text = "".join(made.items)
    key = re.search(r"for (\S+) mentioned", made.query)[1]  # type: ignore[index]
    asked = f"special magic number for {key} mentioned in the provided text"
    ruler = {"input": f"{text}\nWhat is the {asked}? The {asked} is", "outputs": [*made.answers]}
    helmet = {"context": text, "query": key, "answer": [*made.answers]}
    file = write_jsonl(tmp_path / "niah.jsonl", [ruler, helmet])
    for one in make("multikey", file=file, shuffle_seed=None).instances():
        assert (one.items, one.query, one.answers) == (made.items, made.query, made.answers)
    for bad, problem in (
        ({"context": "no such"}, "the answer '6520809' does not stand"),
        ({"answer": []}, "the answers must be a list"),
        ({"query": ""}, '"query" must be text'),
        ({"input": "what?"}, '"input" does not end in a question'),
    ):
        file = write_jsonl(tmp_path / "bad.jsonl", [helmet, helmet | bad])
        with pytest.raises(SettingsError, match=f"bad.jsonl, line 2: .*{problem}"):
            make("multikey", file=file).instances()
    with pytest.raises(SettingsError, match=r"niah.jsonl, line 1: .*is no uuid"):
        make("uuid", file=str(tmp_path / "niah.jsonl")).instances()
    several = write_jsonl(tmp_path / "mv.jsonl", [helmet | {"answer": [made.answers[0]] * 2}])
    with pytest.raises(SettingsError, match=r"2 answers where one.*multivalue"):
        make("multikey", file=several).instances()


@pytest.mark.parametrize(
    ("variant", "fields", "problem"),
    [
        ("kv", {"limit": None}, "limit is missing"),
        ("kv", {"size": 0}, "size 0 has no room"),
        ("multivalue", {"size": 3}, "size 3 has no room for 4"),
        ("multivalue", {"values": 0}, "values must be"),
        ("uuid", {"position": 1.5}, "position must be"),
        ("kv", {"background": ("a.txt",)}, "background is for multivalue"),
    ],
)
def test_what_cannot_work_is_said(variant, fields, problem):
    with pytest.raises(SettingsError, match=problem):
        make(variant, **fields)


def test_public_file():
    instances = make("kv", file=public("kv-retrieval-75_keys.jsonl.gz"), limit=None).instances()
    assert len(instances) == 500 and {len(one.items) for one in instances} == {75}


def test_no_word_twice():
    assert len(set(ADJECTIVES)) == len(ADJECTIVES) > 150 and len(set(NOUNS)) == len(NOUNS) > 200
