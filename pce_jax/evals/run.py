"""Running an evaluation: every task, method and degree, batch by batch, into a results folder.

A cell is a task read by one method at one degree. Methods that encode alike share their encodings,
and methods that compute the same (at degree 1 there is nothing to select) are computed once.
"""

import dataclasses
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from pce_jax import programs
from pce_jax.errors import EvalError
from pce_jax.evals.batches import Answered, read_batch
from pce_jax.evals.config import EvalConfig
from pce_jax.evals.instance import Passage, Task
from pce_jax.evals.manifest import describe
from pce_jax.evals.prepare import Prepared, Shape, prepare, shapes
from pce_jax.evals.profiles import choose, update_profiles
from pce_jax.evals.rows import Row
from pce_jax.evals.store import Results, open_results
from pce_jax.evals.window import positions_needed
from pce_jax.hub.tokenizer import encode_text
from pce_jax.method import Method
from pce_jax.models import Llama

LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Job:
    """Cells of one task and degree that share their encodings.

    Attributes:
        degree: Number of segments.
        methods: What to compute, each with the names of the methods that it is for.
    """

    degree: int
    methods: Mapping[Method, tuple[str, ...]]

    @property
    def names(self) -> list[str]:
        """Names of all its methods."""
        return [name for names in self.methods.values() for name in names]


@dataclasses.dataclass(frozen=True, kw_only=True)
class CellDone:
    """A finished cell.

    Attributes:
        task: Its task.
        method: Its method.
        degree: Its degree.
        metric: Name of the headline number; `ppl` for passages.
        score: That number over all instances.
        entropy: Mean attention entropy in nats.
        instances: Number of instances.
        seconds: Time for all of them, compiling excluded.
    """

    task: str
    method: str
    degree: int
    metric: str
    score: float
    entropy: float
    instances: int
    seconds: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Summary:
    """What a run did.

    Attributes:
        rows: Rows that were added.
        programs: Programs that were compiled.
        compile_seconds: Time that took.
        padding: Share of the contexts' token slots that held no token.
        skipped: Cells that were left out, since they do not fit the model's positions.
    """

    rows: int
    programs: int
    compile_seconds: float
    padding: float = 0.0
    skipped: int = 0


def plan(methods: Mapping[str, Method], degrees: Sequence[int]) -> list[Job]:
    """What to compute for a task, without doing anything twice.

    Args:
        methods: What each method means for the task. One with `full` is the same at every degree:
            it has degree 1 only.
        degrees: Numbers of segments.
    """
    full = {1} if any(method.full for method in methods.values()) else set()
    jobs = []
    for degree in sorted({*degrees, *full}):
        groups: dict[Method, dict[Method, tuple[str, ...]]] = {}
        for name, method in methods.items():
            if degree not in (full if method.full else degrees):
                continue
            if degree == 1:  # one segment: nothing to select, and nothing to join
                method = dataclasses.replace(method, select=None, full=False)
            group = groups.setdefault(dataclasses.replace(method, select=None), {})
            group[method] = (*group.get(method, ()), name)
        jobs += [Job(degree=degree, methods=group) for group in groups.values()]
    return jobs


def evaluate(
    model: Llama,
    tokenizer: Any,
    config: EvalConfig,
    model_hash: str,
    *,
    on_cell: Callable[[CellDone], object] = lambda cell: None,
    on_progress: Callable[[int, int, str], object] = lambda done, total, now: None,
) -> Summary:
    """Run what a config asks for, or what is left of it.

    A cell with an instance that does not fit the model's positions is skipped, and a warning says
    so.

    Args:
        model: The decoder.
        tokenizer: Its tokenizer.
        config: What to evaluate.
        model_hash: From `hash_model`.
        on_cell: Called with each cell that this run finishes.
        on_progress: Called with rows done and wanted in all, and what is being done now.

    Raises:
        EvalError: Data or results folder cannot be used, or no cell fits the model's positions.
    """
    tasks = {spec.name: spec.make() for spec in config.tasks}
    methods = {
        spec.name: {one.name: spec.method(one, tasks[spec.name]) for one in config.methods}
        for spec in config.tasks
    }
    manifest = describe(config, tasks, methods, model_hash, model)
    before = programs.count()
    with open_results(config.out, manifest) as results, programs.CompileTime() as compiling:
        pending = [
            _Pending(
                task,
                results,
                plan(methods[spec.name], config.degrees),
                model.config.max_positions,
                tokenizer,
                spec.limit,
                config.chat,
            )
            for spec, task in zip(config.tasks, tasks.values(), strict=True)
        ]
        skipped = sum(len(one.skipped) for one in pending)
        if not any(one.done for one in pending):
            raise EvalError(
                f"none of the {skipped} cells fits the model's {model.config.max_positions} "
                "positions, so there is nothing to run. Use higher degrees (--degrees), shorter "
                "contexts or a model with a longer window."
            )
        run = _Run(model, tokenizer, config, results, compiling, on_cell, on_progress, pending)
        for one in pending:
            run.task(one)
            if config.profile:
                run.profile(one)
    return Summary(
        rows=run.added,
        programs=programs.count() - before,
        compile_seconds=compiling.seconds,
        padding=1 - run.tokens / run.slots if run.slots else 0.0,
        skipped=skipped,
    )


class _Pending:
    """A task with its instances, the jobs that fit, and which rows of each cell are there."""

    def __init__(
        self,
        task: Task,
        results: Results,
        jobs: list[Job],
        window: int,
        tokenizer: Any,
        limit: int | None,
        chat: bool,
    ):
        self.task = task
        instances = task.instances(tokenizer)[:limit]
        ids = [instance.id for instance in instances]
        if not ids:
            raise EvalError(f"task {task.name!r} has no instances: there are none in its data.")
        if len(ids) != len(set(ids)):
            twice = next(one for one in ids if ids.count(one) > 1)
            raise EvalError(f"task {task.name!r}: two instances have the id {twice!r}.")
        self.prepared = prepare(instances, tokenizer, task.name, chat)
        self.jobs: list[Job] = []
        self.skipped: dict[tuple[str, int], int] = {}  # by method and degree, positions needed
        for job in jobs:
            needed = self._needed(job, tokenizer)
            if needed.max() <= window:
                self.jobs.append(job)
                continue
            self.skipped |= {(name, job.degree): int(needed.max()) for name in job.names}
            LOG.warning(
                "%s: %s at degree %d skipped: %d of %d instances do not fit. They need up to %d "
                "positions, and the model has %d. Use a higher degree, shorter contexts or a model "
                "with a longer window.",
                task.name,
                ", ".join(job.names),
                job.degree,
                (needed > window).sum(),
                len(ids),
                needed.max(),
                window,
            )
        results.count(task.name, len(ids), self.skipped)
        self.done = {
            (name, job.degree): results.ids((task.name, name, job.degree)) & set(ids)
            for job in self.jobs
            for name in job.names
        }
        self.wanted = len(ids) * len(self.done)

    def _needed(self, job: Job, tokenizer: Any) -> np.ndarray:
        """Positions that each instance takes; the methods of a job agree in them."""
        method = next(iter(job.methods))
        sink = len(encode_text(tokenizer, method.sink)) if method.sink else 0
        return positions_needed(self.prepared, job.degree, sink, method, self.task.max_new_tokens)

    @property
    def missing(self) -> int:
        return self.wanted - sum(map(len, self.done.values()))


class _Run:
    """One run over all tasks."""

    def __init__(
        self,
        model: Llama,
        tokenizer: Any,
        config: EvalConfig,
        results: Results,
        compiling: programs.CompileTime,
        on_cell: Callable[[CellDone], object],
        on_progress: Callable[[int, int, str], object],
        pending: Sequence[_Pending],
    ):
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self.results, self.compiling = results, compiling
        self.on_cell, self.on_progress = on_cell, on_progress
        self.added, self.total = 0, sum(one.missing for one in pending)
        self.tokens = self.slots = 0  # of contexts, without and with padding
        there = sum(one.wanted for one in pending) - self.total
        if there:
            LOG.info("%d rows are there already; %d are left.", there, self.total)

    def task(self, pending: _Pending) -> None:
        if not pending.missing:
            return
        task, total = pending.task, len(pending.prepared)
        for job in pending.jobs:
            left = {name: total - len(pending.done[name, job.degree]) for name in job.names}
            if not any(left.values()):
                continue
            before = programs.count()
            self._job(pending, job)
            new = programs.count() - before
            if new:
                LOG.info("%s at degree %d: %d programs compiled.", task.name, job.degree, new)
            for name in job.names:
                if left[name]:
                    self.on_cell(self._summary(task, name, job.degree))

    def profile(self, pending: _Pending) -> None:
        """Look closely at the task's first instance."""
        methods = {
            (name, job.degree): method
            for job in pending.jobs
            for method, names in job.methods.items()
            for name in names
        }
        update_profiles(
            self.model,
            self.config.out,
            pending.task.name,
            pending.prepared[0],
            choose(methods),
            lambda text: encode_text(self.tokenizer, text),
            lambda title: self.on_progress(self.added, self.total, title),
        )

    def _job(self, pending: _Pending, job: Job) -> None:
        """Fill the cells of a job."""
        prepared = pending.prepared
        segments = [one.segments(job.degree) for one in prepared]
        sizes = [
            (len(cut), max(map(len, cut)), len(one.query))
            for cut, one in zip(segments, prepared, strict=True)
        ]
        batch = min(self.config.batch, len(prepared))
        lacking: dict[Shape, list[int]] = {}
        cells = [pending.done[name, job.degree] for name in job.names]
        for number, shape in enumerate(shapes(sizes, batch)):
            if any(prepared[number].source.id not in done for done in cells):
                lacking.setdefault(shape, []).append(number)
        for shape, numbers in lacking.items():
            for start in range(0, len(numbers), batch):
                chosen = numbers[start : start + batch]
                self._batch(
                    pending,
                    job,
                    [prepared[number] for number in chosen],
                    [segments[number] for number in chosen],
                    shape,
                    batch,
                )

    def _batch(
        self,
        pending: _Pending,
        job: Job,
        batch: list[Prepared],
        segments: list[list[list[int]]],
        shape: Shape,
        rows: int,
    ) -> None:
        task = pending.task
        ids = {one.source.id for one in batch}
        wanted = {
            method: names
            for method, names in job.methods.items()
            if any(ids - pending.done[name, job.degree] for name in names)
        }
        sink = next(iter(wanted)).sink
        found = read_batch(
            self.model,
            batch,
            segments,
            shape,
            rows,
            encode_text(self.tokenizer, sink) if sink else [],
            list(wanted),
            task.max_new_tokens,
            self.compiling,
            at_once=self.config.at_once,
            store=self.config.cache,
        )
        self.tokens += sum(len(segment) for one in segments for segment in one)
        self.slots += rows * shape.segments * shape.tokens
        for method, answered in zip(wanted, found, strict=True):
            for name in wanted[method]:
                done = pending.done[name, job.degree]
                new = [
                    self._row(task, name, job.degree, one, answer)
                    for one, answer in zip(batch, answered, strict=True)
                    if one.source.id not in done
                ]
                self.results.append(new)
                done |= {row.id for row in new}
                self.added += len(new)
                self.on_progress(self.added, self.total, f"{task.name} P={job.degree}")

    def _row(self, task: Task, method: str, degree: int, one: Prepared, answer: Answered) -> Row:
        source, prediction = one.source, None
        metrics: dict[str, float] = {}
        if not isinstance(source, Passage):
            prediction = self.tokenizer.decode(answer.tokens, skip_special_tokens=True)
            metrics = task.score(source, prediction)
        return Row(
            task=task.name,
            method=method,
            degree=degree,
            id=source.id,
            metrics=metrics,
            nll=answer.nll,
            scored=source.scored if isinstance(source, Passage) else 0,
            prediction=prediction,
            answers=() if isinstance(source, Passage) else source.answers,
            entropy=answer.entropy,
            entropy_query=answer.entropy_query,
            between=answer.between,
            context_tokens=one.context_tokens,
            query_tokens=len(one.query),
            sink_tokens=answer.sink_tokens,
            segments=answer.segments,
            seconds=answer.seconds,
        )

    def _summary(self, task: Task, method: str, degree: int) -> CellDone:
        rows = self.results.rows((task.name, method, degree))
        passages = rows[0].nll is not None
        nll = sum(row.nll or 0.0 for row in rows)
        return CellDone(
            task=task.name,
            method=method,
            degree=degree,
            metric="ppl" if passages else task.metric,
            score=math.exp(nll / sum(row.scored for row in rows))
            if passages
            else sum(row.metrics[task.metric] for row in rows) / len(rows),
            entropy=sum(row.entropy for row in rows) / len(rows),
            instances=len(rows),
            seconds=sum(row.seconds for row in rows),
        )
