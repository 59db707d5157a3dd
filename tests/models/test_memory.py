"""Peak memory of reading and writing, measured by the kernel in a process of its own.

The measure is `VmHWM`, the high-water mark of the resident set, reset once JAX has started: it
counts arrays, buffers, and pages of mapped files alike. (`ru_maxrss` would start at the parent's.)
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tiny_gguf import write_gguf
from tiny_models import hf_tensors, tiny_config

from pce_jax.models.gguf_io import gguf_tensor_names
from pce_jax.models.llama import parameter_shapes

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure memory"
)

MIB = 2**20
SLACK = 48 * MIB  # chunks, the allocator; less than any file or stacked matrix here

CONFIG = tiny_config(
    vocab_size=40_000,
    hidden_size=1024,
    intermediate_size=2048,
    num_layers=16,
    num_heads=16,
    num_kv_heads=8,
    head_dim=64,
    tie_embeddings=True,
)
WEIGHTS = CONFIG.num_parameters
EMBEDDING = CONFIG.vocab_size * CONFIG.hidden_size  # the largest parameter
SHARD = 100 * MIB  # of 354 in all

MEASURE = """
import json, sys
from pathlib import Path
import jax, jax.numpy as jnp
from pce_jax import models

def resident(field):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024

jax.block_until_ready(jnp.zeros(8).astype(jnp.bfloat16) + 1)
{before}
Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
start = resident("VmRSS")
{action}
print(json.dumps(resident("VmHWM") - start))
"""


def peak(action: str, before: str = "") -> int:
    """Bytes by which the resident set rose at most while `action` ran."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE.format(action=action, before=before)],
        check=True,
        stdout=subprocess.PIPE,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        text=True,
    )
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """354 MiB in bfloat16, in one file."""
    folder = tmp_path_factory.mktemp("memory")
    shapes = parameter_shapes(CONFIG).items()
    zeros = {name: np.zeros(shape, ml_dtypes.bfloat16) for name, shape in shapes}
    save_file(hf_tensors(CONFIG, zeros), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG.to_hf()))
    return folder


@pytest.mark.parametrize(("dtype", "itemsize"), [("float32", 4), ("bfloat16", 2)])
def test_reading_a_folder_takes_the_weights_and_little_more(folder, dtype, itemsize):
    rise = peak(f"model = models.load_folder({str(folder)!r}, dtype={dtype!r})")
    mapped = EMBEDDING * 2  # of the file, while its largest tensor is read
    assert WEIGHTS * itemsize < rise < WEIGHTS * itemsize + mapped + SLACK, f"{rise / MIB:.0f} MiB"


def test_reading_a_gguf_takes_the_weights_and_little_more(tmp_path):
    path = tmp_path / "model.gguf"
    tensors = {}
    for name, shape in parameter_shapes(CONFIG).items():
        each = shape[1:] if name.startswith("blocks.") else shape
        zeros = np.broadcast_to(np.zeros((), np.float32), each)
        tensors |= dict.fromkeys(gguf_tensor_names(name, CONFIG.num_layers), zeros)
    write_gguf(path, CONFIG, tensors, "Q8_0")
    rise = peak(f"model = models.load_gguf({str(path)!r})")
    assert WEIGHTS * 4 < rise < WEIGHTS * 4 + SLACK, f"{rise / MIB:.0f} MiB"


def test_writing_takes_the_memory_of_two_files_at_most(folder, tmp_path):
    rise = peak(
        f"models.save_folder(model, {str(tmp_path / 'copy')!r}, shard_bytes={SHARD})",
        before=f"model = models.load_folder({str(folder)!r}, dtype='bfloat16')",
    )
    assert rise < 2 * SHARD + SLACK, f"{rise / MIB:.0f} MiB"
