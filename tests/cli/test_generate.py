import json
from pathlib import Path

import numpy as np
import pytest
from tiny_folder import byte_tokenizer, write_folder

from pce_jax.cli import app, files
from pce_jax.cli.prompt import query_text
from pce_jax.cli.stream import TextStream


def ask(run, tiny, docs, *more):
    return run(
        *("generate", "--model", tiny, "--question", "Who?", "--docs", *docs),
        *("--max-new-tokens", 8, *more),
    )


def test_answer_on_stdout_and_summary_on_stderr(run, tiny, docs):
    ran = ask(run, tiny, docs, "--ignore-end")
    assert ran.status == 0
    assert ran.out.endswith("\n") and "tokens/s" not in ran.out
    assert "3 in 3 segments of 17, 12, 20 tokens, sink 2" in ran.err
    assert "3 segments x 24 tokens" in ran.err
    assert "8 tokens, ended by length" in ran.err


def test_json_is_all_there_is_and_streaming_changes_nothing(run, tiny, docs, monkeypatch, capsys):
    fields = json.loads(ask(run, tiny, docs, "--json").out)
    assert fields["segment_tokens"] == [17, 12, 20]
    assert fields["query_tokens"] == len("Question: Who?\nAnswer:")
    assert fields["entropy"] > 0
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert ask(run, tiny, docs).out == fields["text"] + "\n"


def test_full_attention(run, tiny, docs):
    assert ask(run, tiny, docs, "--method", "full").status == 0


@pytest.mark.slow
def test_flags_reach_the_model(run, tiny, docs):
    def text(*more):
        ran = ask(run, tiny, docs, "--json", "--ignore-end", *more)
        assert ran.status == 0, ran.err
        return json.loads(ran.out)

    greedy = text()
    drawn = text("--temperature", 2, "--seed", 1)
    assert drawn == text("--temperature", 2, "--seed", 1) | _times(drawn)
    assert drawn["text"] != text("--temperature", 2, "--seed", 2)["text"]
    assert text("--degree", 2)["segment_tokens"] == [29, 20]
    assert text("--chat")["query_tokens"] == len("<user>Who?<assistant>")
    small = text("--weights", "int8", "--cache", "int8", "--at-once", 1, "--method", "naive")
    assert small["entropy"] == pytest.approx(text("--method", "naive")["entropy"], abs=0.02)
    stopped = text("--stop", greedy["text"][2:4])
    assert stopped["text"] == greedy["text"][:2]
    assert stopped["stopped_by"] == "text"


def _times(fields):
    return {name: fields[name] for name in fields if "second" in name}


def test_template():
    assert query_text(" Who? ", r"Q: {question}\n{}") == "Q: Who?\n{}"


@pytest.fixture
def bad(tmp_path: Path) -> dict[str, Path]:
    texts = {"empty": b" \n", "latin": b"caf\xe9 au lait", "zeros": b"a\0b"}
    for name, content in texts.items():
        (tmp_path / name).write_bytes(content)
    (tmp_path / "folder").mkdir()
    return {name: tmp_path / name for name in [*texts, "folder", "absent"]}


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("empty", "is empty"),
        ("latin", "is not UTF-8 text (byte 3"),
        ("zeros", "zero bytes"),
        ("folder", "is a folder"),
        ("absent", "there is no file"),
    ],
)
def test_bad_documents(run, docs, bad, name, says):
    ran = run("generate", "--question", "Who?", "--docs", docs[0], bad[name])
    assert ran.status == 2
    assert ran.err.startswith("error: document 2: ") and says in ran.err
    assert str(bad[name]) in ran.err
    assert ran.err.count("\n") == 1 and not ran.out


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--question", " "], "--question is empty"),
        (["--template", "Q:"], "has no {question}"),
        (["--degree", 4], "between 1 and their number, 3"),
        (["--degree", 0], "between 1 and their number, 3"),
        (["--max-new-tokens", 0], "at least 1"),
        (["--at-once", 0], "at least 1"),
        (["--max-new-tokens", 4000], "the model has 512"),
        (["--temperature", -1], "temperature"),
        (["--temperature", "nan"], "temperature"),
        (["--seed", 10**30], "the seed must fit 64 bits"),
        (["--top-p", 0], "top_p"),
        (["--top-k", -1], "top_k"),
        (["--select-top-k", 0], "top_k must be at least 1"),
        (["--select-top-k", 1, "--method", "sink"], "attends to every segment"),
        (["--sink", "s" * 600], "the sink has 600 tokens"),
        (["--model", "smolm2"], "Did you mean smollm2"),
        (["--model", "./nothing"], "There is no file or folder"),
    ],
)
def test_bad_settings(run, tiny, docs, args, says):
    ran = ask(run, tiny, docs, *args)
    assert ran.status == 2
    assert says in ran.err and "Traceback" not in ran.err
    assert not ran.out


def test_no_network(run, docs, monkeypatch):
    def refuse(*args, **kwargs):
        raise ConnectionError("no route to host")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    ran = ask(run, "org/name", docs)
    assert ran.status == 2
    assert "Check the network" in ran.err


def test_cache_that_cannot_be_made(run, docs, monkeypatch, tmp_path):
    monkeypatch.setenv("PCE_JAX_CACHE", str(docs[0] / "cache"))
    ran = ask(run, "smollm2-135m", docs)
    assert ran.status == 2
    assert "PCE_JAX_CACHE" in ran.err


def test_context_past_the_positions(run, tiny, tmp_path):
    long = tmp_path / "long.txt"
    long.write_text("word " * 120, encoding="utf-8")
    ran = ask(run, tiny, [long])
    assert ran.status == 2
    assert "512 in all" in ran.err


def test_model_without_chat_template(run, docs, tmp_path):
    ran = ask(run, write_folder(tmp_path / "plain"), docs, "--chat")
    assert ran.status == 2
    assert "no chat template" in ran.err


def test_stream_gives_the_text_of_all_tokens_and_no_half_character():
    tokenizer = byte_tokenizer()
    tokens = tokenizer.encode("naïve – 漢字 😀 end", add_special_tokens=False)
    stream = TextStream(tokenizer)
    pieces = [stream.push(token) for token in tokens]
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert "".join(pieces) + stream.finish() == "naïve – 漢字 😀 end"


@pytest.mark.parametrize("seed", range(5))
def test_stream_of_any_bytes(seed):
    tokenizer = byte_tokenizer()
    tokens = np.random.default_rng(seed).integers(0, 257, 60).tolist()
    stream = TextStream(tokenizer)
    text = "".join([*(stream.push(token) for token in tokens), stream.finish()])
    assert text == tokenizer.decode(tokens, skip_special_tokens=True) == stream.text


def test_stream_holds_back_what_may_be_a_stop_string():
    tokenizer = byte_tokenizer()
    stream = TextStream(tokenizer, ["\n\n", "END"])
    pieces = [stream.push(t) for t in tokenizer.encode("a\nb ENd", add_special_tokens=False)]
    assert pieces == ["a", "", "\nb", " ", "", "", "ENd"]
    assert not stream.stopped
    rest = [stream.push(t) for t in tokenizer.encode(" END more", add_special_tokens=False)]
    assert "".join(rest) == " " and stream.stopped and stream.finish() == ""
    assert stream.text == "a\nb ENd "


def test_written_whole_leaves_nothing_behind(tmp_path):
    with pytest.raises(KeyboardInterrupt), files.written_whole(tmp_path / "x") as file:
        file.write(b"half")
        raise KeyboardInterrupt
    assert not list(tmp_path.iterdir())
    with files.written_whole(tmp_path / "x") as file:
        file.write(b"whole")
    assert [p.name for p in tmp_path.iterdir()] == ["x"]


def test_closed_pipe_is_quiet(run, tiny, docs, monkeypatch):
    def closed(self):
        raise BrokenPipeError

    monkeypatch.setattr(app.Generate, "run", closed)
    monkeypatch.setattr(app, "_forget_stdout", lambda: None)
    ran = ask(run, tiny, docs)
    assert (ran.status, ran.out, ran.err) == (1, "", "")
