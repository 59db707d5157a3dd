import json
import subprocess
import sys
from pathlib import Path

import pytest

from pce_jax.errors import TokenizerError, WeightsError
from pce_jax.hub import Source, encode_text, load_tokenizer

FIXTURE = Path(__file__).parents[1] / "fixtures" / "smollm2_tokens.json"
SAMPLES = json.loads(FIXTURE.read_text(encoding="utf-8"))["samples"]


@pytest.fixture(scope="module")
def tokenizer(smollm2_path):
    return load_tokenizer(Source("gguf", smollm2_path))


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample["what"])
def test_ids_are_the_recorded_ones_and_decode_to_the_text(tokenizer, sample):
    assert encode_text(tokenizer, sample["text"]) == sample["ids"]
    assert tokenizer.decode(sample["ids"]) == sample["text"]


def test_special_tokens_are_known_and_none_is_added(tokenizer):
    assert tokenizer.bos_token == "<|im_start|>"
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert len(tokenizer) == tokenizer.vocab_size == 49152
    assert encode_text(tokenizer, "") == []
    assert tokenizer("hi")["input_ids"] == encode_text(tokenizer, "hi")


def test_the_chat_template_of_the_file_is_kept(tokenizer):
    assert "<|im_start|>assistant" in tokenizer.chat_template


def test_a_long_text_is_neither_cut_nor_complained_about(tokenizer, tmp_path, caplog):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    settings = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 4}))
    short = load_tokenizer(Source("folder", tmp_path))
    assert len(encode_text(short, "one two three four five six")) == 6
    assert caplog.records == []


def test_a_folder_gives_the_ids_of_the_file_it_was_saved_from(tokenizer, tmp_path):
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    again = load_tokenizer(Source("folder", tmp_path))
    assert [encode_text(again, sample["text"]) for sample in SAMPLES] == [
        sample["ids"] for sample in SAMPLES
    ]


@pytest.mark.parity
def test_ids_and_settings_are_those_of_the_auto_tokenizer(tokenizer, smollm2_path):
    from transformers import AutoTokenizer

    auto = AutoTokenizer.from_pretrained(smollm2_path.parent, gguf_file=smollm2_path.name)
    assert type(auto) is type(tokenizer)
    assert auto.get_vocab() == tokenizer.get_vocab()
    assert auto.special_tokens_map == tokenizer.special_tokens_map
    assert auto.chat_template == tokenizer.chat_template
    assert auto.backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str()


def test_loading_prints_nothing_and_imports_no_pytorch(smollm2_path):
    code = (
        "import sys; from pathlib import Path; from pce_jax.hub import Source, load_tokenizer;"
        f"load_tokenizer(Source('gguf', Path({str(smollm2_path)!r})));"
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_folder_without_a_tokenizer_says_what_it_needs(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(TokenizerError, match=r"tokenizer\.json"):
        load_tokenizer(Source("folder", tmp_path))


def test_a_tokenizer_of_an_unknown_kind_says_so(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "tokenizer.json").write_text(
        '{"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "New"}, "model": {}}'
    )
    with pytest.raises(TokenizerError, match=r"cannot be loaded: .*\n.*tokenizer\.json"):
        load_tokenizer(Source("folder", tmp_path))


def test_a_damaged_gguf_says_so(tmp_path):
    (tmp_path / "a.gguf").write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(WeightsError, match="damaged"):
        load_tokenizer(Source("gguf", tmp_path / "a.gguf"))
