"""Full attention against Hugging Face's, in torch: the same weights, tokens and cores."""

import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pce_jax as pce
from pce_jax.models import Llama, save_folder

from .bars import of_ratio
from .flops import encode_flops
from .found import Fact, Found, Row
from .setting import Setting
from .sizes import Cut
from .timing import Case, ratio

LIMIT = 1.00
"""Time of our full prefill relative to theirs."""

FULL = pce.METHODS["full"]


def obstacle() -> str | None:
    """Why this cannot be measured here, if so."""
    for package in ("torch", "transformers"):
        if not installed(package):
            return (
                f"Hugging Face: skipped, because {package} is not installed "
                "(pip install 'pce-jax[parity]')."
            )
    if jax.default_backend() == "cpu":
        return None
    import torch

    if jax.default_backend() == "gpu" and torch.cuda.is_available():
        return None
    return f"Hugging Face: skipped, because torch cannot use the {jax.default_backend()} of jax."


def installed(package: str) -> bool:
    """Whether a package can be imported."""
    return importlib.util.find_spec(package) is not None


def cost(setting: Setting) -> float:
    """What the part costs, in FLOPs."""
    each = encode_flops(setting.config, [setting.sizes.huggingface])
    return 2.0 * each * (1 + setting.repeats) + 2e11


def measure(setting: Setting) -> Found:
    """Read the same tokens with full attention, up to the logits behind the last one."""
    if reason := obstacle():
        return Found(notes=(reason,))
    tokens = setting.text(setting.sizes.huggingface)
    flops = encode_flops(setting.config, [len(tokens)])
    setting.step("handing the model to Hugging Face", 2e11)
    theirs = prefill(setting.model, tokens, setting.cores)
    cases = {
        "own full prefill": Case(lambda: own_prefill(setting.model, tokens), cost=flops),
        "Hugging Face": Case(theirs, cost=flops),
    }
    timed = setting.time(cases)
    size = str(Cut(len(tokens), 1))
    rows = [
        Row(
            part="huggingface",
            size=size,
            name=name,
            sample=each.sample,
            compile_seconds=each.compile_seconds if name == "own full prefill" else None,
            tokens=len(tokens),
            flops=flops,
        )
        for name, each in timed.items()
    ]
    found = ratio(timed["own full prefill"].sample, timed["Hugging Face"].sample)
    name = f"full prefill N={len(tokens)} / Hugging Face"
    judged = setting.judged("huggingface")
    bar = of_ratio("huggingface-prefill", name, found, LIMIT, judged)
    apart = np.abs(np.asarray(own_prefill(setting.model, tokens)) - theirs()).max()
    name = "largest difference of a logit from Hugging Face's"
    fact = Fact(part="huggingface", name=name, value=float(apart), digits=6)
    return Found(rows=tuple(rows), facts=(fact,), bars=(bar,))


def own_prefill(model: Llama, tokens: list[int]) -> jax.Array:
    """Logits behind the last token: the others are encoded, and it is read over them."""
    cache = pce.encode(model, pce.split(tokens[:-1], 1), FULL)
    last = jnp.asarray(tokens[-1:], jnp.int32)
    return pce.query(model, cache, last, FULL, last_only=True).logits


def prefill(model: Llama, tokens: list[int], cores: int) -> Callable[[], np.ndarray]:
    """A function that reads the tokens with Hugging Face's class and gives the last logits.

    Keys and values are kept, as ours are; weights go through a folder that is removed again.
    """
    import torch

    network = _network(model)
    torch.set_num_threads(cores)
    device = "cuda" if jax.default_backend() == "gpu" else "cpu"
    network.to(device).eval()
    ids = torch.tensor([tokens], device=device)

    def run() -> np.ndarray:
        with torch.inference_mode():
            out = network(input_ids=ids, use_cache=True, logits_to_keep=1)
            return out.logits[0, -1].float().cpu().numpy()  # waits for a GPU

    return run


def _network(model: Llama) -> Any:
    import torch
    import transformers
    from transformers.utils import logging

    dtype = getattr(torch, jnp.dtype(model.dtype).name)
    shown, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with tempfile.TemporaryDirectory(prefix="pce-jax-bench-") as folder:
            save_folder(model, Path(folder) / "model")
            network = transformers.AutoModelForCausalLM.from_pretrained(
                str(Path(folder) / "model"), dtype=dtype
            )
            # Safetensors maps files: copy, so that nothing is read from one that is gone.
            with torch.no_grad():
                for parameter in network.parameters():
                    parameter.data = parameter.data.clone()
            return network
    finally:
        logging.set_verbosity(shown)
        if bar:
            logging.enable_progress_bar()
