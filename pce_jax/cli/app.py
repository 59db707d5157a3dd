"""From arguments to a command, and from whatever it raises to an exit status.

Status 0: done. 1: `doctor` found something wrong, or the reader of a pipe went away. 2: the
arguments or the files they name cannot be used. 130: interrupted.
"""

import atexit
import contextlib
import gc
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Sequence
from typing import Any

import tyro

from .analyze import Analyze
from .bench import Bench
from .compare import Compare
from .console import error_console, print_error
from .demo import Demo
from .doctor import Doctor
from .eval import Eval
from .export import Export
from .finetune import Finetune
from .generate import Generate
from .report import Report

COMMANDS: dict[str, Callable[..., Any]] = {
    "demo": Demo,
    "generate": Generate,
    "eval": Eval,
    "report": Report,
    "analyze": Analyze,
    "finetune": Finetune,
    "export": Export,
    "compare": Compare,
    "bench": Bench,
    "doctor": Doctor,
}

# tyro keeps paragraphs and does not wrap them: each must fit a narrow terminal.
DESCRIPTION = """\
Read the parts of a long context side by side, and query them together.

Start with: pce-jax demo"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments without the program's name; those of the process by default.

    Returns:
        The exit status. Defects keep their traceback: any exception that is not meant for the user
        is raised.
    """
    try:
        with _logging_to_stderr(), _no_interruption_lost(), _garbage_seldom_collected():
            status = _run(argv)
        sys.stdout.flush()  # here, where a reader that went away can still be dealt with
        if argv is None:
            atexit._run_exitfuncs()
            _leave(status)
        return status
    except KeyboardInterrupt:
        error_console().print("Interrupted.")
        if argv is None:
            _leave(130)
        return 130
    except BrokenPipeError:
        _forget_stdout()
        return 1
    except Exception as error:
        if not _for_user(error):
            raise
        print_error(error)
        return 2


def _run(argv: Sequence[str] | None) -> int:
    try:
        command = tyro.extras.subcommand_cli_from_dict(
            COMMANDS,
            prog="pce-jax",
            description=DESCRIPTION,
            args=argv,
            config=(tyro.conf.FlagCreatePairsOff,),
        )
        if isinstance(command, Doctor):
            return command.run()
        _check_versions()
        if isinstance(command, Bench):  # it measures compiling too
            return command.run()
        from .compiled import programs_kept

        with programs_kept():
            return command.run()
    except SystemExit as error:  # from tyro: 0 after help, 2 after a usage error
        return error.code if isinstance(error.code, int) else 2


class _BrokenInstallError(ImportError):
    """jax and flax cannot be imported together; `pce-jax doctor` still runs and says more."""


def _check_versions() -> None:
    from pce_jax._versions import check_installed

    try:
        check_installed()
    except ImportError as error:
        raise _BrokenInstallError(str(error)) from error


def _for_user(error: Exception) -> bool:
    """Whether the message alone says all there is to say."""
    if isinstance(error, _BrokenInstallError):
        return True
    from pce_jax.errors import USER_ERRORS  # late: it imports jax

    return isinstance(error, USER_ERRORS)


@contextlib.contextmanager
def _logging_to_stderr() -> Generator[None]:
    """Show what the library logs, such as that a model is being fetched."""
    logger, handler = logging.getLogger("pce_jax"), logging.StreamHandler()
    level, propagate = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False  # some libraries show what reaches the root, a second time
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)
        logger.propagate = propagate


@contextlib.contextmanager
def _no_interruption_lost() -> Generator[None]:
    """Repeat an interruption that arrived where Python ignores it.

    That is in a callback of the garbage collector, say: jax has one, which runs often in tracing.
    """
    before = sys.unraisablehook

    def note(lost: Any) -> None:
        if lost.exc_type is KeyboardInterrupt:
            main_thread = threading.main_thread().ident
            threading.Timer(0.1, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
        else:
            before(lost)

    sys.unraisablehook = note
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextlib.contextmanager
def _garbage_seldom_collected() -> Generator[None]:
    """Spare the collector what was imported, and look for the rest less often.

    Looking takes a tenth of the time until the first token. Arrays do not wait for it.
    """
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(20_000, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()


def _leave(status: int) -> None:
    """End the process here, without taking the interpreter down.

    That takes half a second, with all that is imported. And after an interruption a compilation
    that was cut short goes on in a thread of XLA's, under which it crashes now and then.
    """
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status)


def _forget_stdout() -> None:
    """Send what is still buffered for a reader that went away to nowhere, quietly."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
