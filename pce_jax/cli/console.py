"""What the commands write with: results on stdout, everything else on stderr."""

import contextlib
import time
from collections.abc import Callable, Generator

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

QUIET_SECONDS = 15  # between two lines of progress where there is no terminal


def console() -> Console:
    """Stdout. Plain where it is not a terminal."""
    return Console(highlight=False)


def error_console() -> Console:
    """Stderr. Plain where it is not a terminal."""
    return Console(stderr=True, highlight=False)


def print_error(error: Exception) -> None:
    """Print an error's message on stderr, without a traceback."""
    out = error_console()
    # In a file or a pipe lines stay whole, so that a path in them can be copied.
    out.print(Text("error: ", "bold red") + Text(str(error)), soft_wrap=not out.is_terminal)


@contextlib.contextmanager
def progress(title: str, total: int | None = None) -> Generator[Callable[[int, int, str], None]]:
    """Show how far a long task is: a bar with the time left, or now and then a line.

    Args:
        title: What is being done.
        total: Steps, if known; leave out for a bar that starts with the first report.

    Yields:
        A function to report with: steps done, steps in all, and what is being done now.
    """
    out = error_console()
    if not out.is_terminal:
        yield _lines(out, title)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("left:"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=out, transient=True) as bar:
        task = bar.add_task(title, total=total)

        def report(done: int, total: int, now: str) -> None:
            bar.update(task, completed=done, total=total, description=now or title)

        yield report


def _lines(out: Console, title: str) -> Callable[[int, int, str], None]:
    start = last = time.monotonic()
    origin, known = 0, None

    def report(done: int, total: int, now: str) -> None:
        nonlocal start, last, origin, known
        time_now = time.monotonic()
        if known not in (None, total):  # another kind of work
            start, origin = time_now, done
        known = total
        if time_now - last > QUIET_SECONDS:
            last = time_now
            text = f"{now or title}: {done} of {total}"
            if done > origin:
                text += f", about {(last - start) / (done - origin) * (total - done):.0f} s left"
            out.print(text, markup=False, soft_wrap=True)

    return report
