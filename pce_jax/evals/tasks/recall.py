"""Synthetic recall: find keys' values or hidden numbers in a long list or text."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, Literal

from pce_jax.errors import SettingsError
from pce_jax.evals.instance import Instance
from pce_jax.evals.metrics import contained_share, raw_or_parsed
from pce_jax.evals.tasks import keyvalue, needles
from pce_jax.evals.tasks.answers import HELMET_SINK, with_last_line
from pce_jax.evals.tasks.draws import keep
from pce_jax.evals.tasks.needles import Needles
from pce_jax.selection import Dim

_PUBLISHED_LENGTH = {"kv": 100, "multikey": 50, "uuid": 100, "multivalue": 50}


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecallTask:
    """Key-value pairs or needles, read from a published file or made here.

    What is made here comes out the same from the same fields, whatever `limit` is.

    Attributes:
        name: Names the task in results.
        variant: `kv` (JSON key-value), `multikey` (RULER's niah_multikey_2: all the text is
            needles), `uuid` (niah_multikey_3) or `multivalue` (niah_multivalue).
        file: Published file of that variant; `None` makes the instances here.
        size: Made here: pairs (`kv`), needles (`multikey`, `uuid`), or sentences and needles
            together (`multivalue`).
        values: Made here: values of the key, for `multivalue`.
        position: Made here: depth of what is asked for, from 0 to 1; drawn with `None`. The
            further values of `multivalue` are drawn behind it.
        background: Made here: text files for `multivalue`; without any, RULER's noise sentences.
        seed: Of what is made here.
        limit: Instances to keep or make; all of a file with `None`.
        shuffle_seed: Shuffle of a file's instances before `limit`; `None` keeps their order.
        max_new_tokens: Length of an answer; 0 stands for the published one (50 for numbers, 100 for
            UUIDs).
    """

    name: str
    variant: Literal["kv", "multikey", "uuid", "multivalue"]
    file: str | None = None
    size: int = 105
    values: int = 4
    position: float | None = None
    background: tuple[str, ...] = ()
    seed: int = 42
    limit: int | None = 100
    shuffle_seed: int | None = 42
    max_new_tokens: int = 0

    path_fields: ClassVar[tuple[str, ...]] = ("file", "background")
    sink_text: ClassVar[str] = HELMET_SINK
    aggregate: ClassVar[frozenset[Dim]] = frozenset({"head", "token"})

    def __post_init__(self) -> None:
        """Fills in the published answer length and checks what has no meaning.

        Raises:
            SettingsError: A field has no meaning, alone or with the others.
        """
        if not self.max_new_tokens:
            object.__setattr__(self, "max_new_tokens", _PUBLISHED_LENGTH[self.variant])
        for wrong, problem in (
            (
                self.file is None and self.limit is None,
                "limit is missing: it says how many to make",
            ),
            (self.values < 1, f"values must be at least 1, got {self.values}"),
            (
                self.size < self._needles.values,
                f"size {self.size} has no room for {self._needles.values} values",
            ),
            (
                self.position is not None and not 0 <= self.position <= 1,
                f"position must be between 0 and 1, got {self.position}",
            ),
            (
                bool(self.background) and (self.variant != "multivalue" or self.file is not None),
                "background is for multivalue made here",
            ),
        ):
            if wrong:
                raise SettingsError(f"task {self.name!r}: {problem}.")

    @property
    def metric(self) -> str:
        """Key of the headline number."""
        return "substring_exact_match" if self.variant == "kv" else "contained"

    def instances(self, tokenizer: Any = None) -> list[Instance]:
        """The questions in order; see `Task`.

        Raises:
            SettingsError: A file cannot be read, or has no instances.
        """
        if self.file is None:
            make = self._maker()
            return [make(str(number)) for number in range(self.limit or 0)]
        found: Iterator[Instance] = (
            keyvalue.read(self.file)
            if self.variant == "kv"
            else needles.read(self._needles, self.file)
        )
        instances = keep(list(found), self.limit, self.shuffle_seed)
        if not instances:
            raise SettingsError(f"task {self.name!r}: {self.file} has no rows.")
        return instances

    def score(self, instance: Instance, output: str) -> dict[str, float]:
        """Share of the answers in the output, or substring match for `kv`; see `Task`."""
        output = with_last_line(instance, output)
        if self.variant == "kv":
            return raw_or_parsed(output, instance.answers, "Corresponding value:")
        return {"contained": contained_share(output, instance.answers)}

    @property
    def _needles(self) -> Needles:
        return Needles(
            kind="uuid" if self.variant == "uuid" else "number",
            values=self.values if self.variant == "multivalue" else 1,
            among_others=self.variant != "multivalue",
        )

    def _maker(self) -> Callable[[str], Instance]:
        if self.variant == "kv":
            return lambda id_: keyvalue.generate(id_, self.size, self.position, self.seed)
        text = needles.background_text(self.background)
        return lambda id_: needles.generate(
            self._needles, id_, self.size, self.position, text, self.seed
        )
