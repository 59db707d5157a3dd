"""The examples in the docstrings run and print what they say."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from smollm2 import smollm2_path

import pce_jax as pce

__all__ = ["smollm2_path"]

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
WITHOUT = {"fetch_embedded", "resolve"}  # what they answer depends on this machine
VALUES = {"Method", "Positions", "Sampling", "Select"}  # classes that a user writes down
FUNCTIONS = sorted(
    name for name in pce.__all__ if inspect.isfunction(getattr(pce, name)) and name not in WITHOUT
)


@pytest.fixture(scope="module")
def names(smollm2_path: Path) -> dict[str, Any]:
    """What examples take for granted."""
    model, tokenizer = pce.load("smollm2-135m")
    context = pce.pack(tokenizer, ["Ada wrote code.\n\n", "Bob baked bread.\n\n"])
    return {
        "pce": pce,
        "jax": jax,
        "jnp": jnp,
        "model": model,
        "tokenizer": tokenizer,
        "context": context,
        "cache": pce.encode(model, context),
    }


@pytest.mark.parametrize("name", [*FUNCTIONS, *sorted(VALUES)])
def test_example(name: str, names: dict[str, Any], monkeypatch: pytest.MonkeyPatch):
    loaded = names["model"], names["tokenizer"]
    public = getattr(pce, name)
    examples = doctest.DocTestParser().get_doctest(
        inspect.getdoc(public) or "", dict(names), name, None, None
    )
    assert examples.examples, f"pce.{name} has no example"
    if name != "load":
        monkeypatch.setattr(pce, "load", lambda *_, **__: loaded)  # once is enough
    report: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(examples, out=report.append)
    assert not report, "".join(report)


def test_the_readme_runs(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys):
    loaded = names["model"], names["tokenizer"]
    monkeypatch.setattr(pce, "load", lambda *_, **__: loaded)
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", readme, re.DOTALL)
    exec(compile(code, "README.md", "exec"), {})
    assert "nats of attention entropy" in capsys.readouterr().out
