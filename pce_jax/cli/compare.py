"""`pce-jax compare`: fine-tuning runs side by side."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from .console import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Compare:
    """Compare fine-tuning runs: a table of what they reached, and pictures of how.

    Writes compare.md and a PNG picture for each held-out task. Runs that differ by their seed alone
    share a row and a curve: their mean, and ± half of what lies between the lowest and the highest.

    Attributes:
        runs: Folders of finished runs. The first one's model before training is the yardstick.
        degree: Number of segments to compare at.
        out: Folder for table and pictures, created if absent.
    """

    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN ...")]
    degree: int = 8
    out: Annotated[Path, tyro.conf.arg(metavar="FOLDER")] = Path("pce-compare")

    def run(self) -> int:
        """Do it.

        Raises:
            PceError: A run cannot be read, or the folder cannot be written.
        """
        from pce_jax.finetune.compare import pictures, read_result, table

        from .files import InputError, results_folder, written_whole

        if not self.runs:
            raise InputError("no runs: name at least one folder of `pce-jax finetune`.")
        results = [read_result(folder) for folder in self.runs]
        text = table(results, self.degree)
        files = {"compare.md": text.encode(), **pictures(results, self.degree)}
        with results_folder(self.out):
            for name, content in files.items():
                with written_whole(self.out / name) as file:
                    file.write(content)
        out = console()
        out.print(text, markup=False, soft_wrap=True)
        names = ", ".join(str(self.out / name) for name in files)
        out.print(f"Written: {names}", markup=False, soft_wrap=True)
        return 0
