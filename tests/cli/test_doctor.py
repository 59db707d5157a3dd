import hashlib
import json
from pathlib import Path

import pytest
from tiny_folder import write_folder

from pce_jax.cli import facts, packages
from pce_jax.hub.embedded import EMBEDDED

METADATA = """\
Metadata-Version: 2.4
Name: pce-jax
Version: 9.9
Provides-Extra: rocket
Provides-Extra: quiet
Requires-Dist: numpy>=1
Requires-Dist: no-such-package>=3; python_version < "3"
Requires-Dist: no-such-engine>=2; extra == "rocket"
Requires-Dist: numpy<1; extra == "rocket"
Requires-Dist: other-project[deep]; extra == "rocket"
Requires-Dist: rich; extra == "quiet"
"""
OTHER = """\
Metadata-Version: 2.4
Name: other-project
Version: 1.0
Provides-Extra: deep
Requires-Dist: numpy
Requires-Dist: deep-thing==1.*; extra == "deep"
"""


@pytest.fixture
def project(tmp_path, monkeypatch):
    """An installed pce-jax with extras of its own."""
    for name, text in (("pce_jax-9.9", METADATA), ("other_project-1.0", OTHER)):
        (tmp_path / f"{name}.dist-info").mkdir()
        (tmp_path / f"{name}.dist-info/METADATA").write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """A models' cache with an embedded model that is a few bytes long."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("PCE_JAX_CACHE", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    name, model = next(iter(EMBEDDED.items()))
    (folder / model.filename).write_bytes(b"weights")
    fake = type(model)(**(vars(model) | {"member_sha256": hashlib.sha256(b"weights").hexdigest()}))
    monkeypatch.setitem(EMBEDDED, name, fake)
    return folder


def facts_of(run, *args, status=0):
    ran = run("doctor", "--json", *args)
    assert ran.status == status, ran
    return json.loads(ran.out)


def test_everything_in_order(run, project, cache):
    found = facts_of(run)
    assert found["problems"] == []
    assert found["versions"]["jax"] and found["versions"]["pce-jax"] == "9.9"
    assert found["jax"]["backend"] and found["jax"]["processes"] == 1
    assert found["host"]["memory"] > 2**28
    assert found["folders"]["models"] == {
        "path": str(cache),
        "exists": True,
        "writable": True,
        "bytes": 7,
    }
    assert found["embedded"]["smollm2-135m"]["intact"] is True


def test_readable(run, project):
    ran = run("doctor")
    assert ran.status == 0
    assert "pip install 'pce-jax[rocket]'" in ran.out
    assert "present, hash right" in ran.out and "No problems found." in ran.out
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_extras_come_from_the_metadata(project):
    found = packages.installed()
    assert found is not None
    assert found.extras == {
        "rocket": [
            "no-such-engine>=2",
            f"numpy<1 (installed: {packages.version('numpy')})",
            "deep-thing==1.*",
        ],
        "quiet": [],
    }
    assert found.problems == []


def test_run_from_its_source_tree(run, monkeypatch):
    monkeypatch.setattr(packages, "PROJECT", "pce-jax-not-installed")
    monkeypatch.setattr(packages.installed, "__defaults__", ("pce-jax-not-installed",))
    ran = run("doctor")
    assert ran.status == 0
    assert "run from its source tree" in ran.out


def test_damaged_model(run, cache):
    next(cache.iterdir()).write_bytes(b"other")
    found = facts_of(run, status=1)
    assert "is damaged" in found["problems"][-1]


def test_broken_pair_is_explained_and_the_rest_still_shown(run, monkeypatch):
    def fail():
        raise ImportError("jax 0.11.1 and flax 0.12.8 are installed, and do not fit")

    monkeypatch.setattr("pce_jax._versions.check_installed", fail)
    ran = run("doctor")
    assert ran.status == 1
    assert "do not fit" in ran.out and "Versions" in ran.out


def test_backend_that_does_not_start(run, monkeypatch):
    def fail():
        raise RuntimeError("no driver")

    monkeypatch.setattr("jax.local_devices", fail)
    found = facts_of(run, status=1)
    assert "no driver" in found["problems"][-1]


def test_looking_leaves_the_environment_alone(monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
    facts.devices()
    import os

    assert os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] == "true"


def test_a_model(run, tmp_path):
    found = facts_of(run, "--model", write_folder(tmp_path / "tiny"))
    assert found["model"]["layers"] == 2 and found["model"]["chat template"] == "no"


def test_a_model_of_gguf_kind(run, smollm2_path):
    assert facts_of(run, "--model", smollm2_path)["model"]["parameters"] == 134515008


def test_a_model_that_is_not_there(run):
    ran = run("doctor", "--model", "smolm2")
    assert ran.status == 1
    assert "Did you mean smollm2" in ran.out
