"""What is read in which step, on any number of processes."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pce_jax.errors import FinetuneError
from pce_jax.evals.config import read_tasks
from pce_jax.finetune.data import Batches, Layout, Order, read_texts

DEGREES = {1: 0.25, 4: 0.75}


def texts_of(tables: dict[str, Any], tokenizer: Any) -> Any:
    return read_texts(read_tasks("data", tables, None, 0, None, Path("x.toml")), tokenizer)


@pytest.fixture
def windows(text: Path, loaded: Any) -> Any:
    return texts_of(
        {"text": {"kind": "lm", "files": [str(text)], "length": 48, "scored": 15}}, loaded[1]
    )


def batches(texts: Any, loaded: Any, **settings: Any) -> Batches:
    layouts = {degree: Layout(texts, degree, loaded[0].config) for degree in DEGREES}
    order = Order(len(texts), 4, DEGREES, seed=3)
    return Batches(texts, order, layouts, microbatch=2, steps=12, **settings)


def test_every_pass_reads_everything_once_in_another_order():
    order = Order(10, 5, DEGREES, seed=1)
    read = [number for step in range(6) for number in order.step(step)[1]]
    passes = [tuple(read[start : start + 10]) for start in (0, 10, 20)]
    assert all(sorted(one) == list(range(10)) for one in passes)
    assert len(set(passes)) == 3


def test_order_and_degrees_follow_from_the_seed_alone():
    def steps(seed: int) -> list[Any]:
        order = Order(10, 4, DEGREES, seed)
        return [order.step(step) for step in range(20)]

    assert steps(1) == steps(1) != steps(2)
    assert {degree for degree, _ in steps(1)} == {1, 4}


def test_degrees_come_as_often_as_asked():
    order = Order(10, 1, DEGREES, seed=0)
    share = np.mean([order.step(step)[0] == 4 for step in range(400)])
    assert 0.65 < share < 0.85


def test_processes_share_a_batch_whatever_their_number(windows, loaded):
    whole = batches(windows, loaded)[5]
    parts = [batches(windows, loaded, process=(number, 2))[5] for number in range(2)]
    assert whole.examples.query.shape[:2] == (2, 2)
    for part in parts:
        assert (part.ids, part.degree, part.tokens) == (whole.ids, whole.degree, whole.tokens)
    joined = np.concatenate([part.examples.query for part in parts], axis=1)
    np.testing.assert_array_equal(joined, whole.examples.query)


def test_going_on_reads_what_would_have_come(windows, loaded):
    whole = batches(windows, loaded)
    later = [batch.ids for batch in whole.since(7)]
    assert later == [whole[step].ids for step in range(7, 12)]


def test_a_window_has_its_end_as_targets_at_every_degree(windows, loaded):
    text = windows[1]
    for degree in (1, 4):
        example = Layout(windows, degree, loaded[0].config).example(text)
        assert example.context.lengths.tolist() == ([32] if degree == 1 else [8] * 4)
        assert (int(example.length), int(example.start), text.targets) == (16, 1, 15)
        tokens = np.concatenate(
            [
                row[:length]
                for row, length in zip(
                    example.context.segments, example.context.lengths, strict=True
                )
            ]
            + [example.query[: int(example.length)]]
        )
        assert tuple(tokens) == text.parts.source.tokens


def test_of_a_question_only_the_answer_is_a_target(tmp_path, loaded):
    file = tmp_path / "questions.jsonl"
    documents = [{"title": "T", "text": f"document {number}"} for number in range(3)]
    rows = [{"question": "Who?", "answers": ["Ada", "A."], "ctxs": documents}]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    model, tokenizer = loaded
    (text,) = texts_of({"qa": {"kind": "rag", "file": str(file)}}, tokenizer)
    roomy = dataclasses.replace(model.config, max_positions=4096)
    example = Layout([text], 2, roomy).example(text)
    query = example.query[int(example.start) : int(example.length)]
    assert tokenizer.decode(query) == " Ada"
    assert tokenizer.decode(example.query[: int(example.start)]).endswith("Question: Who?\nAnswer:")
    assert example.context.lengths.tolist() == [66, 33]  # documents stay whole


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda texts, config: Order(3, 4, DEGREES, 0), "have 3 examples, and a batch takes 4"),
        (
            lambda texts, config: Layout(texts, 33, config),
            r"degree 33 does not fit text/0:letters.txt:0:0: its context has 32 tokens",
        ),
        (
            lambda texts, config: Layout(texts, 4, config, slots=81),
            "has 129 tokens with its sink, and the model 128 positions",
        ),
        (
            lambda texts, config: Batches(
                texts, Order(9, 3, DEGREES, 0), {}, microbatch=3, steps=1, process=(0, 2)
            ),
            "microbatch of 3 cannot be shared among 2 processes",
        ),
    ],
)
def test_what_does_not_fit_is_refused(windows, loaded, make, problem):
    with pytest.raises(FinetuneError, match=problem):
        make(windows, loaded[0].config)
