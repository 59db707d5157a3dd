"""A report put together: from rows to files' contents, nothing written."""

import itertools
from collections.abc import Iterable, Mapping, Sequence

from pce_jax.analysis.pictures import pictures as profile_pictures
from pce_jax.evals.profiles import TaskProfile
from pce_jax.evals.rows import Row

from . import tables
from .cells import collect
from .csv_files import cells_csv, statistics_csv
from .pictures import pictures
from .stats import LEVEL, Bootstrap
from .study import Study, study
from .words import Table, markdown

_METHOD = """\
Score and entropy of a cell are means over its instances; perplexity is pooled over tokens, exp(sum
of negative log-likelihoods / sum of scored tokens). Attention entropy is the mean over layers,
heads and tokens, with the query pass and each decode step as equal units. Intervals are {level:.0%}
percentile intervals of a bootstrap over instances ({repeats} resamples, seed {seed}); cells that
are compared are resampled together, by instance. An interval of no width means that all instances
agree, not that the value is certain. Intervals say nothing of how the numbers would differ with
other prompts or another seed of the data, and they are not corrected for how many there are: of
{one} comparisons of equals, one will look like a difference. Degrees are segments asked for.
`cells.csv` and `statistics.csv` hold every number unrounded, scores as fractions of 1."""

_SECTIONS = {
    "score": "The best method of each task and degree is bold.",
    "entropy": "In nats. Per doubling: the slope of a line through all degrees, over their binary "
    "logarithms.",
    "correlation": "Pearson's R between the mean entropy and the mean score of cells; a cell is a "
    "method at a degree. It is over the few cells of a row of the tables above, and whatever "
    "changes with the degree is correlated: a high R shows no cause. Of perplexity, the lower the "
    "better, so a positive R there is what a negative one is elsewhere.",
    "gap": "In percent: 0 is no better than naive encoding at the same degree, 100 is full "
    "attention. For passages measured in log perplexity. There is none where naive encoding does "
    "not lose to full attention by more than chance.",
    "differences": "Paired by instance; bold where the interval excludes 0. In points of percent; "
    "for passages in nats per token (log perplexity), where negative is better.",
    "given_full_right": "In percent, on the n instances that full attention gets right: what "
    "parallel encoding loses of what the model can do.",
}


def render(
    rows: Sequence[Row],
    *,
    title: str,
    facts: Mapping[str, str] | None = None,
    metrics: Mapping[str, str] | None = None,
    families: Mapping[str, str] | None = None,
    remarks: Sequence[str] = (),
    profiles: Mapping[str, TaskProfile] | None = None,
    bootstrap: Bootstrap | None = None,
) -> dict[str, bytes]:
    """Make a report.

    Args:
        rows: Of any tasks, methods and degrees.
        title: What was measured on what, such as the model's name.
        facts: More to say at the top, by name.
        metrics: Headline metric by task; without, the first one that a task's rows name.
        families: Family by task: tasks of one family get a table of their means.
        remarks: What the reader must know first, besides what shows in the rows.
        profiles: By task, one instance looked at closely.
        bootstrap: Resampling for intervals.

    Returns:
        `report.md`, `cells.csv`, `statistics.csv` and pictures, by file name.

    Raises:
        EvalError: There are no rows, or some do not fit their task.
    """
    bootstrap = bootstrap or Bootstrap()
    tasks, lost = collect(rows, metrics)
    studies = [study(task, bootstrap) for task in tasks]
    found = [remark for each in studies for remark in each.remarks]
    drawn = pictures(studies, title)
    close = {task: _close(task, one, title) for task, one in (profiles or {}).items()}
    text = "\n\n".join(
        [
            f"# Results: {title}",
            *_facts(studies, facts or {}),
            *_remarks([*remarks, *lost, *found]),
            *_families(studies, dict(families or {})),
            *_sections(studies, drawn),
            *_close_section(profiles or {}, close),
            "## How it was computed",
            _METHOD.format(
                level=LEVEL,
                repeats=bootstrap.repeats,
                seed=bootstrap.seed,
                one=round(1 / (1 - LEVEL)),
            ),
        ]
    )
    return {
        "report.md": f"{text}\n".encode(),
        "cells.csv": cells_csv(studies),
        "statistics.csv": statistics_csv(studies),
        **drawn,
        **{name: picture for some in close.values() for name, picture in some.items()},
    }


def _close(task: str, found: TaskProfile, title: str) -> dict[str, bytes]:
    subtitle = f"{title}, {task}: instance {found.instance}"
    drawn = profile_pictures(found.profiles, subtitle, curves=["entropy"])
    return {f"{task}-{name}": picture for name, picture in drawn.items()}


def _close_section(
    profiles: Mapping[str, TaskProfile], drawn: Mapping[str, Mapping[str, bytes]]
) -> Iterable[str]:
    if not profiles:
        return
    yield "## Attention by layer, head and token"
    yield (
        "One instance of each task, with full attention and at the highest degree. By layer and "
        "head: means over the query's tokens. By token, through the segments and then the query: "
        "means over layers and heads."
    )
    for task, some in drawn.items():
        yield f"### {task}: instance {profiles[task].instance}"
        for name in some:
            what = "layer and head" if name.endswith("heads.png") else "token"
            yield f"![{task}: attention entropy by {what}]({name})"


def _facts(studies: Sequence[Study], facts: Mapping[str, str]) -> Iterable[str]:
    methods = dict.fromkeys(m for each in studies for m, _ in each.task.cells)
    degrees = sorted({d for each in studies for d in each.task.degrees})
    counts = {
        each.task.name: max(len(cell.rows) for cell in each.task.cells.values()) for each in studies
    }
    lines = {
        **facts,
        "tasks": ", ".join(f"{name} (n={count})" for name, count in counts.items()),
        "methods": ", ".join(methods),
        "degrees": ", ".join(map(str, degrees)),
    }
    yield "\n".join(f"- **{name}**: {value}" for name, value in lines.items())


def _remarks(remarks: Sequence[str]) -> Iterable[str]:
    if remarks:
        yield "## Read this first"
        yield "\n".join(f"- {remark}" for remark in remarks)


def _families(studies: Sequence[Study], families: dict[str, str]) -> Iterable[str]:
    scores, entropies = tables.family_tables(studies, families)
    if scores.rows:
        yield "## Means over the tasks of a family"
        yield markdown(scores)
        yield "Attention entropy in nats:"
        yield markdown(entropies)


def _sections(studies: Sequence[Study], drawn: Mapping[str, bytes]) -> Iterable[str]:
    plain = {
        "score": ("Score against degree", tables.score_table(studies)),
        "entropy": ("Attention entropy against degree", tables.entropy_table(studies)),
        "correlation": ("Attention entropy and score", tables.correlation_table(studies)),
        "gap": ("Share of the naive-to-full gap closed", tables.gap_table(studies)),
        "differences": ("Differences between methods", None),
        "given_full_right": ("Where full attention is right", tables.conditional_table(studies)),
    }
    for name, (heading, table) in plain.items():
        body = _differences(studies) if table is None else _table(table)
        if not body:
            continue
        yield f"## {heading}"
        yield _SECTIONS[name]
        if f"{name}.png" in drawn:
            yield f"![{heading}]({name}.png)"
        yield from body
        if name in ("gap", "given_full_right"):
            yield from _reasons(studies, "gap_closed" if name == "gap" else name)


def _table(table: Table) -> list[str]:
    return [markdown(table)] if table.rows else []


def _differences(studies: Sequence[Study]) -> list[str]:
    found = ((each.task.name, tables.difference_table(each)) for each in studies)
    parts = ([f"### {name}", markdown(table)] for name, table in found if table.rows)
    return list(itertools.chain.from_iterable(parts))


def _reasons(studies: Sequence[Study], name: str) -> Iterable[str]:
    """Why entries are missing or limited, alike ones together."""
    found: dict[tuple[str, str], list[str]] = {}
    for each in studies:
        for (method, _, degree), estimate in each.find(name).items():
            if estimate.why:
                places = found.setdefault((each.task.name, estimate.why), [])
                places.append(f"{method} at P={degree}")
    if found:
        yield "\n".join(
            f"- {task}: {why} ({', '.join(places)})." for (task, why), places in found.items()
        )
