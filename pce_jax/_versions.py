"""Refuse jax and flax versions that cannot work together, before importing either crashes.

flax reaches into experimental parts of jax, so a wrong pair fails deep inside `import flax` with an
`AttributeError` that names neither version. `check_installed` reads the versions from the installed
metadata alone, and so can speak first.
"""

import re
from importlib import metadata

MIN_JAX = "0.10.2"
MIN_FLAX = "0.12.8"
JAX_RANGE = ">=0.10.2,<0.13,!=0.11.1,!=0.11.2"

# (jax from, flax up to and including, what is gone). Each row was found by importing the pair.
_BROKEN = (
    ("0.11.2", "0.12.9", "jax.experimental.hijax.HiPrimitive"),
    ("0.11.1", "0.12.8", "jax.experimental.hijax.MutableHiType"),
)

_FIX = f"""\
To fix it, let pip choose a pair for this Python:
    pip install --upgrade "jax{JAX_RANGE}" "flax>={MIN_FLAX}"
On an accelerator keep jax's extra in that command, for example "jax[cuda12]{JAX_RANGE}"."""


def release(version: str) -> tuple[int, ...]:
    """Return the numeric part of a version: `"0.11.1.dev3+g1a2"` gives `(0, 11, 1)`.

    Raises:
        ValueError: if the string does not start with a number.
    """
    match = re.match(r"v?(\d+(?:\.\d+)*)", version.strip())
    if match is None:
        raise ValueError(f"not a version: {version!r}")
    parts = [int(part) for part in match[1].split(".")]
    while parts and parts[-1] == 0:  # 0.11 and 0.11.0 are one release
        parts.pop()
    return tuple(parts)


def check(jax_version: str, flax_version: str) -> None:
    """Check that this jax and this flax can be imported together and are new enough.

    Newer versions than the tested ones pass: they may well work.

    Args:
        jax_version: for example `"0.10.2"`.
        flax_version: for example `"0.12.8"`.

    Raises:
        ImportError: saying which pair is installed, why it does not work, and what to run.
    """
    jax, flax = release(jax_version), release(flax_version)
    why = None
    if jax < release(MIN_JAX):
        why = f"pce-jax needs jax {MIN_JAX} or newer"
    elif flax < release(MIN_FLAX):
        why = f"pce-jax needs flax {MIN_FLAX} or newer"
    else:
        for jax_from, flax_up_to, gone in _BROKEN:
            if jax >= release(jax_from) and flax <= release(flax_up_to):
                why = f"flax up to {flax_up_to} uses {gone}, which jax {jax_from} removed"
                break
    if why is not None:
        raise ImportError(
            f"jax {jax_version} and flax {flax_version} are installed, and pce-jax cannot use this "
            f"pair: {why}.\n{_FIX}"
        )


def check_installed() -> None:
    """Run `check` on the installed packages, importing neither.

    Raises:
        ImportError: if the pair cannot work, or one of the two is missing.
    """
    versions = []
    for name in ("jax", "flax"):
        try:
            versions.append(metadata.version(name))
        except metadata.PackageNotFoundError:
            raise ImportError(f"pce-jax needs {name}, which is not installed.\n{_FIX}") from None
    check(*versions)
