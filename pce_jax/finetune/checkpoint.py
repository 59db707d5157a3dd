"""Checkpoints: what a run can go on from, and the best it has seen.

Orbax writes them in the background, under a temporary name until they are whole. Arrays are stored
by name, each with its shape and dtype, so that what does not fit can be named.
"""

import logging
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint.checkpoint_managers import preservation_policy as keep_policy

from pce_jax.errors import FinetuneError

from .step import Trained, TrainState

LOG = logging.getLogger(__name__)
_SCORE = "log_ppl"


class DamagedError(FinetuneError):
    """A checkpoint is torn."""


class Checkpoints:
    """The checkpoints of a run's folder; a context manager.

    Errors of writing in the background are raised by the next call, and at the end.

    Args:
        folder: Where they are.
        keep: How many of the last to keep.
        best: Keep the one of the lowest held-out likelihood as well.
        read_only: Change nothing: a live run may be writing there.
    """

    def __init__(self, folder: Path, *, keep: int = 2, best: bool = True, read_only: bool = False):
        self.folder = folder.absolute()
        policies: list[Any] = [keep_policy.LatestN(keep)]
        if best:
            policies.append(keep_policy.BestN(get_metric_fn=_score, reverse=True, n=1))
        options = ocp.CheckpointManagerOptions(
            preservation_policy=keep_policy.AnyPreservationPolicy(policies),
            best_fn=_score,
            best_mode="min",
            cleanup_tmp_directories=not read_only,
            create=not read_only,
            read_only=read_only,
        )
        handlers = {
            "trained": ocp.StandardCheckpointHandler(),
            "rest": ocp.StandardCheckpointHandler(),
        }
        self._manager = ocp.CheckpointManager(
            self.folder, options=options, item_names=tuple(handlers), item_handlers=handlers
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: Any, *_: object) -> None:
        try:
            self.wait()
        except FinetuneError as error:
            if kind is None:
                raise
            LOG.error("%s", error)
        finally:
            self._manager.close()

    @property
    def steps(self) -> list[int]:
        """Steps that have a whole checkpoint, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, state: TrainState, log_ppl: float | None) -> None:
        """Store a state after its step; returns when arrays are copied, before they are written.

        Args:
            state: What to store.
            log_ppl: Held-out, if it was measured at this step.

        Raises:
            FinetuneError: This or the one before cannot be written.
        """
        step = int(state.step)
        args = ocp.args.Composite(
            trained=ocp.args.StandardSave(_by_name(state.trained)),
            rest=ocp.args.StandardSave(_by_name(_rest(state))),
        )
        try:
            self._manager.save(
                step,
                args=args,
                metrics={_SCORE: log_ppl},
                force=True,
            )
        except Exception as error:  # whatever the file system, tensorstore or orbax raise
            raise self._unwritten(error) from error

    def wait(self) -> None:
        """Wait until everything is on disk.

        Raises:
            FinetuneError: It cannot be written.
        """
        try:
            self._manager.wait_until_finished()
            self._manager.check_for_errors()
        except Exception as error:
            raise self._unwritten(error) from error

    def load(self, like: TrainState, step: int) -> TrainState:
        """A state as it was stored, with the shardings of another.

        Args:
            like: A state (or shapes) of the same run: what is wanted.
            step: Of the checkpoint.

        Raises:
            FinetuneError: It is of another model or adapter (the first array that differs is
                named), or damaged.
        """
        trained = self.load_trained(like.trained, step)
        rest = self._load("rest", _rest(like), step)
        return TrainState(rest["step"], trained, rest["optimizer"])

    def load_trained(self, like: Trained, step: int) -> Trained:
        """What was trained, without the rest of the state.

        Args:
            like: What is wanted (or its shapes).
            step: Of the checkpoint.

        Raises:
            FinetuneError: As `load`.
        """
        return self._load("trained", like, step)

    def _load(self, item: str, like: Any, step: int) -> Any:
        self.wait()
        where, wanted = self.folder / str(step), _by_name(like)
        try:
            found = self._manager.item_metadata(step)[item]
            stored = {name: (tuple(x.shape), np.dtype(x.dtype)) for name, x in found.items()}
        except Exception as error:  # whatever tensorstore or orbax raise
            raise DamagedError(f"the checkpoint {where} is damaged: {_line(error)}.") from error
        _compare(wanted, stored, where)
        targets = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=getattr(x, "sharding", None))
            for name, x in wanted.items()
        }
        args = ocp.args.Composite(**{item: ocp.args.StandardRestore(targets)})
        try:
            arrays = self._manager.restore(step, args=args)[item]
        except Exception as error:
            raise DamagedError(f"the checkpoint {where} is damaged: {_line(error)}.") from error
        return jax.tree.unflatten(jax.tree.structure(like), [arrays[name] for name in wanted])

    def best(self) -> int | None:
        """The step of the lowest held-out likelihood, where one was measured."""
        return self._manager.best_step()

    def load_last(self, like: TrainState) -> TrainState | None:
        """The last state that can be read, or `None` without any.

        A damaged checkpoint is said and removed, if there is a whole one before it to take.

        Args:
            like: See `load`.

        Raises:
            FinetuneError: There are some, but none can be read; or one is of another model.
        """
        damaged: dict[int, DamagedError] = {}
        for step in reversed(self.steps):
            try:
                found = self.load(like, step)
            except DamagedError as error:
                damaged[step] = error
                continue
            for later, error in damaged.items():
                LOG.warning("%s It is removed, and the one before it taken.", error)
                self._manager.delete(later)
            return found
        for error in damaged.values():
            raise error
        return None

    def _unwritten(self, error: Exception) -> FinetuneError:
        return FinetuneError(
            f"a checkpoint in {self.folder} cannot be written: {_line(error)}. What was kept "
            "before is whole: make room, and the same command goes on."
        )


def _score(metrics: Mapping[str, float | None]) -> float:
    """What was not measured is never the best."""
    score = metrics[_SCORE]
    return math.inf if score is None else score


def _rest(state: TrainState) -> dict[str, Any]:
    return {"step": state.step, "optimizer": state.optimizer}


def _by_name(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {jax.tree_util.keystr(path).strip("."): leaf for path, leaf in leaves}


def _compare(wanted: Mapping[str, Any], stored: Mapping[str, tuple[Any, Any]], where: Path) -> None:
    advice = "It is of another model or other settings: name another folder (--out)."
    for name, leaf in wanted.items():
        mine = (tuple(leaf.shape), np.dtype(leaf.dtype))
        if name not in stored:
            raise FinetuneError(f"the checkpoint {where} has no {name}. {advice}")
        if stored[name] != mine:
            raise FinetuneError(
                f"the checkpoint {where} holds {name} as {_words(stored[name])}, and it must be "
                f"{_words(mine)}. {advice}"
            )
    if extra := [name for name in stored if name not in wanted]:
        raise FinetuneError(f"the checkpoint {where} holds {extra[0]}, which is unknown. {advice}")


def _words(kind: tuple[Any, Any]) -> str:
    return f"{kind[1]}{list(kind[0])}"


def _line(error: Exception) -> str:
    """The first line of what an error says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
