"""Readers of the labelled questions for in-context learning: TREC, Banking77, CLINC150, NLU."""

import dataclasses
import difflib
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from pce_jax.errors import SettingsError
from pce_jax.evals.tasks.sources import (
    Record,
    csv_records,
    dataset_records,
    is_hugging_face,
    load_dataset,
    parse_json,
    read_bytes,
    read_text,
)

OUT_OF_SCOPE = "oos"
_FINE = {
    "ABBR": "abb exp",
    "DESC": "def desc manner reason",
    "ENTY": "animal body color cremat currency dismed event food instru lang letter other plant "
    "product religion sport substance symbol techmeth termeq veh word",
    "HUM": "desc gr ind title",
    "LOC": "city country mount other state",
    "NUM": "code count date dist money ord other perc period speed temp volsize weight",
}
TREC_COARSE = tuple(_FINE)
TREC_FINE = tuple(f"{coarse}:{fine}" for coarse in _FINE for fine in _FINE[coarse].split())
DATASETS = {
    "trec_coarse": "coarse_label",
    "trec_fine": "fine_label",
    "banking77": "label",
    "clinc150": "intent",
    "nlu": "label",
}
"""Dataset and the field of its class on Hugging Face."""

_NLU_ENTITY = re.compile(r"\[(.+?)\s+\:+\s(.+?)\]")  # [time : five am]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Labelled:
    """A text with its class.

    Attributes:
        where: File and line.
        text: What is classified.
        label: Name of its class.
    """

    where: str
    text: str
    label: str


def trec(source: str, fine: bool, skip_malformed: bool = False) -> Iterator[Labelled]:
    """Rows of a TREC `.label` file: `COARSE:fine question`.

    One byte of the original file is no text in any encoding; it becomes a space, as published.

    Args:
        source: The file.
        fine: Whether the 50 fine classes are wanted, or the 6 coarse ones.
        skip_malformed: Leave malformed rows out.

    Raises:
        SettingsError: A row is malformed, or its class is unknown.
    """
    data = read_bytes(source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.replace(b"\xf0", b" ").decode("latin-1")
    known = TREC_FINE if fine else TREC_COARSE
    for line, row in enumerate(text.split("\n"), 1):
        label, _, question = row.strip().partition(" ")
        label = label if fine else label.partition(":")[0]
        if label in known and question.strip():
            yield Labelled(where=f"{source}, line {line}", text=question.strip(), label=label)
        elif row.strip() and not skip_malformed:
            near = difflib.get_close_matches(label, known, n=1)
            raise SettingsError(
                f"{source}, line {line}: a row of TREC is COARSE:fine and a question, this is "
                f"{row.strip()!r:.60}"
                + (f"; the nearest class is {near[0]}" if near else "")
                + ". Correct the row, or set skip_malformed = true to leave such rows out."
            )


def banking77(source: str) -> Iterator[Labelled]:
    """Rows of Banking77's CSV: `text,category`."""
    for record in csv_records(source):
        yield _labelled(record, "text", "category")


def clinc150(source: str, splits: Sequence[str]) -> Iterator[Labelled]:
    """Rows of some splits of CLINC150's JSON.

    Raises:
        SettingsError: A split is missing, or a row is no pair of text and intent.
    """
    data = parse_json(read_text(source), source)
    for split in splits:
        rows = data.get(split) if isinstance(data, dict) else None
        if not isinstance(rows, list):
            raise SettingsError(
                f'{source}: there is no list "{split}". Name the file data_full.json of CLINC150.'
            )
        for number, row in enumerate(rows, 1):
            where = f"{source}, {split} {number}"
            match row:
                case [str(text), str(label)] if text.strip() and label:
                    yield Labelled(where=where, text=text, label=label)
                case _:
                    raise SettingsError(
                        f"{where}: a text and an intent are wanted, this is {row!r:.60}."
                    )


def nlu(source: str) -> Iterator[Labelled]:
    """Rows of the NLU evaluation data: its own CSV (semicolons), or one with `text` and `label`.

    The class is scenario and intent; entity marks are taken out of the text; empty answers are
    left out.
    """
    header = read_text(source).partition("\n")[0]
    original = header.count(";") > header.count(",")
    for record in csv_records(source, ";" if original else ","):
        if not original:
            yield _labelled(record, "text", "label")
        elif record.text("answer_annotation") != "null":
            text = _NLU_ENTITY.sub(r"\2", record.text("answer_annotation"))
            label = f"{record.text('scenario')}_{record.text('intent')}"
            yield Labelled(where=record.where, text=text, label=label)


def hugging_face(source: str, field: str) -> Iterator[Labelled]:
    """Rows of a dataset with a `text` and a class label in `field`.

    Raises:
        SettingsError: It cannot be loaded, or has no such field.
    """
    dataset = load_dataset(source)
    feature: Any = dataset.features.get(field)
    if feature is None:
        raise SettingsError(
            f"{source} has no field {field!r}, so it is another dataset. Name a file."
        )
    for record in dataset_records(source, dataset):
        label = record.get(field)
        name = label if isinstance(label, str) else feature.names[label]
        yield Labelled(where=record.where, text=record.text("text"), label=name)


def held_out(rows: Sequence[Labelled], seed: int = 42) -> tuple[list[Labelled], list[Labelled]]:
    """A tenth of the rows for testing and the rest, drawn as `datasets.train_test_split` does."""
    order = np.random.default_rng(seed).permutation(len(rows))
    cut = -(-len(rows) // 10)
    return [rows[index] for index in order[cut:]], [rows[index] for index in order[:cut]]


def load(
    dataset: str, train: str, test: str, out_of_scope: bool, skip_malformed: bool
) -> tuple[list[Labelled], list[Labelled]]:
    """Training and test rows of one of `DATASETS`.

    Args:
        dataset: Which.
        train: File or Hugging Face dataset.
        test: The same for test rows; empty where one file holds all.
        out_of_scope: Whether CLINC150's out-of-scope questions are a class.
        skip_malformed: Leave malformed rows of TREC out.

    Raises:
        SettingsError: A file cannot be read, a row is malformed, or a split is empty.
    """
    one_file = dataset == "nlu" or (dataset == "clinc150" and not is_hugging_face(train))
    if one_file == bool(test):
        raise SettingsError(
            f"{dataset}: its one file is given in train; leave test out."
            if one_file
            else f"{dataset}: test is missing. Name the file of its test questions."
        )
    if is_hugging_face(train):
        field = DATASETS[dataset]
        rows = [list(hugging_face(source, field)) for source in (train, test) if source]
    elif dataset == "clinc150":
        splits = [("train", "oos_train"), ("val", "oos_val")]
        rows = [list(clinc150(train, pair if out_of_scope else pair[:1])) for pair in splits]
    elif dataset == "nlu":
        rows = [list(nlu(train))]
    elif dataset == "banking77":
        rows = [list(banking77(source)) for source in (train, test)]
    else:
        fine = dataset == "trec_fine"
        rows = [list(trec(source, fine, skip_malformed)) for source in (train, test)]
    if not out_of_scope:
        rows = [[row for row in split if row.label != OUT_OF_SCOPE] for split in rows]
    training, testing = held_out(rows[0]) if dataset == "nlu" else rows
    for split, source in ((training, train), (testing, test or train)):
        if not split:
            raise SettingsError(f"{dataset}: {source} has no rows.")
    return training, testing


def _labelled(record: Record, text: str, label: str) -> Labelled:
    return Labelled(where=record.where, text=record.text(text), label=record.text(label))
