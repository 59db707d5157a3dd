"""Where the numbers of a run go: JSON lines, and TensorBoard or Weights & Biases if asked for."""

import json
from collections.abc import Generator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, Protocol

from pce_jax.errors import FinetuneError

from .config import TrackSettings

METRICS = "metrics.jsonl"


class Tracker(Protocol):
    """Takes the numbers of a step or of a measurement."""

    def write(self, row: Mapping[str, Any]) -> None:
        """Take a row: `kind`, `step` and numbers by name."""
        ...

    def close(self) -> None:
        """Nothing more will come."""
        ...


class JsonLines:
    """A line a row, on disk when `write` returns.

    Args:
        folder: Of the run.
        step: Steps done: rows of later ones, of a run that was killed, are dropped.
    """

    def __init__(self, folder: Path, step: int):
        self.path = folder / METRICS
        kept = [row for row in read_rows(folder) if row["step"] <= step] if step else []
        new = self.path.with_suffix(".new")
        try:
            new.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
            new.replace(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise self._unwritten(error) from error

    def write(self, row: Mapping[str, Any]) -> None:
        """Take a row.

        Raises:
            FinetuneError: It cannot be written.
        """
        try:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        except OSError as error:
            raise self._unwritten(error) from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _unwritten(self, error: OSError) -> FinetuneError:
        return FinetuneError(f"{self.path} cannot be written: {error.strerror or error}.")


class TensorBoard:
    """Event files, a chart for every number."""

    def __init__(self, folder: Path, step: int):
        try:
            from tensorboardX import SummaryWriter
        except ImportError as error:
            raise FinetuneError(
                "track.tensorboard needs tensorboardX: pip install 'pce-jax[track]'."
            ) from error
        self._writer = SummaryWriter(str(folder / "tensorboard"), purge_step=step or None)

    def write(self, row: Mapping[str, Any]) -> None:
        """Take a row."""
        for name, value in _numbers(row):
            self._writer.add_scalar(name, value, row["step"])

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """A run at wandb.ai, or wherever the `WANDB_` variables say."""

    def __init__(self, folder: Path, project: str, settings: Mapping[str, Any]):
        try:
            import wandb
        except ImportError as error:
            raise FinetuneError("track.wandb needs wandb: pip install 'pce-jax[track]'.") from error
        name = folder.absolute().name
        self._run = wandb.init(
            project=project,
            dir=str(folder),
            id=name,
            name=name,
            resume="allow",
            config=dict(settings),
        )

    def write(self, row: Mapping[str, Any]) -> None:
        """Take a row."""
        self._run.log(dict(_numbers(row)), step=row["step"])

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


@contextmanager
def trackers(
    folder: Path, settings: TrackSettings, step: int, described: Mapping[str, Any]
) -> Generator[list[Tracker]]:
    """All that a run writes to, closed at the end.

    Args:
        folder: Of the run.
        settings: What is asked for.
        step: Steps done.
        described: The run's settings.

    Raises:
        FinetuneError: A package is missing, or a file cannot be written.
    """
    with ExitStack() as stack:
        found: list[Tracker] = [stack.enter_context(closing(JsonLines(folder, step)))]
        if settings.tensorboard:
            found.append(stack.enter_context(closing(TensorBoard(folder, step))))
        if settings.wandb is not None:
            wandb = WeightsAndBiases(folder, settings.wandb, described)
            found.append(stack.enter_context(closing(wandb)))
        yield found


def read_rows(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's `metrics.jsonl`; a torn last line, of a run that was killed, is left out.

    Args:
        folder: Of the run.

    Raises:
        FinetuneError: A line in the middle is malformed.
    """
    path = folder / METRICS
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")
    rows = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            rows.append(json.loads(line))
        except ValueError as error:
            raise FinetuneError(f"{path}, line {number}: malformed JSON: {error}.") from error
    return rows


def _numbers(row: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Names as `kind/name`, and numbers of inner tables as `kind/table/name`."""

    def flat(prefix: str, value: Any) -> list[tuple[str, float]]:
        if isinstance(value, Mapping):
            return [pair for key, one in value.items() for pair in flat(f"{prefix}/{key}", one)]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return []
        return [(prefix, float(value))]

    return flat(str(row["kind"]), {k: v for k, v in row.items() if k not in ("kind", "step")})
