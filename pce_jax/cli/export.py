"""`pce-jax export`: what a run has trained, as files for Hugging Face and `peft`."""

import dataclasses
from pathlib import Path
from typing import Annotated, Literal

import tyro

from .console import console
from .flags import MaybeCount, MaybeDtype, MaybeText


@dataclasses.dataclass(frozen=True, kw_only=True)
class Export:
    """Write what a fine-tuning run has trained.

    As a model: a Hugging Face folder. LoRA is merged into the weights.

    As adapters: LoRA in the files of the peft package.

    Temperatures and a learned sink, which neither of these knows, are written beside it for
    --adapters.

    Attributes:
        run_folder: Folder of the run, as written by pce-jax finetune.
        out: Folder to make.
        form: What to write.
        best: Take the checkpoint of the lowest held-out likelihood, in place of the last one.
        step: Take the checkpoint of this step.
        model: Where the model from before training is, if it is no longer where the run says.
        dtype: Of a model's weights; float32 by default.
    """

    run_folder: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")]
    form: Literal["model", "adapters"] = "model"
    best: bool = False
    step: MaybeCount = None
    model: MaybeText = None
    dtype: MaybeDtype = None

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: The run, its model or the folder cannot be used.
        """
        import jax.numpy as jnp

        from pce_jax.errors import FinetuneError
        from pce_jax.evals.manifest import hash_model
        from pce_jax.finetune.export import Which, export, load_trained
        from pce_jax.finetune.folder import read_run
        from pce_jax.hub import resolve

        from .model import load_model

        if self.best and self.step is not None:
            raise FinetuneError("--best and --step name two checkpoints. Leave one out.")
        found = read_run(self.run_folder)
        name = self.model or found["model"]
        if hash_model(resolve(name)) != found["settings"]["model_sha256"]:
            raise FinetuneError(
                f"{name} is not the model that the run began with: its files differ. Name that "
                "one with --model."
            )
        model, tokenizer = load_model(name, "float32")
        which: Which = "best" if self.best else "last" if self.step is None else self.step
        trained = load_trained(self.run_folder, model, tokenizer, which)
        dtype = jnp.dtype(self.dtype or "float32")
        export(trained, model, tokenizer, self.out, form=self.form, base=name, dtype=dtype)
        console().print(f"Written: {self.out}", markup=False, soft_wrap=True)
        return 0
