"""What to fine-tune, on what, and how: a TOML file, checked."""

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from pce_jax.errors import FinetuneError, SettingsError
from pce_jax.evals.config import DTYPES, TaskSpec, model_name, read_tasks
from pce_jax.evals.methods import PAPER, method_from_table, method_spec, method_to_dict
from pce_jax.method import METHODS, Method
from pce_jax.models import TRAINING, MeshLayout, MeshSizes, Remat, make_mesh
from pce_jax.models.lora import TARGETS
from pce_jax.models.mesh import AXES
from pce_jax.models.sharding import TrainingRules
from pce_jax.settings import checked, expand, hints_of, nearest, read_toml

from .schedules import Schedule

Part = Literal["weights", "lora", "temperature", "sink"]
EXAMPLES = "configs/finetune"


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraSettings:
    """See `pce_jax.models.init_lora`.

    Attributes:
        rank: Of each adapter.
        alpha: Numerator of the scale; the rank by default.
        dropout: Share of inputs that is dropped in training.
        targets: Which projections.
        full: Whether it works in full attention too; otherwise this stays what it was.
    """

    rank: int = 16
    alpha: float | None = None
    dropout: float = 0.0
    targets: tuple[str, ...] = TARGETS
    full: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class LossSettings:
    """How much each term of the loss counts (see `objective`), fixed or over the steps.

    Attributes:
        ce: Weight of the likelihood.
        kl: Weight of the divergence from the teacher.
        entropy: Weight of the entropy above the teacher's.
        margin: Nats above the teacher's that cost nothing.
        two_sided: Entropy below the teacher's costs as well.
    """

    ce: float | Schedule = 1.0
    kl: float | Schedule = 1.0
    entropy: float | Schedule = 0.3
    margin: float | Schedule = 0.0
    two_sided: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerSettings:
    """AdamW.

    Attributes:
        learning_rate: Of weights and LoRA.
        temperature: Factor on the learning rate for temperatures.
        sink: Factor on the learning rate for the sink.
        weight_decay: Of matrices (no norms, biases, temperatures or sinks).
        clip: Largest norm of all slopes together; `None` for no bound.
        b1: Decay of the mean of slopes.
        b2: Decay of the mean of their squares.
    """

    learning_rate: float | Schedule = 1e-3
    temperature: float = 10.0
    sink: float = 1.0
    weight_decay: float = 0.0
    clip: float | None = 1.0
    b1: float = 0.9
    b2: float = 0.999


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateSettings:
    """What is measured on held-out text: full attention, and segments at some degrees.

    Attributes:
        every: Steps between measurements; 0 for none but at the beginning and the end.
        windows: Of each task, instances to measure in between.
        final: Of each task, instances to measure at the beginning and the end; all with `None`.
        degrees: Numbers of segments, beside full attention.
        batch: Instances side by side.
    """

    every: int = 0
    windows: int = 8
    final: int | None = None
    degrees: tuple[int, ...] = (8,)
    batch: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckpointSettings:
    """What is kept to go on from.

    Attributes:
        every: Steps between checkpoints; the last step always has one.
        keep: How many of the last to keep.
        best: Keep the one with the best held-out likelihood as well.
    """

    every: int = 50
    keep: int = 2
    best: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrackSettings:
    """Where numbers go beside `metrics.jsonl`.

    Attributes:
        tensorboard: Also write event files for TensorBoard, into `OUT/tensorboard`.
        wandb: Also send them to this project of Weights & Biases.
    """

    tensorboard: bool = False
    wandb: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshSettings:
    """Over which devices a run is spread, see `pce_jax.models.MeshSizes`; one by default.

    Attributes:
        data: Devices along which examples lie, with all weights.
        fsdp: The same, with weights that are gathered where they are used.
        segment: Along which segments lie.
        tensor: Along which heads, and the inner axis of the MLPs, lie.
        rules: What is spread over which of these.
    """

    data: int = 1
    fsdp: int = 1
    segment: int = 1
    tensor: int = 1
    rules: TrainingRules = TRAINING

    def layout(self) -> MeshLayout | None:
        """The mesh; `None` for a single device.

        Raises:
            ConfigError: The sizes do not multiply to the number of devices.
        """
        sizes = {name: getattr(self, name) for name in AXES}
        if all(size == 1 for size in sizes.values()):
            return None
        return MeshLayout(make_mesh(MeshSizes(**sizes)), self.rules)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FinetuneConfig:
    r"""A run of fine-tuning: each attribute is a key of the file.

    Attributes:
        path: The file it comes from.
        model: As in `pce_jax.load`.
        dtype: To compute in; what is trained is float32 whatever this is.
        out: Folder of the run.
        seed: Of the order of examples, the degrees, LoRA's start and dropout.
        steps: Updates in all.
        batch: Examples a step.
        microbatch: Of these, examples side by side: bounds memory, changes no result.
        remat: What the backward pass computes again to save memory: nothing (`none`), all but the
            matrix products (`products`), or everything (`all`).
        train: All `weights`, or any of `lora`, `temperature` and `sink`.
        teacher: Whose full attention is the yardstick: `base` (the weights from before), `live`
            (the student's own, which itself is held to those from before), or `none`.
        degrees: Numbers of segments and how often each is drawn; 1 is full attention.
        method: How the student reads.
        sink: Text whose keys and values a trained sink starts from.
        lora: Of the adapters.
        loss: Weights of its terms.
        optimizer: And its schedule.
        evaluate: What is measured, and when.
        checkpoint: What is kept.
        track: Where numbers go.
        mesh: The devices. A run may go on with others; its numbers then agree but for rounding.
        data: What to train on: tables as those of tasks in an evaluation.
        heldout: What to measure on, likewise; may be absent.
    """

    path: Path
    model: str
    dtype: DTYPES | None = None
    out: Path
    seed: int = 0
    steps: int = 200
    batch: int = 1
    microbatch: int = 1
    remat: Remat = "none"
    train: tuple[Part, ...] = ("lora", "temperature")
    teacher: Literal["base", "live", "none"] = "base"
    degrees: Mapping[int, float] = dataclasses.field(default_factory=lambda: {1: 0.25, 8: 0.75})
    method: Method = METHODS["naive"]
    sink: str = "\n\n"
    lora: LoraSettings = LoraSettings()
    loss: LossSettings = LossSettings()
    optimizer: OptimizerSettings = OptimizerSettings()
    evaluate: EvaluateSettings = EvaluateSettings()
    checkpoint: CheckpointSettings = CheckpointSettings()
    track: TrackSettings = TrackSettings()
    mesh: MeshSettings = MeshSettings()
    data: tuple[TaskSpec, ...]
    heldout: tuple[TaskSpec, ...] = ()


_SPECIAL: dict[str, Any] = {
    "model": str,
    "out": str,
    "degrees": dict,
    "method": str | dict,
    "data": dict,
    "heldout": dict,
}


def load_config(path: Path, changes: Sequence[str] = (), out: Path | None = None) -> FinetuneConfig:
    """Read and check a config.

    A file may name another one beside it as its `base`, and give only what differs.

    Args:
        path: The TOML file.
        changes: `KEY=VALUE` each, with dots between the names of tables and keys; see `change`.
        out: Folder of the run in place of the file's.

    Raises:
        SettingsError: The file cannot be read, a key is unknown (the nearest one is named), or a
            value has no meaning.
        FinetuneError: Values do not go together.
    """
    values = _with_base(path)
    for one in changes:
        values = change(values, one)
    hints = hints_of(FinetuneConfig) | _SPECIAL
    del hints["path"]
    values = checked(hints, values, str(path))
    folder = path.absolute().parent
    special = {key: values.pop(key) for key in _SPECIAL if key in values}
    if "model" not in special:
        raise SettingsError(f'{path}: no model is named. Write model = "smollm2-135m".')
    if out is None and "out" in special:
        out = Path(expand(special["out"], Path.cwd(), f"{path}: out"))
    if "degrees" in special:
        values["degrees"] = _degrees(special["degrees"], path)
    seed = values.get("seed", 0)
    if "method" in special:
        values["method"] = _method(special["method"], path)
    if special.get("heldout"):
        values["heldout"] = read_tasks("heldout", special["heldout"], None, seed, None, path)
    config = FinetuneConfig(
        path=path,
        model=model_name(special["model"], folder, path),
        out=Path("pce-finetune") / path.stem if out is None else out,
        data=read_tasks("data", special.get("data", {}), None, seed, None, path),
        **values,
    )
    _check(config)
    return config


def _with_base(path: Path) -> dict[str, Any]:
    """A file's values over those of the file that it names as its base."""
    values = read_toml(path, EXAMPLES)
    base = values.pop("base", None)
    if base is None:
        return values
    if not isinstance(base, str):
        raise SettingsError(f"{path}: base must be the name of another config, it is {base!r}.")
    return _over_each_other(_with_base(path.parent / base), values)


def _over_each_other(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        merged[key] = _over_each_other(merged[key], value) if both else value
    return merged


def change(values: Mapping[str, Any], text: str) -> dict[str, Any]:
    """A config's values with one of them changed.

    Args:
        values: As TOML gives them.
        text: `KEY=VALUE`. The value is TOML (`1e-3`, `true`, `[1, 2]`), or text as it stands.

    Raises:
        SettingsError: There is no `=`, or a table is named where there is a value.

    Example:
        >>> change({"loss": {"ce": 1.0}}, "loss.kl=0.5")
        {'loss': {'ce': 1.0, 'kl': 0.5}}
    """
    key, equals, written = text.partition("=")
    if not equals or not key.strip():
        raise SettingsError(f"--set {text}: write KEY=VALUE, as in --set loss.kl=0.5.")
    try:
        value = tomllib.loads(f"value = {written}")["value"]
    except tomllib.TOMLDecodeError:
        value = written
    changed = dict(values)
    table, (*tables, last) = changed, [name.strip() for name in key.split(".")]
    for name in tables:
        inner = table.get(name, {})
        if not isinstance(inner, Mapping):
            raise SettingsError(f"--set {text}: {name!r} is a value, no table.")
        table[name] = dict(inner)
        table = table[name]
    table[last] = value
    return changed


def settings(config: FinetuneConfig) -> dict[str, Any]:
    """What the numbers of a run follow from, as flat names and JSON values.

    Where and how often something is kept or measured is not among it.
    """
    left_out = ("path", "out", "evaluate", "checkpoint", "track", "mesh")
    apart = ("method", "data", "heldout")
    values: dict[str, Any] = {
        field.name: getattr(config, field.name)
        for field in dataclasses.fields(config)
        if field.name not in left_out + apart
    }
    values["method"] = method_to_dict(config.method)
    values["data"] = {
        spec.name: {"kind": spec.kind, **{k: v for k, v in spec.written.items() if k != "name"}}
        for spec in config.data
    }
    return dict(_flat("", values))


def _flat(prefix: str, value: Any) -> list[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return [
            pair for key, one in value.items() for pair in _flat(f"{prefix}.{key}".strip("."), one)
        ]
    if isinstance(value, tuple | list | frozenset):
        value = [str(one) for one in (sorted(value) if isinstance(value, frozenset) else value)]
    return [(prefix, value)]


def _degrees(table: Mapping[str, Any], path: Path) -> dict[int, float]:
    found: dict[int, float] = {}
    for key, share in table.items():
        if not key.isdecimal() or int(key) < 1:
            raise SettingsError(
                f"{path}: [degrees]: {key!r} is no number of segments. Write 8 = 0.75, say; 1 is "
                "full attention."
            )
        if isinstance(share, bool) or not isinstance(share, int | float) or share < 0:
            raise SettingsError(
                f"{path}: [degrees]: {key} = {share!r} must be how often it is drawn, 0 or more."
            )
        if share:
            found[int(key)] = float(share)
    if not found:
        raise SettingsError(f"{path}: [degrees] names none. Write 1 = 0.25 and 8 = 0.75, say.")
    total = sum(found.values())
    return {degree: found[degree] / total for degree in sorted(found)}


def _method(value: str | Mapping[str, Any], path: Path) -> Method:
    if isinstance(value, str):
        spec = method_spec(value, {}, None, str(path))
    else:
        spec = method_from_table("student", value, None, f"{path}: [method]")
    if spec.sink == PAPER:
        raise SettingsError(
            f"{path}: [method]: the sink must be the same for all data. Write its text, not "
            '"paper".'
        )
    if spec.method.full:
        raise SettingsError(
            f"{path}: [method]: full attention is degree 1. Name it under [degrees]."
        )
    aggregate = frozenset() if spec.method.select is None else spec.method.select.aggregate
    return spec.for_task(spec.sink, aggregate)


def _check(config: FinetuneConfig) -> None:
    def refuse(problem: str) -> None:
        raise FinetuneError(f"{config.path}: {problem}")

    counts = {
        "steps": config.steps,
        "batch": config.batch,
        "microbatch": config.microbatch,
        "evaluate.windows": config.evaluate.windows,
        "evaluate.batch": config.evaluate.batch,
        "checkpoint.every": config.checkpoint.every,
        "checkpoint.keep": config.checkpoint.keep,
    }
    for name, count in counts.items():
        if count < 1:
            refuse(f"{name} must be at least 1, it is {count}.")
    if config.batch % config.microbatch:
        refuse(
            f"batch {config.batch} cannot be cut into microbatches of {config.microbatch}. Let one "
            "be a multiple of the other."
        )
    if not config.train:
        refuse('train is empty. Write train = ["lora", "temperature"], say.')
    if "weights" in config.train and len(config.train) > 1:
        refuse('train = ["weights"] stands alone: adapters go with weights that stay as they are.')
    if unknown := [name for name in config.lora.targets if name not in TARGETS]:
        refuse(f"lora.targets: there is no {unknown[0]!r}.{nearest(unknown[0], TARGETS)}")
    if config.method.sink and "sink" in config.train:
        refuse("the method has a sink and another one is trained. Leave one of them out.")
    if "sink" in config.train and not config.sink:
        refuse('sink is the text that a trained sink starts from. Write sink = "\\n\\n", say.')
    if config.teacher == "none" and any(
        isinstance(weight, Schedule) or weight for weight in (config.loss.kl, config.loss.entropy)
    ):
        refuse(
            "without a teacher there is nothing to compare with. Set loss.kl and loss.entropy to 0."
        )
    in_full = "weights" in config.train or ("lora" in config.train and config.lora.full)
    if 1 in config.degrees and not in_full:
        refuse(
            "nothing that is trained does anything in full attention, so degree 1 would teach "
            "nothing. Write 1 = 0 under [degrees]."
        )
    _over(config.optimizer.learning_rate, config, "optimizer.learning_rate")
    for field in ("ce", "kl", "entropy", "margin"):
        _over(getattr(config.loss, field), config, f"loss.{field}")


def _over(value: float | Schedule, config: FinetuneConfig, name: str) -> None:
    if isinstance(value, Schedule):
        try:
            value.over(config.steps)
        except FinetuneError as error:
            raise FinetuneError(f"{config.path}: {name}: {error}") from error
