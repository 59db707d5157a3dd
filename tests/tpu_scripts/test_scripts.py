"""The TPU scripts, with a gcloud that writes down what it is asked."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "tpu_scripts"
NAMES = sorted(file.stem for file in SCRIPTS.glob("*.sh") if file.stem != "common")
AT = ("pod", "--zone", "us-central1-a")

GCLOUD = """#!/usr/bin/env bash
printf '%s\\n' "$*" >> "$CALLS"
case "$*" in
  "auth list"*) echo "${ACCOUNT-me@example.org}" ;;
  *describe*) echo "${OWNER-}" ;;
esac
"""


class Gcloud:
    """A folder for PATH, and what was asked."""

    def __init__(self, folder: Path):
        self.folder, self.calls = folder, folder / "calls"
        (folder / "gcloud").write_text(GCLOUD)
        (folder / "gcloud").chmod(0o755)

    def run(
        self, script: str, *arguments: str, answer: str = "", **environment: str
    ) -> subprocess.CompletedProcess[str]:
        path = f"{self.folder}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            ["bash", str(SCRIPTS / f"{script}.sh"), *arguments],
            env=os.environ | {"PATH": path, "CALLS": str(self.calls)} | environment,
            input=answer,
            capture_output=True,
            text=True,
            check=False,
        )

    def asked(self) -> list[str]:
        """But for whether someone is logged in."""
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if not line.startswith("auth list")]


@pytest.fixture
def gcloud(tmp_path: Path) -> Gcloud:
    folder = tmp_path / "bin"
    folder.mkdir()
    return Gcloud(folder)


MORE = {
    "create": ("--type", "v5litepod-16"),
    "run": ("--run", "r", "--", "pce-jax", "doctor"),
    "logs": ("--run", "r"),
    "stop": ("--run", "r"),
    "fetch": ("--run", "r", "--to", "results"),
}


@pytest.mark.parametrize("script", NAMES)
def test_help_says_how_and_a_dry_run_runs_nothing(gcloud, script, tmp_path):
    said = gcloud.run(script, "--help")
    assert said.returncode == 0
    assert f"{script}.sh NAME --zone ZONE" in said.stdout
    assert not said.stderr
    done = gcloud.run(script, *AT, "--dry-run", *MORE.get(script, ()))
    assert done.returncode == 0, done.stderr
    assert "gcloud compute tpus" in done.stdout
    assert "--zone=us-central1-a" in done.stdout
    assert not gcloud.calls.exists()


@pytest.mark.parametrize("script", NAMES)
def test_what_is_missing_is_said(gcloud, script):
    assert "give the name of the TPU" in gcloud.run(script).stderr
    assert "give --zone" in gcloud.run(script, "pod").stderr
    assert "'Pod_1' is no name" in gcloud.run(script, "Pod_1", "--zone", "z").stderr
    assert "--zone needs a value" in gcloud.run(script, "pod", "--zone").stderr
    more = MORE.get(script, ())
    done = gcloud.run(script, *AT, *(more[:2] if script == "run" else more), "--nonsense")
    assert done.returncode == 1
    assert "unknown: --nonsense" in done.stderr
    out = gcloud.run(script, *AT, *more, ACCOUNT="")
    assert "gcloud is not logged in: run 'gcloud auth login'" in out.stderr
    assert gcloud.asked() == []


def test_without_gcloud_it_says_where_to_get_it(gcloud, tmp_path):
    (gcloud.folder / "gcloud").unlink()
    for tool in ("bash", "basename", "dirname", "sed"):
        (gcloud.folder / tool).symlink_to(shutil.which(tool) or "")
    done = gcloud.run("create", *AT, "--type", "v5p-8", PATH=str(gcloud.folder))
    assert "gcloud is not installed: https://cloud.google.com/sdk" in done.stderr


@pytest.mark.parametrize(
    ("type_", "image"),
    [
        ("v5litepod-16", "v2-alpha-tpuv5-lite"),
        ("v5p-32", "v2-alpha-tpuv5"),
        ("v6e-16", "v2-alpha-tpuv6e"),
    ],
)
def test_a_slice_is_created_with_the_image_for_its_type(gcloud, type_, image):
    assert gcloud.run("create", *AT, "--type", type_, "--spot").returncode == 0
    assert gcloud.asked() == [
        f"compute tpus tpu-vm create pod --accelerator-type={type_} --version={image} "
        "--labels=created-by=pce-jax --spot --zone=us-central1-a"
    ]


def test_a_slice_can_wait_in_the_queue(gcloud):
    gcloud.run("create", *AT, "--type", "v6e-16", "--queued", "--project", "mine")
    assert gcloud.asked() == [
        "compute tpus queued-resources create pod --node-id=pod --accelerator-type=v6e-16 "
        "--runtime-version=v2-alpha-tpuv6e --labels=created-by=pce-jax --zone=us-central1-a "
        "--project=mine"
    ]
    assert "give --version" in gcloud.run("create", *AT, "--type", "v9x-4").stderr


def test_a_run_gets_its_files_and_the_names_of_its_secrets(gcloud, tmp_path):
    command = ("pce-jax", "finetune", "my recipe.toml")
    done = gcloud.run(
        "run",
        *AT,
        "--run",
        "r1",
        "--copy",
        "my recipe.toml",
        "--secret",
        "HF_TOKEN=hf",
        "--",
        *command,
    )
    assert done.returncode == 0, done.stderr
    made, copied, *started = gcloud.asked()
    assert "--worker=all --command=mkdir -p ~/pce-jax-runs/r1" in made
    assert "scp --recurse my recipe.toml pod:pce-jax-runs/r1/ --worker=all" in copied
    text = "\n".join(started)
    assert (
        "HF_TOKEN=$(gcloud secrets versions access latest --secret=hf) && export HF_TOKEN" in text
    )
    assert r"nohup pce-jax finetune my\ recipe.toml >> log.txt" in text


def test_a_secret_itself_is_refused(gcloud):
    done = gcloud.run("run", *AT, "--run", "r", "--secret", "HF_TOKEN=hf_abc+/=", "--", "true")
    assert "give VARIABLE=NAME, the name it has in Secret Manager, not its value" in done.stderr
    assert gcloud.asked() == []


def test_what_others_created_is_not_deleted(gcloud):
    done = gcloud.run("delete", *AT, "--yes", OWNER="someone")
    assert done.returncode == 1
    assert "was not created by create.sh" in done.stderr
    assert not [line for line in gcloud.asked() if " delete " in line]


def test_deleting_asks_first(gcloud):
    done = gcloud.run("delete", *AT, answer="n\n", OWNER="pce-jax")
    assert "nothing was deleted" in done.stderr
    assert not [line for line in gcloud.asked() if " delete " in line]
    gcloud.run("delete", *AT, answer="y\n", OWNER="pce-jax")
    assert gcloud.asked()[-1] == "compute tpus tpu-vm delete pod --quiet --zone=us-central1-a"
    gcloud.run("delete", *AT, "--queued", "--yes", OWNER="pce-jax")
    assert gcloud.asked()[-1] == (
        "compute tpus queued-resources delete pod --quiet --force --zone=us-central1-a"
    )


def test_results_overwrite_nothing(gcloud, tmp_path):
    done = gcloud.run("fetch", *AT, "--run", "r", "--to", str(tmp_path))
    assert "is there already: give a new folder" in done.stderr
    done = gcloud.run("fetch", *AT, "--run", "r", "--to", str(tmp_path / "new" / "r"))
    assert done.returncode == 0
    assert gcloud.asked() == [
        f"compute tpus tpu-vm scp --recurse pod:pce-jax-runs/r {tmp_path}/new/r --worker=0 "
        "--zone=us-central1-a"
    ]


def test_words_that_a_remote_shell_would_run_are_refused(gcloud):
    done = gcloud.run("stop", *AT, "--run", "r; rm -rf ~")
    assert "must be one word" in done.stderr
    assert gcloud.asked() == []
