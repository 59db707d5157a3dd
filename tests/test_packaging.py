"""The wheel, the sdist and an editable install all give `pce_jax.models`, and never a `models`."""

import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

# Looked for, not imported: setuptools replaces distutils in the process that imports it, and warns.
pytestmark = [
    pytest.mark.smoke,
    pytest.mark.skipif(
        importlib.util.find_spec("setuptools") is None,
        reason="builds without isolation, and setuptools is not installed",
    ),
]
ROOT = Path(__file__).resolve().parents[1]

BUILD = """
import os, sys
from setuptools import build_meta
kind, source, out = sys.argv[1:]
os.chdir(source)
print(getattr(build_meta, "build_" + kind)(out))
"""

# Run in an empty folder by `python -S`, which reads no .pth file: so the checkout, likely installed
# here in editable mode, is out of sight. The dependencies are put back by hand.
LOOK = """
import importlib.util, site, sys
target, *dependencies = sys.argv[1:]
sys.path[:0] = [target]
sys.path += dependencies
site.addsitedir(target)
import pce_jax.models
assert importlib.util.find_spec("models") is None, "a top-level `models` is importable"
print(pce_jax.models.__file__)
"""


def build(kind: str, source: Path, out: Path) -> Path:
    """Call the build backend as pip would, with the setuptools that is already installed."""
    out.mkdir(exist_ok=True)
    return out / run(BUILD, kind, str(source), str(out), cwd=source)


def run(code: str, *args: str, cwd: Path, flags: str = "-I") -> str:
    """Return the last line `code` prints, run by a Python that ignores cwd and PYTHONPATH."""
    done = subprocess.run(
        [sys.executable, flags, "-c", code, *args],
        cwd=cwd,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip().splitlines()[-1]


def installed_models(wheel: Path, tmp: Path) -> Path:
    """Install a wheel into its own folder, import from there, return `pce_jax.models.__file__`."""
    target, empty = tmp / "site", tmp / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run(
        [*pip, "--no-deps", "--no-index", "--no-compile", "--target", str(target), str(wheel)],
        check=True,
        timeout=120,
    )
    dependencies = [path for path in sys.path if Path(path).name.endswith("-packages")]
    return Path(run(LOOK, str(target), *dependencies, cwd=empty, flags="-IS"))


def modules(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.py")}


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """A copy of what git would hold, so that building leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("source") / "pce-jax"
    copy.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("pce_jax", "models", "configs", "tests"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignore)
    return copy


@pytest.fixture(scope="module")
def sdist(source, tmp_path_factory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist") / "dist")


@pytest.fixture(scope="module", params=["checkout", "sdist"])
def wheel(request, source, sdist, tmp_path_factory) -> Path:
    """A wheel, built from the checkout and from the sdist."""
    tmp = tmp_path_factory.mktemp("wheel")
    if request.param == "sdist":
        with tarfile.open(sdist) as archive:
            archive.extractall(tmp, filter="data")
        (source,) = (path for path in tmp.iterdir() if path.is_dir())
    return build("wheel", source, tmp / "dist")


def test_models_is_a_relative_link():
    link = ROOT / "pce_jax" / "models"
    assert link.is_symlink()
    assert link.readlink() == Path("../models")


def test_sdist_has_models_once_as_plain_files(sdist, source):
    with tarfile.open(sdist) as archive:
        members = {m.name.partition("/")[2]: m for m in archive.getmembers()}
    assert not [name for name in members if name == "models" or name.startswith("models/")]
    assert all(members[f"pce_jax/models/{name}"].isreg() for name in modules(source / "models"))


def test_wheel_has_every_module_once_and_no_top_level_models(wheel, source):
    names = zipfile.ZipFile(wheel).namelist()
    assert len(names) == len(set(names))
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"pce_jax"}
    assert "pce_jax/py.typed" in names
    packed = {name.removeprefix("pce_jax/") for name in names if name.endswith(".py")}
    expected = {name for name in modules(source / "pce_jax") if not name.startswith("models/")}
    expected |= {f"models/{name}" for name in modules(source / "models")}
    assert packed == expected


def test_installed_wheel(wheel, tmp_path):
    path = installed_models(wheel, tmp_path)
    assert path == tmp_path / "site" / "pce_jax" / "models" / "__init__.py"


def test_editable_install(source, tmp_path):
    wheel = build("editable", source, tmp_path / "dist")
    path = installed_models(wheel, tmp_path)
    assert path == source / "pce_jax" / "models" / "__init__.py"
    assert path.resolve() == source / "models" / "__init__.py"


def test_this_session_imports_models_from_the_checkout_or_an_installed_wheel():
    import pce_jax
    import pce_jax.models

    assert Path(pce_jax.models.__file__).parents[1] == Path(pce_jax.__file__).parent
