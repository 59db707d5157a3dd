"""Configs: what they say, what the command line changes, and what is refused."""

from pathlib import Path

import pytest
from evals.stub import config_of, write_config

import pce_jax as pce
from pce_jax.errors import SettingsError
from pce_jax.evals.config import load_config
from pce_jax.evals.methods import method_from_dict, method_to_dict

CONFIGS = sorted((Path(__file__).parents[2] / "configs/eval").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_config_is_valid(path, monkeypatch, tmp_path):
    monkeypatch.setenv("PCE_DATA", str(tmp_path))
    config = load_config(path)
    assert config.degrees[0] == 1 and len(config.methods) == 4
    for spec in config.tasks:
        task = spec.make()
        for one in config.methods:
            method = spec.method(one, task)
            assert bool(method.sink) == ("sink" in one.name)
            if method.select is not None:
                dims = set() if spec.kind == "lm" else {"head", "token"}
                assert method.select.aggregate == dims


def test_all_tables_of_the_paper():
    names = {path.stem for path in CONFIGS}
    models = ("llama-3.1-8b", "mistral-7b-v0.3", "qwen2-7b")
    assert names == {f"{m}-{n}" for m in models for n in ("4k", "8k", "16k")} | {"smollm2"}


@pytest.mark.usefixtures("stub")
def test_what_a_config_says(tiny, tmp_path, monkeypatch):
    monkeypatch.setenv("DATA", "data")
    task = {"kind": "stub", "file": "$DATA/x.txt", "sink": "S", "aggregate": ["head"]}
    method = {
        "mine": {"base": "sink", "sink": "M", "select": {"top_k": 3, "aggregate": []}},
        "left": {"positions": {"align": "left"}},
    }
    config = config_of(
        tmp_path,
        tiny,
        degrees=[4, 1, 4],
        methods=["sink+sel", "mine", "left", "full"],
        sink="paper",
        task={"one": task, "two": {"kind": "stub"}},
        method=method,
    )
    assert config.degrees == (1, 4)
    assert config.out == tmp_path / "results"
    one, two = config.tasks
    assert one.fields["file"] == str(tmp_path / "data/x.txt")
    assert one.written["file"] == "$DATA/x.txt"
    both, mine, left, full = config.methods
    assert one.method(both, one.make()).sink == "S"
    assert two.method(both, two.make()).sink == "Read:\n"
    assert one.method(both, one.make()).select == pce.Select(aggregate=frozenset({"head"}))
    assert two.method(both, two.make()).select == pce.Select()
    assert one.method(mine, one.make()) == pce.Method(
        sink="M", select=pce.Select(top_k=3, aggregate=frozenset())
    )
    assert two.method(left, two.make()).positions.align == "left"
    assert two.method(full, two.make()) == pce.Method(full=True)


@pytest.mark.usefixtures("stub")
def test_the_command_line_changes_it(tiny, tmp_path):
    path = write_config(tmp_path, tiny)
    changes = {"degrees": (8,), "methods": ("sel",), "limit": 3, "batch": None, "tasks": ("read",)}
    config = load_config(path, changes | {"out": Path("here"), "model": "smollm2-135m"})
    assert config.degrees == (8,) and config.limit == 3 and config.batch == 2
    assert [method.name for method in config.methods] == ["sel"]
    assert [task.name for task in config.tasks] == ["read"]
    assert config.out == Path("here") and config.model == "smollm2-135m"


@pytest.mark.usefixtures("stub")
@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"degree": [1]}, "no key 'degree'. Did you mean 'degrees'?"),
        ({"degrees": [0, 1]}, "at least 1"),
        ({"degrees": []}, "degrees is empty"),
        ({"degrees": "1,2"}, "degrees must be a list, each a whole number"),
        ({"batch": True}, "batch must be a whole number"),
        ({"batch": 0}, "batch must be at least 1"),
        ({"dtype": "float8"}, "one of 'float32'"),
        ({"cache": "int4"}, "one of 'bfloat16', 'int8'"),
        ({"weights": "int4"}, "weights must be"),
        ({"at_once": 0}, "at_once must be at least 1"),
        ({"methods": ["naive", "skin"]}, "no method 'skin'. Did you mean 'sink'?"),
        ({"method": {"x": {"base": "nave"}}}, "Did you mean 'naive'?"),
        ({"method": {"x": {"select": {"topk": 1}}}}, "Did you mean 'top_k'?"),
        ({"method": {"x": {"select": {"top_k": 0}}}}, "top_k must be at least 1"),
        ({"method": {"x": {"positions": {"align": "middle"}}}}, "align must be one of 'left'"),
        ({"task": {}}, "no tasks"),
        ({"task": {"a": {"kind": "stab"}}}, "Did you mean 'stub'?"),
        ({"task": {"a": {"kind": "stub", "cuont": 2}}}, "Did you mean 'count'?"),
        ({"task": {"a": {"kind": "stub", "count": "2"}}}, "count must be a whole number"),
        ({"task": {"a b": {"kind": "stub"}}}, "becomes a folder"),
        ({"task": {"a": {"kind": "stub", "file": "$NOWHERE/x"}}}, "$NOWHERE is not set"),
        ({"task": {"a": {"kind": "lm"}}}, "files must be given"),
        ({"task": {"a": {"kind": "recall", "variant": "kv", "limit": 0}}}, "limit must be at le"),
        ({"model": None}, "no model is named"),
    ],
)
def test_bad_configs(tiny, tmp_path, changes, says):
    with pytest.raises(SettingsError) as error:
        config_of(tmp_path, tiny, **changes)
    assert says in str(error.value)
    assert "config.toml" in str(error.value)


def test_bad_files(tmp_path):
    with pytest.raises(SettingsError, match="there is no config"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "bad.toml").write_text("model = ")
    with pytest.raises(SettingsError, match="is not TOML"):
        load_config(tmp_path / "bad.toml")


@pytest.mark.usefixtures("stub")
def test_unknown_task_on_the_command_line(tiny, tmp_path):
    with pytest.raises(SettingsError, match=r"no task 'aks'. Did you mean 'ask'"):
        load_config(write_config(tmp_path, tiny), {"tasks": ("aks",)})
    with pytest.raises(SettingsError, match=r"--tasks names none. Known: ask, read"):
        load_config(write_config(tmp_path, tiny), {"tasks": ()})


@pytest.mark.parametrize("method", [*pce.METHODS.values(), pce.Method(select=pce.Select(tau=0.5))])
def test_methods_as_values_and_back(method):
    assert method_from_dict(method_to_dict(method)) == method
    with pytest.raises(SettingsError, match="Did you mean 'select'"):
        method_from_dict({"selct": None})
