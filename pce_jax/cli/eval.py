"""`pce-jax eval`: tasks x methods x degrees from a config, into a folder of results."""

import dataclasses
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from .console import console, error_console, progress
from .flags import (
    MaybeCount,
    MaybeDegrees,
    MaybeDtype,
    MaybeFolder,
    MaybeNames,
    MaybeStore,
    MaybeText,
    MaybeWeights,
)

if TYPE_CHECKING:
    from pce_jax.evals.config import EvalConfig
    from pce_jax.evals.run import CellDone

HEADER = "task             method       P  score             entropy    n   seconds"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Eval:
    r"""Run the tasks of a config at several degrees, with several methods.

    Prints a line per finished cell (a task read by a method at a degree).

    After an interruption the same command goes on: nothing is done twice.

    Flags change what the config says; see docs/evaluation.md for its keys.

    Attributes:
        config: TOML file; examples are in configs/eval.
        model: smollm2-135m (fetched once), a Hugging Face id, a model folder or a .gguf file.
        adapters: Folder of adapters from pce-jax export (or LoRA from peft) to put on the model.
        dtype: Of weights and activations.
        weights: Keep weights as 8-bit integers, with a scale a row.
        cache: Keep keys and values of the segments smaller.
        degrees: Numbers of segments, P.
        methods: Of full, naive, sink, sel, sink+sel and those of the config.
        tasks: Of the config's tasks, those to run.
        sink: Sink text (\n is a line break), or "paper" for each task's own prompt.
        limit: Instances per task at most.
        batch: Instances side by side: faster, takes memory, changes no result.
        at_once: Segments of each that are encoded side by side: bounds memory, changes no result.
        seed: Of tasks that draw.
        chat: Wrap queries in the model's chat template.
        profile: Do not look closely at an instance of each task, as the report's pictures need.
        out: Folder for the results, created if absent.
    """

    config: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="CONFIG.toml")]
    model: MaybeText = None
    adapters: MaybeFolder = None
    dtype: MaybeDtype = None
    weights: MaybeWeights = None
    cache: MaybeStore = None
    degrees: MaybeDegrees = None
    methods: MaybeNames = None
    tasks: MaybeNames = None
    sink: MaybeText = None
    limit: MaybeCount = None
    batch: MaybeCount = None
    at_once: MaybeCount = None
    seed: MaybeCount = None
    chat: bool = False
    profile: bool = True
    out: MaybeFolder = None

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: The config, its data, the model or the results folder cannot be
                used.
        """
        from pce_jax.evals.config import load_config

        config = load_config(self.config, self._overrides())
        try:
            self._evaluate(config)
        except KeyboardInterrupt:
            error_console().print("Everything up to here is kept: the same command goes on.")
            raise
        return 0

    def _overrides(self) -> dict[str, object]:
        special = ("config", "sink", "chat", "profile")
        names = (field.name for field in dataclasses.fields(self) if field.name not in special)
        found = {name: getattr(self, name) for name in names}
        found["adapters"] = None if self.adapters is None else str(self.adapters)
        found["sink"] = None if self.sink is None else self.sink.replace(r"\n", "\n")
        found |= {"chat": True} if self.chat else {}
        return found | ({} if self.profile else {"profile": False})

    def _evaluate(self, config: "EvalConfig") -> None:
        from pce_jax.evals.manifest import hash_model
        from pce_jax.evals.run import evaluate
        from pce_jax.hub import resolve

        from .model import load_model

        start, out = time.monotonic(), console()
        model, tokenizer = load_model(config.model, config.dtype, config.weights, config.adapters)
        model_hash = hash_model(resolve(config.model))
        out.print(HEADER, style="bold")
        with progress("Evaluating") as report:
            summary = evaluate(
                model,
                tokenizer,
                config,
                model_hash,
                on_cell=lambda cell: out.print(line(cell), markup=False, soft_wrap=True),
                on_progress=report,
            )
        error_console().print(
            f"{summary.rows} rows in {time.monotonic() - start:.0f} s; {summary.programs} programs "
            f"compiled in {summary.compile_seconds:.0f} s; {summary.padding:.0%} of the context "
            "slots were padding.",
            style="dim",
        )
        if summary.skipped:
            error_console().print(
                f"Cells skipped, as they do not fit the model's positions: {summary.skipped} (see "
                "above)."
            )
        out.print(f"Written: {config.out}", markup=False, soft_wrap=True)


def line(cell: "CellDone") -> str:
    """One finished cell, to stand under `HEADER`."""
    short = {"ppl": "ppl", "exact_match": "em", "substring_exact_match": "sub-em"}
    score = f"{cell.score:.3f} {short.get(cell.metric, cell.metric)}"
    return (
        f"{cell.task:16} {cell.method:9} {cell.degree:4}  {score:17} {cell.entropy:7.3f} "
        f"{cell.instances:4} {cell.seconds:9.1f}"
    )
