"""`pce-jax bench`: speed and memory on this machine, against full attention and Hugging Face."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import console, error_console, progress
from .flags import PART_NAMES, MaybeCount, MaybeDtype, MaybeShapes, Parts

if TYPE_CHECKING:
    from rich.console import Console

    from pce_jax.bench.found import Found
    from pce_jax.bench.report import Grid
    from pce_jax.bench.roofline import Roofline
    from pce_jax.bench.setting import Setting
    from pce_jax.models import Llama

REPEATS, QUICK_REPEATS = 5, 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bench:
    """Measure time and memory of encoding, queries and generation.

    Against full attention: here, and Hugging Face's if torch is installed.

    Writes bench.json, bench.md and bench.png.

    Takes ten minutes on two CPU cores, and 3 minutes with --quick.

    Attributes:
        model: smollm2-135m (fetched once), a Hugging Face id, a model folder or a .gguf file.
        shapes: In place of --model, random weights and tokens in the shapes of smollm2-135m,
            llama-3.1-8b or llama-3.1-70b.
        dtype: Of weights and activations.
        repeats: How often each thing is timed (default: 5, or 3 with --quick).
        quick: Shorter contexts and fewer repeats.
        out: Folder for the results; created if absent.
        parts: Of encode, query, decode, memory, compile, train, huggingface.
        no_huggingface: Leave out Hugging Face.
    """

    model: str = "smollm2-135m"
    shapes: MaybeShapes = None
    dtype: MaybeDtype = None
    repeats: MaybeCount = None
    quick: bool = False
    out: Path = Path("pce-bench")
    parts: Parts = PART_NAMES
    no_huggingface: bool = False

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: The model or a setting cannot be used.
        """
        from .files import results_folder

        self._check()
        with results_folder(self.out):
            self._bench()
        return 0

    def _check(self) -> None:
        from .files import InputError

        if self.repeats is not None and self.repeats < 1:
            raise InputError(f"--repeats must be at least 1, got {self.repeats}.")
        if not self._parts():
            raise InputError(
                "--parts names only huggingface, and --no-huggingface leaves it out. Name others."
            )

    def _parts(self) -> tuple[str, ...]:
        return tuple(p for p in self.parts if p != "huggingface" or not self.no_huggingface)

    def _bench(self) -> None:
        from pce_jax.bench import machine
        from pce_jax.bench.found import Found
        from pce_jax.bench.roofline import Roofline
        from pce_jax.bench.run import measure
        from pce_jax.bench.setting import random_text, text

        from .model import load_model, random_model

        start, out = time.monotonic(), console()
        self._say_what_is_left_out()
        if self.shapes is None:
            model, tokenizer = load_model(self.model, self.dtype)
            setting = self._setting(model, text(tokenizer))
        else:
            model = random_model(self.shapes, self.dtype)
            setting = self._setting(model, random_text(model.config.vocab_size))
        name = self.model if self.shapes is None else f"{self.shapes} (random weights)"
        facts = machine.facts(setting, name, self._parts(), self.quick)
        found, roofline = Found(), None
        with progress("Measuring") as report:

            def tell(done: float, total: float, now: str) -> None:
                report(round(100 * done / total), 100, now)

            def make(step: Callable[[str, float], object]) -> "Setting":
                return dataclasses.replace(setting, step=step)

            for _, part in measure(make, self._parts(), tell):
                if isinstance(part, Roofline):
                    roofline = part.best(roofline)
                else:
                    found += part
                self._write_json(found, roofline, facts, finished=False)
        assert roofline is not None
        if facts["platform"] != "cpu":
            from pce_jax.bench import accelerator

            judged = setting.sizes == setting.official and accelerator.is_reference(
                setting.config, facts["dtype"]
            )
            found += Found(bars=accelerator.bars(found, roofline, judged))
        facts["seconds"] = round(time.monotonic() - start, 1)
        self._report(out, found, roofline, facts)

    def _say_what_is_left_out(self) -> None:
        if "huggingface" in self._parts():
            from pce_jax.bench.huggingface import obstacle

            if reason := obstacle():
                error_console().print(reason, markup=False)

    def _setting(self, model: "Llama", tokens: list[int]) -> "Setting":
        import jax
        import jax.numpy as jnp

        from pce_jax.bench import machine, sizes
        from pce_jax.bench.bars import is_reference
        from pce_jax.bench.setting import Setting

        cores, dtype = machine.cores(), jnp.dtype(model.dtype).name
        official = sizes.FULL if jax.default_backend() == "cpu" else sizes.ACCELERATOR
        chosen = sizes.QUICK if self.quick else official
        return Setting(
            model=model,
            tokens=tokens,
            sizes=chosen.fitted(model.config.max_positions),
            official=official,
            repeats=self.repeats or (QUICK_REPEATS if self.quick else REPEATS),
            reference=is_reference(model.config, dtype, jax.default_backend(), cores),
            cores=cores,
        )

    def _write_json(
        self, found: "Found", roofline: "Roofline | None", facts: dict[str, Any], finished: bool
    ) -> None:
        from pce_jax.bench.report import as_json

        from .files import written_whole

        with written_whole(self.out / "bench.json") as file:
            file.write(as_json(found, roofline, facts, finished))

    def _report(
        self, out: "Console", found: "Found", roofline: "Roofline", facts: dict[str, Any]
    ) -> None:
        from pce_jax.bench.picture import draw
        from pce_jax.bench.report import grids, headline, markdown, notes

        from .files import written_whole

        out.print(headline(facts), markup=False, end="\n\n")
        for grid in grids(found, roofline):
            out.print(_table(grid), end="\n\n")
        for note in notes(found, facts):
            out.print(note, style="dim", markup=False)
        self._write_json(found, roofline, facts, finished=True)
        with written_whole(self.out / "bench.md") as file:
            file.write(markdown(found, roofline, facts))
        with written_whole(self.out / "bench.png") as file:
            draw(found, headline(facts), file)
        out.print(f"Took {facts['seconds']:.0f} s.", style="dim")
        names = (str(self.out / f"bench.{end}") for end in ("json", "md", "png"))
        out.print(f"Written: {', '.join(names)}", markup=False, soft_wrap=True)


def _table(grid: "Grid") -> Any:
    from rich.table import Table
    from rich.text import Text

    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(grid.title, overflow="fold")
    for head in grid.heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    colours = {"pass": "green", "miss": "bold red"}
    for row in grid.rows:
        name = Text(row[0], "bold" if len(row) == 1 else "")
        table.add_row(name, *(Text(cell, colours.get(cell, "")) for cell in row[1:]))
    return table
