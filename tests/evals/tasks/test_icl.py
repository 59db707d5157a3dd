import json
from collections import Counter
from typing import Any

import pytest
from evals.tasks.helpers import public

from pce_jax.errors import SettingsError
from pce_jax.evals.tasks import IclTask

TRAIN = "\n".join(
    f"{label} question {number} of {label} ?"
    for number in range(5)
    for label in ("NUM:date", "LOC:city", "HUM:ind", "NUM:count")
)
TEST = "\n".join(f"HUM:ind who is number {number} ?" for number in range(30)) + "\nLOC:city where ?"


@pytest.fixture
def trec(tmp_path):
    (tmp_path / "train.label").write_text(TRAIN + "\n")
    (tmp_path / "test.label").write_text(TEST + "\n")

    def make(**fields: Any) -> IclTask:
        paths = {"train": str(tmp_path / "train.label"), "test": str(tmp_path / "test.label")}
        defaults: dict[str, Any] = {"name": "icl", "dataset": "trec_fine", "shots": 8} | paths
        return IclTask(**(defaults | fields))

    return make


def demos(instance):
    """Text and shown label of each item."""
    pairs = [item.removesuffix("\n\n").rsplit("\nlabel: ", 1) for item in instance.items]
    return [(text, label) for text, label in pairs]


def test_prompts_are_the_published_ones(trec):
    instance = trec(limit=1, shuffle_seed=None, natural_labels=True).instances()[0]
    assert instance.query == (
        "Use the provided mapping from the text to label to assign a label to the text. Only "
        'output "label: {label}" and nothing else.\n\nwho is number 0 ?\nlabel:'
    )
    assert instance.answers == ("HUM:ind",)
    assert (
        "question 3 of LOC:city ?\nlabel: LOC:city\n\n"
        in trec(limit=1, shots=20, natural_labels=True).instances()[0].items
    )


def test_every_round_holds_each_label_once(trec):
    for instance in trec(natural_labels=True).instances():
        labels = [label for _, label in demos(instance)]
        assert len(set(labels[:4])) == len(set(labels[4:])) == 4
    cut = trec(shots=6, natural_labels=True).instances()[0]
    counts = Counter(label for _, label in demos(cut))
    assert len(cut.items) == 6 and max(counts.values()) - min(counts.values()) == 1


def test_integers_and_order_differ_between_instances_and_demonstrations_do_not(trec):
    instances = trec().instances()
    natural = trec(natural_labels=True).instances()
    assert len(instances) == 31
    assert len({frozenset(text for text, _ in demos(one)) for one in instances}) == 1
    assert len({tuple(text for text, _ in demos(one)) for one in instances}) > 25
    mappings = set()
    for one, name in zip(instances, natural, strict=True):
        assert [text for text, _ in demos(one)] == [text for text, _ in demos(name)]
        pairs = {(b[1], a[1]) for a, b in zip(demos(one), demos(name), strict=True)}
        mapping = dict(pairs)
        assert len(mapping) == len(pairs) == 4 and set(mapping.values()) == set("0123")
        assert one.answers == (mapping[name.answers[0]],)
        mappings.add(tuple(sorted(mapping.items())))
    assert len(mappings) > 10


def test_an_instance_does_not_depend_on_the_limit(trec):
    whole = {one.id: one for one in trec(shuffle_seed=None).instances()}
    assert all(whole[one.id] == one for one in trec(limit=5).instances())
    assert trec(limit=5).instances() == trec().instances()[:5]
    assert trec(seed=1).instances() != trec().instances()


def test_a_rare_label_is_repeated(trec, tmp_path):
    rare = tmp_path / "rare.label"
    rare.write_text(TRAIN + "\nENTY:word a rare one ?\n")
    items = trec(train=str(rare), shots=20).instances()[0].items
    assert sum("a rare one" in item for item in items) == 4


def test_coarse_labels(trec):
    instance = trec(dataset="trec_coarse", natural_labels=True, shots=6).instances()[0]
    assert {label for _, label in demos(instance)} == {"NUM", "LOC", "HUM"}


def test_scores(trec):
    task = trec(limit=1)
    instance = task.instances()[0]
    answer = instance.answers[0]
    assert task.score(instance, f" {answer}\n\nnext") == {"exact_match": 1}
    assert task.score(instance, f" label: {answer}.") == {"exact_match": 1}
    assert task.score(instance, f" {answer} 9") == {"exact_match": 0}
    assert task.max_new_tokens == 20


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("NUM:dat when ?", r"line 21: .*'NUM:dat when \?'; the nearest class is NUM:date"),
        ("NUM:date", "line 21: "),
        ("a question without its class", "line 21: "),
    ],
)
def test_malformed_rows_of_trec(trec, tmp_path, row, problem):
    bad = tmp_path / "bad.label"
    bad.write_text(TRAIN + "\n" + row + "\n")
    with pytest.raises(SettingsError, match=problem):
        trec(train=str(bad)).instances()
    assert trec(train=str(bad), skip_malformed=True).instances() == trec().instances()


def test_the_stray_byte_of_trec_becomes_a_space(trec, tmp_path):
    raw = tmp_path / "raw.label"
    raw.write_bytes((TRAIN + "\n").encode() + b"LOC:city a sister\xf0city , caf\xe9 ?\n")
    items = trec(train=str(raw), shots=21).instances()[0].items
    assert any("a sister city , café ?" in item for item in items)


def test_what_cannot_work_is_said(trec, tmp_path):
    one = tmp_path / "one.label"
    one.write_text("NUM:date when ?\n" * 9)
    with pytest.raises(SettingsError, match="one class only, 'NUM:date'"):
        trec(train=str(one)).instances()
    with pytest.raises(SettingsError, match=r"21 demonstrations are asked for.*has 20"):
        trec(shots=21).instances()
    with pytest.raises(SettingsError, match=r"one.label, line 1: no demonstration in .*'LOC:city'"):
        one.write_text("LOC:city where ?\n")
        two = tmp_path / "two.label"
        two.write_text("NUM:date when ?\nHUM:ind who ?\n" * 9)
        trec(test=str(one), train=str(two)).instances()
    with pytest.raises(SettingsError, match=r"there is no data file .*gone.label"):
        trec(test=str(tmp_path / "gone.label")).instances()
    with pytest.raises(SettingsError, match="test is missing"):
        trec(test="").instances()
    (tmp_path / "empty.label").write_text("\n \n")
    with pytest.raises(SettingsError, match=r"empty.label is empty"):
        trec(test=str(tmp_path / "empty.label")).instances()


def test_banking77(tmp_path):
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text('text,category\n"Where, please?",card\n"Two\nlines",pin\n')
    test.write_text("text,category\nWhich?,pin\n")
    task = IclTask(
        name="b", dataset="banking77", train=str(train), test=str(test), shots=2,
        natural_labels=True,
    )  # fmt: skip
    (instance,) = task.instances()
    assert set(demos(instance)) == {("Where, please?", "card"), ("Two\nlines", "pin")}
    assert instance.answers == ("pin",)
    test.write_text("text,category\nWhich?,pin\nbroken\n")
    with pytest.raises(SettingsError, match=r"test.csv, line 3: .*another number"):
        task.instances()
    test.write_text("text,intent\nWhich?,pin\n")
    with pytest.raises(SettingsError, match=r'line 2: there is no field "category"'):
        task.instances()


def test_clinc150(tmp_path):
    file = tmp_path / "data.json"
    parts = {
        "train": [["add one", "math"], ["hello", "greet"]],
        "oos_train": [["who won", "oos"]],
        "val": [["add two", "math"]],
        "oos_val": [["who lost", "oos"]],
    }
    file.write_text(json.dumps(parts))

    def make(**fields):
        return IclTask(name="c", dataset="clinc150", train=str(file), shots=2, **fields)

    assert len(make().instances()) == 2
    assert len(make(out_of_scope=False).instances()) == 1
    assert all("who won" not in item for item in make(out_of_scope=False).instances()[0].items)
    with pytest.raises(SettingsError, match="leave test out"):
        make(test=str(file)).instances()
    file.write_text(json.dumps(parts | {"val": [["add two", "math"], ["add"]]}))
    with pytest.raises(SettingsError, match=r"data.json, val 2: a text and an intent"):
        make().instances()
    file.write_text('{"train": []}')
    with pytest.raises(SettingsError, match='no list "oos_train"'):
        make().instances()
    file.write_text("{")
    with pytest.raises(SettingsError, match=r"data\.json: malformed JSON"):
        make().instances()


def test_nlu(tmp_path):
    file = tmp_path / "nlu.csv"
    header = "userid;scenario;intent;answer_annotation;answer\n"
    rows = [
        f'"{n}";"alarm";"{("set", "query")[n % 2]}";"at [time : {n} am] go";"x"' for n in range(19)
    ]
    file.write_text(header + "\n".join([*rows, '"9";"alarm";"set";"null";""']) + "\n")
    task = IclTask(name="n", dataset="nlu", train=str(file), shots=2, natural_labels=True)
    instances = task.instances()
    assert len(instances) == 2  # a tenth of 19, rounded up
    assert {label for _, label in demos(instances[0])} == {"alarm_set", "alarm_query"}
    assert all(" am go" in text and "[" not in text for text, _ in demos(instances[0]))
    file.write_text("text,label\n" + "\n".join(f"t{n},{n % 2}" for n in range(19)))
    assert len(task.instances()) == 2


@pytest.mark.parametrize(
    ("dataset", "files", "labels", "questions"),
    [
        ("trec_coarse", ("trec/train_5500.label", "trec/TREC_10.label"), 6, 500),
        ("trec_fine", ("trec/train_5500.label", "trec/TREC_10.label"), 50, 500),
        ("banking77", ("banking77/train.csv", "banking77/test.csv"), 77, 3080),
        ("clinc150", ("clinc150/data_full.json", ""), 151, 3100),
    ],
)
def test_public_files(dataset, files, labels, questions):
    train, test = (public(file) if file else "" for file in files)
    task = IclTask(
        name=dataset, dataset=dataset, train=train, test=test, shots=labels * 2, limit=20,
        skip_malformed=True,
    )  # fmt: skip
    instances = task.instances()
    assert len(instances) == 20 and all(int(one.id) < questions for one in instances)
    for one in instances:
        counts = Counter(label for _, label in demos(one))
        assert counts == {str(label): 2 for label in range(labels)}
        assert one.answers[0] in counts
