"""Steps, measurements and checkpoints in their turn."""

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

from pce_jax.adapters import Adapters
from pce_jax.errors import FinetuneError
from pce_jax.models import Llama

from .checkpoint import Checkpoints
from .config import FinetuneConfig
from .data import Batch, Batches, Layout, Text
from .folder import SUMMARY
from .heldout import measure, student_method
from .measured import Found, Measured, found_from_json, found_to_json, read_summary, write_summary
from .objective import Weights
from .step import Report, Trained, TrainState, train_step
from .track import Tracker, read_rows

Row = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """All of a run that stays the same."""

    config: FinetuneConfig
    base: Llama
    trained: Trained
    optimizer: Any
    batches: Batches
    heldout: Mapping[str, list[Text]]
    layouts: Mapping[str, Mapping[int, Layout]]
    key: Any
    weights: Callable[[int], Weights]
    rate: Callable[[int], float]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outcome:
    """How a run ended.

    Attributes:
        state: Its last state.
        done: Whether all steps were taken; otherwise it was asked to stop.
        summary: Held-out means by task, `base` and `tuned`, and degree, once done.
    """

    state: TrainState
    done: bool
    summary: dict[str, dict[str, Found]]


@dataclasses.dataclass(frozen=True)
class Told:
    """Who is told, and who is asked: see `pce_jax.finetune.finetune`."""

    on_row: Callable[[Row], None]
    on_progress: Callable[[int, int, str], None]
    stop: Callable[[], bool]


class Loop:
    """Steps, measurements and checkpoints in their turn."""

    def __init__(self, run: Run, checkpoints: Checkpoints, found: list[Tracker], told: Told):
        self.run, self.checkpoints, self.trackers, self.told = run, checkpoints, found, told

    def go_on(self, state: TrainState) -> Outcome:
        """Take the steps that are left.

        Args:
            state: Where to begin.

        Raises:
            FinetuneError: See `pce_jax.finetune.finetune`.
        """
        run, config = self.run, self.run.config
        first = int(state.step)
        if first == config.steps and (config.out / SUMMARY).exists():
            return Outcome(state=state, done=True, summary=read_summary(config.out))
        base = self._measured_before()
        full = {name: found[1] for name, found in base.items()}
        tuned = None
        for batch in run.batches.since(first) if first < config.steps else ():
            state = self._step(state, batch)
            step, score = batch.step + 1, None
            last = step == config.steps
            if last:
                tuned = self._measured(state.trained, "tuned", step, None, full)
                score = self._score(tuned)
            elif config.evaluate.every and step % config.evaluate.every == 0:
                some = config.evaluate.windows
                score = self._score(self._measured(state.trained, "student", step, some, full))
            stopping = not last and self.told.stop()
            if last or stopping or score is not None or step % config.checkpoint.every == 0:
                self.checkpoints.save(state, score)
            if stopping:
                return Outcome(state=state, done=False, summary={})
        if tuned is None:  # all steps were taken before
            tuned = self._measured(state.trained, "tuned", config.steps, None, full)
        summary = {name: {"base": base[name], "tuned": tuned[name]} for name in run.heldout}
        write_summary(config.out, summary)
        return Outcome(state=state, done=True, summary=summary)

    def _step(self, state: TrainState, batch: Batch) -> TrainState:
        run, began = self.run, time.monotonic()
        weights = run.weights(batch.step)
        state, report = train_step(
            state,
            run.base,
            batch.examples,
            weights,
            run.key,
            teacher=run.config.teacher,
            optimizer=run.optimizer,
            method=student_method(run.config.method, batch.degree),
            two_sided=run.config.loss.two_sided,
        )
        report = jax.device_get(report)
        seconds = time.monotonic() - began
        row = _step_row(batch, report, weights, run.rate(batch.step), seconds)
        self._guard(row, batch)
        self._write(row)
        self.told.on_progress(batch.step + 1, run.config.steps, _words(row))
        return state

    def _guard(self, row: Row, batch: Batch) -> None:
        """Stop before a state that means nothing is kept."""
        names = ("ce", "kl", "excess", "entropy", "loss", "slope_norm")
        if bad := [name for name in names if not math.isfinite(row[name])]:
            kept = self.checkpoints.steps
            last = f"that of step {kept[-1]}" if kept else "none yet"
            raise FinetuneError(
                f"step {row['step']}: {bad[0]} is {row[bad[0]]} (degree {batch.degree}, examples "
                f"{', '.join(batch.ids)}). Nothing of this step is kept; the last good checkpoint "
                f"is {last}. Try a lower learning rate, or look at these examples."
            )

    def _measured_before(self) -> dict[str, Found]:
        """Measured once, and then found among the rows."""
        run = self.run
        known = {
            row["task"]: row
            for row in read_rows(run.config.out)
            if row["kind"] == "heldout" and row["who"] == "base"
        }
        degrees = {str(degree) for degree in (1, *run.config.evaluate.degrees)}

        def whole(name: str, texts: list[Text]) -> bool:
            found = known.get(name, {"degrees": {}})["degrees"]
            return degrees <= set(found) and found["1"]["texts"] == len(texts)

        if all(whole(name, texts) for name, texts in run.heldout.items()):
            return {name: found_from_json(known[name]["degrees"]) for name in run.heldout}
        return self._measured(Trained(None, Adapters()), "base", 0, None, None)

    def _score(self, found: Mapping[str, Found]) -> float | None:
        """What checkpoints are compared by: mean over tasks, at the highest degree."""
        if not found:
            return None
        highest, some = max(self.run.config.evaluate.degrees), self.run.config.evaluate.windows
        return sum(one[highest].first(some).log_ppl for one in found.values()) / len(found)

    def _measured(
        self,
        trained: Trained,
        who: str,
        step: int,
        limit: int | None,
        full: Mapping[str, Measured] | None,
    ) -> dict[str, Found]:
        """By task and degree; `full` is what stands for degree 1 if training does not change it."""
        run, found = self.run, {}
        for name, texts in run.heldout.items():
            texts = texts[:limit]
            found[name] = {}
            for degree in (1, *run.config.evaluate.degrees):
                if degree == 1 and full is not None and not trained.changes_full:
                    found[name][1] = full[name].first(limit)
                    continue
                now = f"Measuring {name} at degree {degree}"
                found[name][degree] = measure(
                    trained,
                    run.base,
                    texts,
                    run.layouts[name][degree],
                    student_method(run.config.method, degree),
                    batch=run.config.evaluate.batch,
                    progress=functools.partial(self._say, len(texts), now),
                )
            degrees = found_to_json(found[name])
            self._write(
                {"kind": "heldout", "step": step, "task": name, "who": who, "degrees": degrees}
            )
        return found

    def _say(self, total: int, now: str, done: int) -> None:
        self.told.on_progress(done, total, now)

    def _write(self, row: Row) -> None:
        for tracker in self.trackers:
            tracker.write(row)
        self.told.on_row(row)


def _step_row(
    batch: Batch, report: Report, weights: Weights, rate: float, seconds: float
) -> dict[str, Any]:
    targets = float(report.terms.targets)
    means = {
        name: float(getattr(report.terms, name)) / max(targets, 1)
        for name in ("ce", "kl", "excess", "entropy", "entropy_full")
    }
    return {
        "kind": "step",
        "step": batch.step + 1,
        "degree": batch.degree,
        "loss": float(report.loss),
        **means,
        "targets": int(targets),
        "slope_norm": float(report.slope_norm),
        "learning_rate": rate,
        "weights": dataclasses.asdict(weights),
        "seconds": round(seconds, 3),
        "tokens_per_second": round(batch.tokens / seconds, 1),
        "examples": list(batch.ids),
    }


def _words(row: Row) -> str:
    return (
        f"P={row['degree']} loss {row['loss']:.3f} (ce {row['ce']:.3f} kl {row['kl']:.3f} "
        f"excess {row['excess']:.3f}) entropy {row['entropy']:.2f}, "
        f"{row['tokens_per_second']:.0f} tokens/s"
    )
