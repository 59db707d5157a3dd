"""What `--model_args` may hold, checked."""

import dataclasses
from typing import Any

from pce_jax.errors import SettingsError
from pce_jax.evals.methods import method_spec
from pce_jax.method import Method
from pce_jax.settings import checked, hints_of

WHERE = "model_args"
AUTO_BATCH = 8


@dataclasses.dataclass(frozen=True, kw_only=True)
class Arguments:
    r"""Arguments of the model class.

    Attributes:
        pretrained: A model as `pce_jax.load` takes it: `smollm2-135m`, a Hugging Face id, a folder
            or a `.gguf` file.
        degree: Number of segments, P; 1 is full attention.
        method: A preset (`naive`, `sink`, `sel`, `sink+sel`), or a table as `[method.NAME]` of
            `pce-jax eval` has it, where the arguments are given as JSON.
        sink: Text of the shared prefix in place of the method's (`\n` is a line break).
        separator: Cut prompts behind each such text (`\n` is a line break) and deal the items to
            segments; what stands behind the last one is the query. Without it, prompts are cut
            into segments of equal length anywhere.
        query_tokens: Without a separator: tokens at the end of a prompt that stay unsplit.
        stride: For rolling likelihoods at a degree above 1: tokens that are scored over everything
            before them in their window, which is cut into segments; then the next.
        max_length: Tokens of a prompt with its answer; longer prompts lose their front. The model's
            positions by default.
        max_gen_toks: Tokens to generate where a task does not say.
        add_bos_token: Put the beginning-of-sequence token in front, as a shared sink; by default
            what the tokenizer does by itself.
        dtype: Of weights and activations: `float32`, `bfloat16` or `float16`.
        batch_size: Prompts side by side, from `--batch_size`; the harness passes 1 by default.
            `auto` is 8.
        seed: Of sampling, where a task asks for it.
        device: Not used; the harness passes `cuda:0` by default. `JAX_PLATFORMS` chooses.
        max_batch_size: Not used; the harness passes it.
    """

    pretrained: str = "smollm2-135m"
    degree: int = 1
    method: str | dict = "naive"
    sink: str | None = None
    separator: str | None = None
    query_tokens: int = 1
    stride: int = 256
    max_length: int | None = None
    max_gen_toks: int = 256
    add_bos_token: bool | None = None
    dtype: str | None = None
    batch_size: int | str = "auto"
    seed: int = 0
    device: str | None = None
    max_batch_size: int | None = None

    def __post_init__(self) -> None:
        """Refuse values without a meaning.

        Raises:
            SettingsError: Such as a degree below 1.
        """
        for name in ("degree", "query_tokens", "stride", "max_length", "max_gen_toks"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingsError(f"{WHERE}: {name} must be at least 1, got {value}.")
        if self.separator == "":
            raise SettingsError(f"{WHERE}: separator is empty. Leave it out to cut anywhere.")
        if self.batch < 1:
            raise SettingsError(f"{WHERE}: batch_size must be at least 1, got {self.batch_size}.")

    @property
    def batch(self) -> int:
        """Prompts side by side.

        Raises:
            SettingsError: `batch_size` is neither a number nor `auto`.
        """
        if str(self.batch_size).startswith("auto"):
            return AUTO_BATCH
        try:
            return int(self.batch_size)
        except ValueError as error:
            raise SettingsError(
                f"{WHERE}: batch_size must be a number or 'auto', it is {self.batch_size!r}."
            ) from error

    def resolved_method(self) -> Method:
        """The method; at degree 1 there is nothing to select from.

        Raises:
            SettingsError: There is no such method, or its table is malformed.
        """
        tables = {"method": self.method} if isinstance(self.method, dict) else {}
        name = self.method if isinstance(self.method, str) else "method"
        spec = method_spec(name, tables, self.sink and unescape(self.sink), WHERE)
        method = dataclasses.replace(spec.method, sink=spec.sink)
        if method.full:
            raise SettingsError(f"{WHERE}: for full attention, give degree=1.")
        return dataclasses.replace(method, select=None) if self.degree == 1 else method


def arguments(values: dict[str, Any]) -> Arguments:
    """Check names and types.

    Raises:
        SettingsError: An unknown name (the nearest known one is named), or a value without a
            meaning.
    """
    return Arguments(**checked(hints_of(Arguments), values, WHERE))


def unescape(text: str) -> str:
    r"""Line breaks and tabs, which a command line can only write as `\n` and `\t`."""
    return text.replace(r"\n", "\n").replace(r"\t", "\t")
