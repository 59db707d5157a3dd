"""The examples of `pce.analysis` and of its page run and print what they say."""

import doctest
import inspect
import re
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import pytest

import pce_jax as pce

OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
FUNCTIONS = [n for n in pce.analysis.__all__ if inspect.isfunction(getattr(pce.analysis, n))]


@pytest.fixture(scope="module")
def names(smollm2_path: Path) -> dict[str, Any]:
    model, tokenizer = pce.load("smollm2-135m")
    context = pce.pack(tokenizer, ["Ada wrote code.\n\n", "Bob baked bread.\n\n"])
    cache = pce.encode(model, context)
    given = {"pce": pce, "jnp": jnp, "model": model, "tokenizer": tokenizer}
    return given | {"context": context, "cache": cache}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_example(name: str, names: dict[str, Any]):
    public = getattr(pce.analysis, name)
    examples = doctest.DocTestParser().get_doctest(
        inspect.getdoc(public) or "", dict(names), name, None, None
    )
    assert examples.examples, f"pce.analysis.{name} has no example"
    report: list[str] = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(examples, out=report.append)
    assert not report, "".join(report)


def test_the_page_runs(names: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys):
    monkeypatch.setattr(pce, "load", lambda *_, **__: (names["model"], names["tokenizer"]))
    page = (Path(__file__).parents[2] / "docs" / "analysis.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(code, "analysis.md", "exec"), names)
    full, naive, swapped = map(float, capsys.readouterr().out.split())
    assert naive > full + 0.2 and abs(swapped - full) < 1e-3
