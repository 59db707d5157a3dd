"""`pce-jax report`: tables, statistics and pictures of a folder of results."""

import dataclasses
from pathlib import Path
from typing import Annotated

import tyro

from .console import console


@dataclasses.dataclass(frozen=True, kw_only=True)
class Report:
    """Make tables, statistics and pictures of what `pce-jax eval` measured.

    Writes report.md, cells.csv, statistics.csv and PNG pictures.

    Attributes:
        results: Folder that pce-jax eval wrote, finished or not.
        out: Folder for the report, created if absent.
        resamples: Bootstrap resamples for intervals.
        seed: Of the bootstrap.
    """

    results: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="DIR")]
    out: Annotated[
        Path | None, tyro.conf.arg(metavar="DIR", help_behavior_hint="(default: DIR/report)")
    ] = None
    resamples: int = 2000
    seed: int = 0

    def run(self) -> int:
        """Do it.

        Raises:
            PceError: The results cannot be read, or the report cannot be written.
        """
        from pce_jax.evals.report import Bootstrap, report_folder

        from .files import InputError, results_folder, written_whole

        for name, value, least in (("resamples", self.resamples, 1), ("seed", self.seed, 0)):
            if value < least:
                raise InputError(f"--{name} must be at least {least}, got {value}.")
        files = report_folder(self.results, Bootstrap(self.resamples, self.seed))
        out = self.results / "report" if self.out is None else self.out
        with results_folder(out):
            for name, content in files.items():
                with written_whole(out / name) as file:
                    file.write(content)
        names = [str(out / name) for name in files]
        console().print(f"Written: {', '.join(names)}", markup=False, soft_wrap=True)
        return 0
