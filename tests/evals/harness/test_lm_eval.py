"""The real harness on local tasks: against its own `hf` class, and against `pce` itself."""

import json
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest
from tiny_folder import write_folder

import pce_jax as pce
from pce_jax.errors import PceError

pytest.importorskip("lm_eval", reason="needs the extra: pip install 'pce-jax[eval]'")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # of the harness and what it imports
    pytest.mark.timeout(300),
]

from lm_eval import simple_evaluate  # noqa: E402
from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from pce_jax.evals.harness import PceLM  # noqa: E402

FRUIT = ["apples", "pears", "plums", "figs", "nuts"]
TASKS = {
    "choose": """
output_type: multiple_choice
doc_to_text: "{{context}}\\n\\nQuestion: {{question}}\\nAnswer:"
doc_to_choice: "{{choices}}"
doc_to_target: label
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
""",
    "write": """
output_type: generate_until
doc_to_text: "{{context}}\\n\\nQuestion: {{question}}\\nAnswer:"
doc_to_target: "{{choices[1]}}"
generation_kwargs: {until: ["\\n"], max_gen_toks: 6}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
""",
    "model": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: bits_per_byte, aggregation: bits_per_byte, higher_is_better: false}]
""",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a window that the longest text of `model` overflows."""
    return write_folder(tmp_path_factory.mktemp("models") / "tiny", max_positions=192)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> TaskManager:
    folder = tmp_path_factory.mktemp("tasks")
    rows = []
    for n in range(5):
        parts = [f"There are {7 * i + n} {name}." for i, name in enumerate(FRUIT[: 3 + n % 3])]
        rows.append(
            {
                "context": "\n\n".join(parts),
                "question": "How many pears?",
                "choices": [f"7{n}", str(7 + n), "none at all"],
                "label": 1,
                "text": " ".join(parts) * (1 + n),
            }
        )
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {folder}/rows.jsonl}}}}\n"
    for name, rest in TASKS.items():
        (folder / f"{name}.yaml").write_text(f"task: local_{name}\ntest_split: test\n{data}{rest}")
    return TaskManager(include_path=str(folder), include_defaults=False)


@pytest.fixture(scope="module", autouse=True)
def offline(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Keep the copies that `datasets` makes out of the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        import datasets

        cache = tmp_path_factory.mktemp("datasets")
        patch.setattr(datasets.config, "HF_DATASETS_CACHE", cache)
        yield


def run(tasks: TaskManager, model: str, **values: Any) -> dict[str, list[Any]]:
    """Answers of a model class to every request, by task."""
    out = simple_evaluate(
        model=model,
        model_args=values,
        batch_size=2,
        device="cpu",
        tasks=[f"local_{name}" for name in TASKS],
        task_manager=tasks,
        bootstrap_iters=0,
    )
    return {name: [sample["resps"] for sample in out["samples"][f"local_{name}"]] for name in TASKS}


def test_at_degree_one_all_numbers_are_those_of_the_harness_on_transformers(folder, tasks):
    pytest.importorskip("torch", reason="the harness's hf class needs PyTorch: make parity")
    pytest.importorskip("accelerate", reason="the harness's hf class needs it: make parity")
    ours = run(tasks, "pce_jax", pretrained=str(folder), separator=r"\n\n")
    theirs = run(tasks, "hf", pretrained=str(folder), dtype="float32")
    assert ours["write"] == theirs["write"]
    for mine, its in zip(ours["choose"], theirs["choose"], strict=True):
        for [(value, greedy)], [(expected, expected_greedy)] in zip(mine, its, strict=True):
            assert value == pytest.approx(expected, abs=1e-3)
            assert greedy == expected_greedy
    for [[value]], [[expected]] in zip(ours["model"], theirs["model"], strict=True):
        assert value == pytest.approx(expected, rel=1e-5)


def likelihood(lm: PceLM, prompt: str, answer: str) -> tuple[float, bool]:
    return likelihoods(lm, [(prompt, answer)])[0]


def likelihoods(lm: PceLM, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    return lm.loglikelihood([_request(pair) for pair in pairs], disable_tqdm=True)


def _request(args: tuple) -> Instance:
    return Instance(request_type="loglikelihood", doc={}, arguments=args, idx=0)


PROMPT = "One is here.\n\nTwo is there.\n\nThree.\n\nWho is here?"


@pytest.mark.parametrize("method", ["naive", "sink", "sel", "sink+sel"])
def test_items_of_a_prompt_are_segments_behind_the_methods_sink(folder, method):
    lm = PceLM(pretrained=str(folder), degree=2, method=method, separator=r"\n\n")
    items = ["One is here.\n\n", "Two is there.\n\n", "Three.\n\n"]
    how = pce.METHODS[method]
    context = pce.pack(lm.tokenizer, items, sink=how.sink, degree=2)
    cache = pce.encode(lm.model, context, how)
    answer = pce.encode_text(lm.tokenizer, " One")
    asked = pce.encode_text(lm.tokenizer, "Who is here?")
    nll = pce.score(lm.model, cache, jnp.array([*asked, *answer]), how).nll
    value, _ = likelihood(lm, PROMPT, " One")
    assert value == pytest.approx(-float(nll[-len(answer) :].sum()), abs=1e-3)


def test_without_separator_a_prompt_is_cut_evenly_but_for_its_last_tokens(folder):
    lm = PceLM(pretrained=str(folder), degree=3, query_tokens=5)
    tokens = pce.encode_text(lm.tokenizer, PROMPT)
    cache = pce.encode(lm.model, pce.split(tokens[:-5], 3))
    nll = pce.score(lm.model, cache, jnp.array([*tokens[-5:], 1, 2])).nll
    answer = lm.tokenizer.decode([1, 2])
    value, _ = likelihood(lm, PROMPT, answer)
    assert value == pytest.approx(-float(nll[-2:].sum()), abs=1e-3)


def test_rolling_blocks_are_read_over_what_stands_before_them(folder):
    text = "a text of some length, which is read block by block."
    lm = PceLM(pretrained=str(folder), degree=2, stride=20)
    [value] = lm.loglikelihood_rolling([_request((text,))], disable_tqdm=True)
    tokens = [lm.prefix_token_id, *pce.encode_text(lm.tokenizer, text)]
    expected = 0.0
    for start in range(1, len(tokens), 20):
        context = tokens[: start - 1]
        parts = pce.split(context, 2) if context else pce.from_segments([[]])
        cache = pce.encode(lm.model, parts)
        block = tokens[start - 1 : start + 20]
        expected -= float(pce.score(lm.model, cache, jnp.array(block)).sum())
    assert value == pytest.approx(expected, rel=1e-5)


def test_results_do_not_depend_on_the_batch_and_programs_not_on_the_number(folder):
    from pce_jax import programs

    pairs = [(f"{n} {PROMPT}", f" {n}{n}"[: 2 + n % 2]) for n in range(7)]
    alone = PceLM(pretrained=str(folder), degree=2, batch_size=1)
    expected = [likelihood(alone, *pair) for pair in pairs]
    lm = PceLM(pretrained=str(folder), degree=2, batch_size=3)
    first = likelihoods(lm, pairs[:3])
    before = programs.count()
    found = first + likelihoods(lm, pairs[3:])
    assert programs.count() == before
    assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert [value for value, _ in found] == pytest.approx([v for v, _ in expected], abs=1e-4)


def test_only_the_likeliest_token_is_called_greedy(folder):
    lm = PceLM(pretrained=str(folder), degree=2, batch_size=1)
    prompt = lm.tok_encode(PROMPT)
    scores = lm._loglikelihood_tokens(
        [((PROMPT, str(token)), prompt, [token]) for token in range(256)], disable_tqdm=True
    )
    best = max(scores)
    assert [score for score in scores if score[1]] == [best]


def test_generation_ends_in_front_of_a_stop_text(folder):
    lm = PceLM(pretrained=str(folder), degree=2)
    ask = lambda until: lm.generate_until(  # noqa: E731
        [_request((PROMPT, {"until": until, "max_gen_toks": 12}))], disable_tqdm=True
    )[0]
    whole = ask([])
    stop = whole[5:7]
    assert ask([stop]) == whole[: whole.index(stop)]


def test_prompts_that_are_too_long_lose_their_front_aloud(folder, caplog):
    short = PceLM(pretrained=str(folder), max_length=10)
    with caplog.at_level("WARNING"):
        value, _ = likelihood(short, PROMPT, " One")
    assert "loses its first" in caplog.text
    kept = PROMPT[-(11 - len(" One")) :]
    assert value == pytest.approx(likelihood(short, kept, " One")[0], abs=1e-4)


def test_prompts_without_the_separator_are_told(folder, caplog):
    lm = PceLM(pretrained=str(folder), degree=2, separator="###")
    with caplog.at_level("WARNING"):
        likelihood(lm, PROMPT, " One")
    assert "1 prompts have no separator '###'" in caplog.text


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"degre": 2}, "Did you mean 'degree'"),
        ({"degree": 0}, "degree must be at least 1"),
        ({"degree": "two"}, "degree must be a whole number"),
        ({"method": "sinc"}, "Did you mean 'sink'"),
        ({"method": "full"}, "degree=1"),
        ({"method": {"select": {"top_k": 0}}}, "top_k must be at least 1"),
        ({"separator": ""}, "separator is empty"),
        ({"batch_size": "some"}, "batch_size must be a number"),
    ],
)
def test_arguments_without_a_meaning_are_refused(folder, values, says):
    with pytest.raises(PceError, match=says):
        PceLM(pretrained=str(folder), **values)


def test_unknown_generation_settings_are_refused(folder):
    lm = PceLM(pretrained=str(folder))
    with pytest.raises(PceError, match="typical_p"):
        lm.generate_until([_request((PROMPT, {"typical_p": 0.5}))], disable_tqdm=True)


@pytest.mark.slow  # the harness lists all its tasks first
def test_the_command_knows_the_class_and_prints_errors_without_a_traceback(monkeypatch, capsys):
    from pce_jax.evals.harness.command import main

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    arguments = ["--model", "pce_jax", "--model_args", "degree=0", "--tasks", "arc_easy"]
    monkeypatch.setattr("sys.argv", ["pce-lm-eval", *arguments])
    assert main() == 2
    assert "degree must be at least 1" in capsys.readouterr().err
