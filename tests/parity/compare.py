"""The library's side of the comparison."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from parity.cases import Case, write_folder

from pce_jax.models import load_folder
from pce_jax.models.llama import forward


def ours(case: Case, folder: Path, files: int = 1) -> np.ndarray:
    """Logits `[1, LENGTH, vocab]` by the library, the case written to a folder and read back."""
    model = load_folder(write_folder(case, folder, files), jnp.float32)
    return np.asarray(jax.jit(forward)(model, case.tokens, case.positions))


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float) -> None:
    worst = float(np.abs(ours - theirs).max())
    assert worst <= tolerance, f"logits differ by {worst:.2e}, more than {tolerance:.0e}"
