"""How a report says things: numbers with intervals, names, and tables in Markdown."""

import dataclasses
from collections.abc import Sequence

from .cells import FULL, TaskCells
from .stats import Estimate

ABSENT = "–"
MINUS = "\N{MINUS SIGN}"


@dataclasses.dataclass(frozen=True)
class Table:
    """Cells of text under headings.

    Attributes:
        header: Headings.
        rows: As many cells each.
        left: Columns of words, at the left; the others hold numbers.
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    left: int = 1


def markdown(table: Table) -> str:
    """A pipe table."""
    rules = [":--" if column < table.left else "--:" for column in range(len(table.header))]
    lines = [table.header, rules, *table.rows]
    return "\n".join("| " + " | ".join(_escaped(cell) for cell in line) + " |" for line in lines)


def label(method: str) -> str:
    """How a method is called in tables and pictures."""
    return "full attention" if method == FULL else method


def unit(task: TaskCells) -> str:
    """What the headline score is, and in what."""
    return "perplexity" if task.is_lm else f"{task.metric} (%)"


def number(value: float | None, digits: int, scale: float = 1, sign: bool = False) -> str:
    """A number with a true minus, or a dash."""
    if value is None:
        return ABSENT
    text = f"{value * scale:{'+' if sign else ''}.{digits}f}"
    if not any(digit in text for digit in "123456789"):  # -0.0
        text = text.lstrip("+-")
    return text.replace("-", MINUS)


def with_interval(
    estimate: Estimate | None, digits: int, scale: float = 1, *, sign: bool = False
) -> str:
    """`value [low, high]`, or a dash."""
    if estimate is None or estimate.value is None:
        return ABSENT
    text = number(estimate.value, digits, scale, sign)
    if estimate.low is None:
        return text
    ends = ", ".join(number(end, digits, scale, sign) for end in (estimate.low, estimate.high))
    return f"{text} [{ends}]"


def _escaped(cell: str) -> str:
    return cell.replace("|", r"\|").replace("\n", " ")
