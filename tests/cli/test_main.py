import dataclasses
import gc
import itertools
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pce_jax import METHODS
from pce_jax.cli import app
from pce_jax.cli.flags import METHOD_NAMES

COMMANDS = {"demo": app.Demo, "generate": app.Generate, "doctor": app.Doctor}


@pytest.mark.parametrize("name", COMMANDS)
def test_help_describes_every_flag(run, name):
    ran = run(name, "--help")
    assert ran.status == 0
    for field in dataclasses.fields(COMMANDS[name]):
        assert f"--{field.name.replace('_', '-')}" in ran.out
    boxed = ran.out.split("options ", 1)[1]
    described = [line for line in boxed.splitlines() if line.strip(" │╭╮╰╯─")]
    for above, line in itertools.pairwise(described):
        if "--" in above[:6] and not above[40:].strip(" │"):
            assert line.strip(" │"), above  # the description stands on the next line
    assert all(len(line) <= 80 for line in ran.out.splitlines())


def test_help_lists_the_commands(run):
    ran = run("--help")
    assert ran.status == 0
    assert all(name in ran.out for name in COMMANDS)
    usage, *lines = ran.out.splitlines()  # tyro does not break the list of commands
    assert usage.startswith("usage: ")
    assert all(len(line) <= 80 for line in lines)


def test_names_of_methods():
    assert tuple(METHODS) == METHOD_NAMES


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ([], "{demo, generate, "),
        (["demoo"], "demoo"),
        (["demo", "--degree", "2"], "--degrees"),
        (["demo", "--degrees", "0"], "at least 1"),
        (["demo", "--degrees", "1,x"], "whole numbers"),
        (["demo", "--methods", "naive,sinksel"], "Did you mean sink+sel?"),
        (["generate", "--docs", "a", "--question", "q", "--method", "nave"], "Did you mean naive?"),
        (["generate", "--question", "q"], "--docs"),
    ],
)
def test_usage_errors(run, args, says):
    ran = run(*args)
    assert ran.status == 2
    assert says in " ".join(ran.err.replace("│", " ").split())
    assert not ran.out
    assert "Traceback" not in ran.err


def test_interruption(run, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    monkeypatch.setattr(app.Doctor, "run", interrupt)
    ran = run("doctor")
    assert ran.status == 130
    assert ran.err == "Interrupted.\n"


def test_an_interrupted_process_does_not_wait_for_its_compilations(run, monkeypatch):
    def interrupt(self):
        raise KeyboardInterrupt

    left = []
    monkeypatch.setattr(app.Doctor, "run", interrupt)
    monkeypatch.setattr(os, "_exit", left.append)
    monkeypatch.setattr(sys, "argv", ["pce-jax", "doctor"])
    assert app.main() == 130
    assert left == [130]


LOSING = """
import signal, time
from pce_jax.cli import app

signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background ignores it

class Swallowing:
    def __del__(self):
        raise KeyboardInterrupt

def lose(self):
    Swallowing()
    time.sleep(60)

app.Doctor.run = lose
raise SystemExit(app.main(["doctor"]))
"""


def test_an_interruption_that_python_ignores_is_repeated():
    """In a process of its own: other tests leave signal handlers of their libraries behind."""
    ran = subprocess.run(
        [sys.executable, "-c", LOSING], capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (130, "Interrupted.\n")


def test_defects_keep_their_traceback(run, monkeypatch):
    def fail(self):
        raise ZeroDivisionError

    monkeypatch.setattr(app.Doctor, "run", fail)
    with pytest.raises(ZeroDivisionError):
        run("doctor")


def test_broken_pair_is_explained(run, monkeypatch, docs):
    def fail():
        raise ImportError("jax 0.11.1 and flax 0.12.8 are installed")

    monkeypatch.setattr("pce_jax._versions.check_installed", fail)
    ran = run("generate", "--docs", docs[0], "--question", "Who?")
    assert ran.status == 2
    assert ran.err == "error: jax 0.11.1 and flax 0.12.8 are installed\n"


@pytest.mark.smoke
def test_as_a_module_into_a_pipe_that_closes():
    """Run like `python -m pce_jax.cli doctor --json | true`."""
    environment = os.environ | {"PYTHONPATH": str(Path(app.__file__).parents[2])}
    process = subprocess.Popen(
        [sys.executable, "-m", "pce_jax.cli", "doctor", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    )
    assert process.stdout and process.stderr
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 1
    assert err == b""


def test_a_process_ends_at_once_but_does_what_was_left_for_its_end(run, monkeypatch):
    done = []
    monkeypatch.setattr(app.Doctor, "run", lambda self: 1)
    monkeypatch.setattr("atexit._run_exitfuncs", lambda: done.append("end"))
    monkeypatch.setattr(os, "_exit", done.append)
    monkeypatch.setattr(sys, "argv", ["pce-jax", "doctor"])
    collecting = gc.get_threshold(), gc.get_freeze_count()
    app.main()
    assert done == ["end", 1]
    assert (gc.get_threshold(), gc.get_freeze_count()) == collecting
