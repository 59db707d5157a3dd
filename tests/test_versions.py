import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pce_jax import _versions

pytestmark = pytest.mark.smoke
ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("jax", "flax"),
    [
        ("0.10.2", "0.12.8"),
        ("0.11.0", "0.12.8"),
        ("0.11.1", "0.12.9"),
        ("0.11.2", "0.12.10"),
        ("0.12.0.1", "0.12.12"),
        ("0.12.1.dev20261201+g0a1b2c3", "0.12.13rc1"),
        ("0.13.0", "0.13.0"),  # not tested yet, not known to be bad
        ("1.0", "1.0"),
    ],
)
def test_pairs_that_import(jax, flax):
    _versions.check(jax, flax)


@pytest.mark.parametrize(
    ("jax", "flax", "why"),
    [
        ("0.11.1", "0.12.8", "MutableHiType"),
        ("0.11.1.dev20260801", "0.12.8", "MutableHiType"),
        ("0.11.2", "0.12.8", "HiPrimitive"),
        ("0.11.2", "0.12.9", "HiPrimitive"),
        ("0.12.0.1", "0.12.8", "HiPrimitive"),
        ("0.12.0", "0.12.9", "HiPrimitive"),
        ("0.10.1", "0.12.8", "needs jax 0.10.2 or newer"),
        ("0.9.0.1", "0.12.8", "needs jax 0.10.2 or newer"),
        ("0.10.2", "0.12.7", "needs flax 0.12.8 or newer"),
        ("0.10.2", "0.12", "needs flax 0.12.8 or newer"),
    ],
)
def test_pairs_that_break_say_what_why_and_how(jax, flax, why):
    with pytest.raises(ImportError) as caught:
        _versions.check(jax, flax)
    message = str(caught.value)
    assert f"jax {jax} and flax {flax} are installed" in message
    assert why in message
    assert 'pip install --upgrade "jax>=' in message


def test_not_a_version():
    with pytest.raises(ValueError, match="not a version: 'main'"):
        _versions.release("main")


def test_missing_package(monkeypatch):
    def version(name):
        if name == "flax":
            raise _versions.metadata.PackageNotFoundError(name)
        return "0.10.2"

    monkeypatch.setattr(_versions.metadata, "version", version)
    with pytest.raises(ImportError, match="needs flax, which is not installed"):
        _versions.check_installed()


def test_speaks_before_jax_and_flax_are_imported():
    # Run the file itself: `import pce_jax` may go on to import jax once the check has passed.
    code = (
        "import runpy, sys; "
        f"runpy.run_path({_versions.__file__!r})['check_installed'](); "
        "sys.exit(any(m.split('.')[0] in ('jax', 'flax') for m in sys.modules))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_the_project_declares_the_same_ranges():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert f"jax{_versions.JAX_RANGE}" in project["dependencies"]
    assert f"flax>={_versions.MIN_FLAX}" in project["dependencies"]
    assert _versions.JAX_RANGE.startswith(f">={_versions.MIN_JAX},")


BROKEN = """
import sys
from importlib import metadata
real = metadata.version
metadata.version = lambda name: {"jax": "0.11.1", "flax": "0.12.8"}.get(name) or real(name)
"""


def run_with_a_broken_pair(code):
    return subprocess.run(
        [sys.executable, "-c", BROKEN + code], capture_output=True, text=True, timeout=120
    )


def test_a_broken_pair_is_explained_when_the_package_is_used():
    done = run_with_a_broken_pair("from pce_jax import encode")
    assert "ImportError: jax 0.11.1 and flax 0.12.8 are installed" in done.stderr
    assert "pip install --upgrade" in done.stderr


@pytest.mark.parametrize(("command", "status"), [("doctor", 1), ("demo", 2)])
def test_the_command_line_still_runs_with_a_broken_pair(command, status):
    done = run_with_a_broken_pair(f"from pce_jax.cli import main; sys.exit(main([{command!r}]))")
    assert done.returncode == status, done.stderr
    assert "jax 0.11.1 and flax 0.12.8 are installed" in " ".join(
        (done.stdout + done.stderr).split()
    )
    assert "Traceback" not in done.stderr
