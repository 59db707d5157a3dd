"""`pce-jax demo`: what parallel encoding costs and what repairs it, on this machine."""

import dataclasses
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import console, error_console, progress
from .flags import Degrees, MaybeDtype, MaybeFile, MethodNames

if TYPE_CHECKING:
    from rich.console import Console

    from pce_jax.demo.study import Row
    from pce_jax.demo.text import Window
    from pce_jax.models import Llama

MIN_CONTEXT = 2  # tokens in front of the query, so that there is something to cut

INTRO = """\
[bold]Parallel context encoding[/]

  model    {model}
  text     {windows} windows of {size} tokens, {source}
  layout   {context} context tokens in P segments that do not see each other,
           then 1 + {scored} tokens that see everything; the last {scored} are scored"""

NOTES = """\
P=1 is full attention. With one segment there is nothing to select: there, sel
is naive and sink+sel is sink. Perplexity: the lower the better."""

NEXT = """
One example proves nothing, least of all with so small a model. Ask your own:
  pce-jax generate --docs FILE FILE --question TEXT --chat
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Demo:
    """Measure perplexity and attention entropy against the degree of parallelism.

    Writes rows.jsonl and demo.png, and ends with a question over documents.

    Takes some minutes on two CPU cores.

    Attributes:
        text: UTF-8 text file to read, instead of the documentation that comes with Python.
        model: smollm2-135m (fetched once), a Hugging Face id, a model folder or a .gguf file.
        out: Folder for the results; created if absent.
        degrees: Numbers of segments, P.
        methods: Of full, naive, sink, sel, sink+sel; full attention is always measured.
        windows: Stretches of text to average over.
        window_tokens: Tokens in a window, N.
        scored_tokens: Tokens at the end of a window to score.
        dtype: Of weights and activations.
        no_answer: Leave out the question over documents.
    """

    text: MaybeFile = None
    model: str = "smollm2-135m"
    out: Path = Path("pce-demo")
    degrees: Degrees = (1, 2, 4, 8, 16)
    methods: MethodNames = ("naive", "sink", "sel", "sink+sel")
    windows: int = 2
    window_tokens: int = 1024
    scored_tokens: int = 256
    dtype: MaybeDtype = None
    no_answer: bool = False

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: A file, the model or a setting cannot be used.
        """
        from .files import read_text, results_folder

        self._check()
        text = None if self.text is None else read_text(self.text, "--text")
        with results_folder(self.out):
            self._demo(text)
        return 0

    def _demo(self, text: str | None) -> None:
        from rich.markup import escape

        from .model import load_model

        start, out = time.monotonic(), console()
        model, tokenizer = load_model(self.model, self.dtype)
        windows = self._windows(tokenizer, text)
        if len(windows) < self.windows:
            error_console().print(
                f"The text gives {len(windows)} windows, not {self.windows}: using those."
            )
        intro = INTRO.format(
            model=escape(self.model),
            windows=len(windows),
            size=self.window_tokens,
            source="documentation that comes with Python"
            if self.text is None
            else escape(self.text.name),
            context=self.window_tokens - self.scored_tokens - 1,
            scored=self.scored_tokens,
        )
        out.print(intro, end="\n\n")
        rows = self._measure(model, tokenizer, windows)
        self._report(out, rows)
        if not self.no_answer:
            _show_answer(out, model, tokenizer)
        unit = 2**20 if sys.platform == "darwin" else 2**10  # bytes there, KiB elsewhere
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit
        out.print(
            f"Took {time.monotonic() - start:.0f} s and {peak:.0f} MiB of memory at most.",
            style="dim",
        )

    def _check(self) -> None:
        from .files import InputError

        if self.windows < 1:
            raise InputError(f"--windows must be at least 1, got {self.windows}.")
        if self.scored_tokens < 1:
            raise InputError(f"--scored-tokens must be at least 1, got {self.scored_tokens}.")
        context = self.window_tokens - self.scored_tokens - 1
        if context < MIN_CONTEXT:
            raise InputError(
                f"--window-tokens {self.window_tokens} leaves {context} context tokens in front of "
                f"1 query token and {self.scored_tokens} scored ones. Use at least "
                f"{self.scored_tokens + 1 + MIN_CONTEXT}, or fewer --scored-tokens."
            )
        if max(self.degrees) > context:
            raise InputError(
                f"--degrees: {max(self.degrees)} is above the {context} context tokens of a "
                "window, and every segment needs at least one. Use lower degrees or more "
                "--window-tokens."
            )

    def _windows(self, tokenizer: Any, text: str | None) -> "list[Window]":
        from pce_jax.demo.text import text_windows, topic_windows

        if self.text is None or text is None:
            return topic_windows(tokenizer, self.windows, self.window_tokens)
        name = self.text.name
        return text_windows(tokenizer, text, name, self.windows, self.window_tokens)

    def _measure(self, model: "Llama", tokenizer: Any, windows: "list[Window]") -> "list[Row]":
        from pce_jax.demo.study import FULL, measure, plan, steps

        jobs = plan(self.methods, self.degrees)
        total, done = steps(jobs, len(windows)), 0
        with progress("Measuring") as report:

            def step(what: str) -> None:
                nonlocal done
                done += 1
                report(done, total, what)

            report(0, total, "compiling")
            rows = list(measure(model, tokenizer, windows, jobs, self.scored_tokens, step))
        order = [FULL, *self.methods]
        names = [window.name for window in windows]
        return sorted(rows, key=lambda r: (names.index(r.window), r.degree, order.index(r.method)))

    def _report(self, out: "Console", rows: "list[Row]") -> None:
        from pce_jax.demo.picture import draw
        from pce_jax.demo.report import json_lines, means, table

        from .files import written_whole

        out.print(table(rows))
        out.print(f"\n{NOTES}\n", style="dim")
        with written_whole(self.out / "rows.jsonl") as file:
            file.write(json_lines(rows, self.model))
        with written_whole(self.out / "demo.png") as file:
            draw(means(rows), f"{self.model}, {self.window_tokens}-token windows", file)
        out.print(
            f"Written: {self.out / 'rows.jsonl'}, {self.out / 'demo.png'}",
            markup=False,
            soft_wrap=True,
        )


def _show_answer(out: "Console", model: "Llama", tokenizer: Any) -> None:
    from rich.table import Table
    from rich.text import Text

    from .example import DOCUMENTS, QUESTION, answers

    rows = Table.grid(padding=(0, 2))
    for number, document in enumerate(DOCUMENTS, 1):
        rows.add_row(f"  document {number}", document)
    rows.add_row("  question", QUESTION)
    for name, text in answers(model, tokenizer):
        rows.add_row(f"  {name}", Text(text, "bold"))
    out.print("\n[bold]A question over documents[/], each one its own segment\n")
    out.print(rows)
    out.print(NEXT, markup=False)
