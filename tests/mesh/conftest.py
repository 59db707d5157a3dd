"""Tests in this folder have eight devices: each file runs once more, in a process of its own.

How many devices jax simulates is settled before its first use, so that tests with one device and
tests with eight cannot share a process. What the other process found is told here, test by test.
"""

import functools
import os
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

DEVICES = 8
_VARIABLE = "JAX_NUM_CPU_DEVICES"


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if os.environ.get(_VARIABLE) == str(DEVICES):
        return None
    found = _outcomes(pyfuncitem.path, pyfuncitem.config.option.markexpr)
    if (failure := found.get(pyfuncitem.name, "it was not run there")) is not None:
        pytest.fail(f"with {DEVICES} devices: {failure}", pytrace=False)
    return True


@functools.cache
def _outcomes(file: Path, marks: str) -> dict[str, str | None]:
    """What each test of a file came to: nothing, or its failure."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")
    }
    environment |= {_VARIABLE: str(DEVICES), "JAX_PLATFORMS": "cpu"}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", str(file), "-q", "-m", marks]
        command += ["-p", "no:xdist", "-p", "no:cacheprovider", f"--junitxml={report}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if not report.exists():
            raise RuntimeError(done.stdout + done.stderr)
        cases = ElementTree.parse(report).getroot().iter("testcase")
        return {str(case.get("name")): _failure(case) for case in cases}


def _failure(case: ElementTree.Element) -> str | None:
    bad = [child for child in case if child.tag in ("failure", "error", "skipped")]
    return "\n".join(f"{each.get('message')}\n{each.text}" for each in bad) if bad else None
