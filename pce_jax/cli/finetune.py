"""`pce-jax finetune`: train as a config says, into a folder that the same command goes on from."""

import contextlib
import dataclasses
import signal
import time
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from .console import console, error_console, progress
from .flags import MaybeFolder

if TYPE_CHECKING:
    from pce_jax.finetune.loop import Outcome


@dataclasses.dataclass(frozen=True, kw_only=True)
class Finetune:
    """Train a model to read segments side by side as if they were one text.

    Prints a line per measurement on held-out text, and before and after at the end.

    After an interruption (or a kill) the same command goes on, to the same numbers.

    Attributes:
        config: TOML file; examples are in configs/finetune.
        set: Change a value of the config, as in --set steps=20 --set loss.entropy=0.
        out: Folder of the run, created if absent.
    """

    config: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG.toml")]
    set: Annotated[
        tyro.conf.UseAppendAction[tuple[str, ...]], tyro.conf.arg(metavar="KEY=VALUE")
    ] = ()
    out: MaybeFolder = None

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: The config, its data, the model or the folder cannot be used; or
                a loss is not finite.
        """
        from pce_jax.finetune.config import load_config

        config = load_config(self.config, self.set, self.out)
        with _told_to_stop() as told:
            outcome = self._train(config, told)
        out = console()
        if not outcome.done:
            out.print("Stopped, with everything kept: the same command goes on.")
        for line in report(outcome):
            out.print(line, markup=False, soft_wrap=True)
        out.print(f"Written: {config.out}", markup=False, soft_wrap=True)
        return 0

    def _train(self, config: Any, told: Callable[[], bool]) -> "Outcome":
        from pce_jax.evals.manifest import hash_model
        from pce_jax.finetune.run import finetune
        from pce_jax.hub import resolve
        from pce_jax.hub.load import default_dtype

        from .model import load_model

        start, out = time.monotonic(), console()
        dtype = config.dtype or default_dtype()
        masters = "float32" if "weights" in config.train else config.dtype
        model, tokenizer = load_model(config.model, masters, layout=config.mesh.layout())
        model_hash = hash_model(resolve(config.model))
        with progress("Fine-tuning") as show:
            outcome = finetune(
                config,
                model,
                tokenizer,
                model_hash,
                dtype=dtype,
                on_row=lambda row: (
                    out.print(line(row), markup=False, soft_wrap=True)
                    if row["kind"] == "heldout"
                    else None
                ),
                on_progress=show,
                stop=told,
            )
        error_console().print(
            f"{int(outcome.state.step)} of {config.steps} steps, "
            f"{outcome.state.trained.size:,} numbers trained, "
            f"{time.monotonic() - start:.0f} s.",
            style="dim",
        )
        return outcome


def line(row: Mapping[str, Any]) -> str:
    """A measurement on held-out text."""
    degrees = "   ".join(
        f"{'full' if degree == '1' else 'P=' + degree} {one['log_ppl']:.4f} (entropy "
        f"{one['entropy']:.3f})"
        for degree, one in row["degrees"].items()
    )
    return f"step {row['step']:5}  {row['task']:10} {row['who']:8} log PPL: {degrees}"


def report(outcome: "Outcome") -> list[str]:
    """Before and after, by task and degree."""
    from pce_jax.finetune.measured import closed, gap

    lines = []
    for name, found in outcome.summary.items():
        base, tuned = found["base"], found["tuned"]
        for degree in base:
            text = (
                f"{name}, {'full attention' if degree == 1 else f'{degree} segments'}: log PPL "
                f"{base[degree].log_ppl:.4f} -> {tuned[degree].log_ppl:.4f}, entropy "
                f"{base[degree].mean_entropy:.3f} -> {tuned[degree].mean_entropy:.3f}"
            )
            if degree > 1 and gap(base, base, degree) > 0:
                text += f"; {closed(base, tuned, degree):.0%} of the gap to full attention closed"
            lines.append(text)
    return lines


@contextlib.contextmanager
def _told_to_stop() -> Generator[Callable[[], bool]]:
    """SIGTERM asks for a stop after the step at hand, with everything kept."""
    told = False

    def note(*_: object) -> None:
        nonlocal told
        told = True

    before = signal.signal(signal.SIGTERM, note)
    try:
        yield lambda: told
    finally:
        signal.signal(signal.SIGTERM, before)
