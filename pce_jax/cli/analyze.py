"""`pce-jax analyze`: what attention does under each method, by layer, head and token."""

import dataclasses
import functools
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import console, progress
from .flags import Degrees, Files, MaybeDtype, MaybeFile, MaybeText, MethodNames

if TYPE_CHECKING:
    from pce_jax.analysis.study import Cell, Measured, SwapRow
    from pce_jax.method import Method

NOTES = """\
Means over layers, heads and the query's tokens; "sink" is the mass on it.
|k| is the L2 norm of the context's keys, "first" that of the segments' first
tokens, and "in full" that of the same tokens under full attention."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Analyze:
    """Measure attention by layer, head and token: entropy, logits, norms, masses.

    Reads the beginning of a text, whose end is the query, or a question over documents. Writes
    layers.jsonl (a line per layer and head), tokens.jsonl (a line per token) and pictures.

    Attributes:
        text: UTF-8 text file to read, instead of the documentation that comes with Python.
        docs: UTF-8 text files, instead of a text; each is one document and stays whole.
        question: What to ask about the documents.
        model: smollm2-135m (fetched once), a Hugging Face id, a model folder or a .gguf file.
        degrees: Numbers of segments, P.
        methods: Of full, naive, sink, sel, sink+sel; full attention is always measured.
        swaps: Also put keys, values or both from full attention into each context.
        out: Folder for the results; created if absent.
        window_tokens: Tokens to read of a text.
        query_tokens: How many of them, at the end, are the query.
        dtype: Of weights and activations.
    """

    text: MaybeFile = None
    docs: Files = ()
    question: MaybeText = None
    model: str = "smollm2-135m"
    degrees: Degrees = (1, 4, 8)
    methods: MethodNames = ("naive", "sink", "sel", "sink+sel")
    swaps: bool = False
    out: Path = Path("pce-analysis")
    window_tokens: int = 1024
    query_tokens: int = 256
    dtype: MaybeDtype = None

    def run(self) -> int:
        """Do it.

        Raises:
            PceError, ModelError: A file, the model or a setting cannot be used.
        """
        from .files import results_folder
        from .prompt import query_text, read_documents

        self._check()
        documents, question = None, ""
        if self.docs:
            documents, question = read_documents(self.docs), query_text(self.question or "")
        text = self._text()
        with results_folder(self.out):
            self._analyze(text, documents, question)
        return 0

    def _check(self) -> None:
        from .files import InputError

        if self.docs and self.text is not None:
            raise InputError("--text and --docs are two inputs. Give one of them.")
        if bool(self.docs) != (self.question is not None):
            given, absent = ("--docs", "--question") if self.docs else ("--question", "--docs")
            raise InputError(f"{given} needs {absent} too: a question is asked about documents.")
        if self.docs:
            if max(self.degrees) > len(self.docs):
                raise InputError(
                    f"--degrees: documents stay whole, so {len(self.docs)} of them make at most "
                    f"{len(self.docs)} segments, not {max(self.degrees)}. Use lower --degrees."
                )
            return
        context = self.window_tokens - self.query_tokens
        if self.query_tokens < 1 or context < max(self.degrees):
            raise InputError(
                f"--window-tokens {self.window_tokens} with --query-tokens {self.query_tokens} "
                f"leaves {context} context tokens for {max(self.degrees)} segments, and each needs "
                "one, as does the query. Use lower --degrees, or a longer window."
            )

    def _text(self) -> str | None:
        from .files import read_text

        return None if self.text is None else read_text(self.text, "--text")

    def _analyze(self, text: str | None, documents: list[str] | None, question: str) -> None:
        from pce_jax.analysis.pictures import pictures
        from pce_jax.analysis.profile import profile
        from pce_jax.analysis.study import layer_rows, measure, token_rows

        from .files import written_whole
        from .model import load_model

        model, tokenizer = load_model(self.model, self.dtype)
        cells = self._cells(tokenizer, text, documents, question)
        found: list[Measured] = []
        swapped: list[SwapRow] = []
        with progress("Measuring") as report:
            report(0, len(cells), "compiling")
            for measured, rows in measure(model, cells, self.swaps):
                found.append(measured)
                swapped += rows
                report(len(found), len(cells), measured.cell.title)
        source = self._source(len(cells[0].query))
        drawn = pictures([profile(each) for each in found], f"{self.model}, {source}")
        files = {
            "layers.jsonl": _lines(row for each in found for row in layer_rows(each)),
            "tokens.jsonl": _lines(row for each in found for row in token_rows(each)),
            **drawn,
        }
        if swapped:
            files["swaps.jsonl"] = _lines(map(dataclasses.asdict, swapped))
        out = console()
        out.print(_table(found))
        out.print(f"\n{NOTES}\n", style="dim")
        if swapped:
            out.print(_swap_table(swapped), end="\n\n")
        for name, content in files.items():
            with written_whole(self.out / name) as file:
                file.write(content)
        out.print(f"Written to {self.out}: {', '.join(files)}", markup=False, soft_wrap=True)

    def _cells(
        self, tokenizer: Any, text: str | None, documents: list[str] | None, question: str
    ) -> "list[Cell]":
        """The context cut for every method and degree."""
        from pce_jax import METHODS, encode_text, group
        from pce_jax.analysis.controls import overlapping
        from pce_jax.analysis.study import FULL, Cell, plan
        from pce_jax.demo.study import lm_method

        cut: Callable[[int], list[list[int]]]
        if documents is not None:
            items = [encode_text(tokenizer, document) for document in documents]
            query = encode_text(tokenizer, question)
            cut = functools.partial(group, items)
        else:
            tokens = self._window(tokenizer, text)
            query = tokens[-self.query_tokens :]
            cut = functools.partial(overlapping, tokens[: -self.query_tokens], times=1)
        # A text is language modelling, documents are a task: what selection aggregates differs.
        of = lm_method if documents is None else METHODS.__getitem__
        methods: dict[str, Method] = {name: of(name) for name in (FULL, *self.methods)}
        return [
            Cell(
                name=name,
                degree=degree,
                method=methods[name],
                sink=encode_text(tokenizer, methods[name].sink) if methods[name].sink else [],
                segments=cut(degree),
                query=query,
            )
            for name, degree in plan(methods, self.degrees)
        ]

    def _window(self, tokenizer: Any, text: str | None) -> list[int]:
        from pce_jax.demo.text import text_windows, topic_windows

        if self.text is None or text is None:
            return topic_windows(tokenizer, 1, self.window_tokens)[0].tokens
        return text_windows(tokenizer, text, self.text.name, 1, self.window_tokens)[0].tokens

    def _source(self, query: int) -> str:
        if self.docs:
            return f"{len(self.docs)} documents and a question of {query} tokens"
        name = "Python's documentation" if self.text is None else self.text.name
        return f"{self.window_tokens} tokens of {name}, the last {query} as the query"


def _lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _table(found: "Sequence[Measured]") -> Any:
    from pce_jax.analysis.study import curve, first_tokens, values

    table = _grid("", "entropy", "between", "|logit|", "cosine", "sink", "|k|", "first", "in full")
    in_full = curve(found[0], "k_norm")
    for each in found:
        query = {name: float(x.mean()) for name, x in values(each.query).items()}
        keys, first = curve(each, "k_norm"), first_tokens(each.cell)
        context = keys[: len(keys) - len(each.cell.query)]
        shown = ("entropy", "entropy_between", "logit", "cosine", "sink_mass")
        norms = (context.mean(), keys[first].mean(), in_full[first].mean())
        numbers = [*(query[name] for name in shown), *norms]
        table.add_row(each.cell.title, *(f"{number:.3f}" for number in numbers))
    return table


def _swap_table(rows: "Sequence[SwapRow]") -> Any:
    """Perplexity and entropy of each cell (rows) with each swap (columns)."""
    swaps = list(dict.fromkeys(row.swapped for row in rows))
    heads = [name or "none" for name in swaps]
    table = _grid("from full attention:", *(f"{name}" for name in heads))
    cells = list(dict.fromkeys((row.method, row.degree) for row in rows))
    found = {(row.method, row.degree, row.swapped): row for row in rows}
    for title, digits in (("perplexity", 2), ("entropy", 3)):
        table.add_row(f"[bold]{title}[/]")
        for method, degree in cells:
            numbers = [found.get((method, degree, name)) for name in swaps]
            name = "full attention" if method == "full" else f"{method}, P={degree}"
            table.add_row(
                f"  {name}",
                *("" if row is None else f"{getattr(row, title):.{digits}f}" for row in numbers),
            )
    return table


def _grid(*heads: str) -> Any:
    from rich.table import Table

    table = Table(pad_edge=False, box=None, header_style="bold", padding=(0, 1))
    table.add_column(heads[0], no_wrap=True)
    for head in heads[1:]:
        table.add_column(head, justify="right", no_wrap=True)
    return table
