"""Reading texts and writing results, with errors that say what to do."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from pce_jax.errors import PceError


class InputError(PceError):
    """A file, folder or flag given on the command line cannot be used."""


def read_text(path: Path, what: str) -> str:
    """Return the text of a UTF-8 file, without a byte order mark.

    Args:
        path: The file.
        what: How to call it in errors, as in `"document 2"`.

    Raises:
        InputError: It is missing, a folder, unreadable, not UTF-8 text, or empty.
    """
    if path.is_dir():
        raise InputError(f"{what}: {path} is a folder. Name the text files in it one by one.")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{what}: {path} is not UTF-8 text (byte {error.start}: {error.reason}). If it is text "
            f"in another encoding, convert it first: `iconv -f latin1 -t utf-8 {path} > NEW`."
        ) from error
    except FileNotFoundError as error:
        raise InputError(
            f"{what}: there is no file {path} (looked in {Path.cwd()}). Check the spelling."
        ) from error
    except OSError as error:
        raise InputError(f"{what}: {path} cannot be read: {error.strerror or error}.") from error
    if "\0" in text:
        raise InputError(f"{what}: {path} holds zero bytes, so it is no text. Name a text file.")
    if not text.strip():
        raise InputError(f"{what}: {path} is empty. Leave it out, or put text into it.")
    return text


@contextmanager
def results_folder(folder: Path) -> Generator[None]:
    """Create a folder for results before the work begins, so that it cannot fail at its end.

    What was created is removed again if an exception leaves it empty.

    Raises:
        InputError: It cannot be created or written.
    """
    created = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise InputError(
            f"--out: the folder {folder} cannot be created or written: "
            f"{error.strerror or error}. Name another with --out."
        ) from error
    try:
        yield
    except BaseException:
        with suppress(OSError):  # not empty
            for path in created:
                path.rmdir()
        raise


@contextmanager
def written_whole(path: Path) -> Generator[BinaryIO]:
    """Write a file so that it appears complete or not at all.

    Yields:
        A binary file next to `path`, renamed to `path` at the end and removed after any exception,
        an interruption among them.

    Raises:
        InputError: The file cannot be written.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        try:
            with partial.open("wb") as file:
                yield file
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}.") from error
