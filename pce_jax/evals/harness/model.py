"""The model class: prompts in, likelihoods and texts out, read with parallel context encoding."""

import json
import logging
from collections.abc import Callable, Sequence
from typing import Any

import jax
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import (
    handle_stop_sequences,
    normalize_gen_kwargs,
    postprocess_generated_text,
)
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window
from tqdm import tqdm

from pce_jax import programs
from pce_jax.errors import EvalError
from pce_jax.evals.harness.arguments import arguments, unescape
from pce_jax.evals.harness.reading import Cut, Reading, item_ends
from pce_jax.evals.harness.run import answer_readings, score_readings
from pce_jax.hub.load import load
from pce_jax.hub.tokenizer import encode_text
from pce_jax.sampling import Sampling

LOG = logging.getLogger(__name__)
_SAMPLING = {"temperature", "top_k", "top_p"}
_WITHOUT_EFFECT = {"do_sample", "num_beams", "num_return_sequences", "use_cache", "pad_token_id"}


@register_model("pce_jax", "pce-jax")
class PceLM(TemplateLM):
    """Parallel context encoding for `lm_eval`.

    Prompts are tokenised as the harness's `hf` class does it, so that at degree 1 both read the
    same tokens.

    Args:
        values: See `pce_jax.evals.harness.arguments.Arguments`.

    Raises:
        EvalError: An argument is unknown or has no meaning.
        PceError, ModelError: The model cannot be loaded; see `pce_jax.load`.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__()
        self.arguments = args = arguments(values)
        self.method = args.resolved_method()
        self.model, self.tokenizer = load(args.pretrained, dtype=args.dtype)
        sink = self.method.sink
        self._cut = Cut(
            degree=args.degree,
            sink=tuple(encode_text(self.tokenizer, sink)) if sink else (),
            shared=self.tokenizer.bos_token_id,
            query_tokens=args.query_tokens,
        )
        self._separator = args.separator and unescape(args.separator)
        self._before = programs.count()
        self._uncut = 0

    # ---- what the harness asks about the model -------------------------------------------------

    @property
    def eot_token_id(self) -> int:
        """The token that ends a text."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The token in front of a text that has no prompt."""
        bos = self.tokenizer.bos_token_id
        return self.eot_token_id if bos is None else bos

    @property
    def max_length(self) -> int:
        """Tokens of a prompt with its answer."""
        return self.arguments.max_length or self.model.config.max_positions

    @property
    def batch_size(self) -> int:
        """Prompts side by side."""
        return self.arguments.batch

    @property
    def tokenizer_name(self) -> str:
        """Tells cached requests of different models apart."""
        return self.arguments.pretrained.replace("/", "__")

    def get_model_info(self) -> dict[str, Any]:
        """What the harness notes beside the results."""
        return {
            "model_num_parameters": sum(x.size for x in jax.tree.leaves(self.model)),
            "model_dtype": str(self.model.dtype),
            "pce_degree": self.arguments.degree,
            "pce_method": str(self.method),
            "pce_separator": self._separator,
            "pce_query_tokens": self.arguments.query_tokens,
            "pce_stride": self.arguments.stride,
        }

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """A conversation as one prompt."""
        return self.tokenizer.apply_chat_template(
            chat_history,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )

    def tok_encode(
        self, string: str, add_special_tokens: bool | None = None, **_: Any
    ) -> list[int]:
        """Token ids, with the special tokens that the tokenizer adds by itself or is told to."""
        return self.tokenizer.encode(string, **self._special(string, add_special_tokens))

    def _special(self, text: str, add: bool | None) -> dict[str, Any]:
        bos = self.tokenizer.bos_token
        if add is None and bos and text.startswith(bos):
            add = False  # it is written out already
        add = self.arguments.add_bos_token if add is None else add
        return {"verbose": False} | ({} if add is None else {"add_special_tokens": add})

    # ---- what it asks the model ----------------------------------------------------------------

    def _loglikelihood_tokens(
        self, requests: list[Any], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        readings = []
        for (prompt, _continuation), context, continuation in requests:
            room = self.max_length + 1 - len(continuation)
            if room < 1:
                raise EvalError(
                    f"an answer has {len(continuation)} tokens, and max_length is "
                    f"{self.max_length}: {_continuation!r:.60}"
                )
            readings.append(self._read(prompt.rstrip(), context, room, continuation))
        scores = self._score(readings, disable_tqdm, "Scoring")
        for (texts, _, _), score in zip(requests, scores, strict=True):
            self.cache_hook.add_partial("loglikelihood", texts, score)
        return scores

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> list[float]:
        """Log-likelihood of whole texts, window by window as the harness cuts them.

        At a degree above 1, a window's tokens are scored in blocks of `stride`, each over all that
        stands before it in the window, cut into segments.
        """
        readings, owners = [], []
        for number, request in enumerate(requests):
            tokens = self.tok_encode(request.args[0])
            windows = get_rolling_token_windows(tokens, self.prefix_token_id, self.max_length, 1)
            for first, scored in map(make_disjoint_window, windows):
                step = len(scored) if self.arguments.degree == 1 else self.arguments.stride
                for start in range(0, len(scored), step):
                    block = scored[start : start + step]
                    readings.append(self._cut.read([*first, *scored[:start]], block))
                    owners.append(number)
        totals = [0.0] * len(requests)
        scores = self._score(readings, disable_tqdm, "Scoring texts")
        for number, (value, _) in zip(owners, scores, strict=True):
            totals[number] += value
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: list[Any], disable_tqdm: bool = False) -> list[str]:
        """Continue prompts until a stop text; requests with the same settings run together.

        Raises:
            EvalError: A setting that is not known, or a prompt has no room for an answer.
        """
        groups: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True), []).append(number)
        answers = [""] * len(requests)
        with tqdm(total=len(requests), desc="Generating", disable=disable_tqdm) as bar:
            for numbers in groups.values():
                prompts = [requests[number].args[0] for number in numbers]
                found = self._generate(prompts, requests[numbers[0]].args[1], bar.update)
                for number, text in zip(numbers, found, strict=True):
                    answers[number] = text
                    self.cache_hook.add_partial("generate_until", requests[number].args, text)
        self._tell()
        return answers

    def _generate(
        self, prompts: Sequence[str], settings: dict, on_done: Callable[[int], object]
    ) -> list[str]:
        wanted: dict[str, Any] = dict(normalize_gen_kwargs(settings, self.arguments.max_gen_toks))
        new, until = wanted.pop("max_gen_toks"), wanted.pop("until")
        stops = handle_stop_sequences(until, eos=self.tokenizer.decode([self.eot_token_id]))
        unknown = [
            key
            for key, value in wanted.items()
            if key not in _SAMPLING | _WITHOUT_EFFECT or (key == "num_beams" and value != 1)
        ]
        if unknown:
            raise EvalError(
                f"generation settings without support: {', '.join(unknown)}. Known: until, "
                f"max_gen_toks, do_sample, {', '.join(sorted(_SAMPLING))}."
            )
        if self.max_length <= new:
            raise EvalError(
                f"a task asks for {new} new tokens, and max_length is {self.max_length}: there is "
                "no room for a prompt."
            )
        sampling = Sampling(**{key: wanted[key] for key in _SAMPLING & wanted.keys()})
        readings = [
            self._read(text, self.tok_encode(text), self.max_length - new) for text in prompts
        ]

        def ended(tokens: list[int]) -> bool:
            text = self.tokenizer.decode(tokens, skip_special_tokens=True)
            return any(stop and stop in text for stop in stops)

        found = answer_readings(
            self.model,
            readings,
            self.method,
            batch=self.batch_size,
            max_new_tokens=new,
            sampling=sampling,
            seed=self.arguments.seed,
            ended=ended,
            on_done=on_done,
        )
        texts = [self.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]
        return [postprocess_generated_text(text, stops, None) for text in texts]

    # ---- shared --------------------------------------------------------------------------------

    def _read(
        self, prompt: str, tokens: list[int], room: int, scored: Sequence[int] = ()
    ) -> Reading:
        """Cut a prompt's last `room` tokens."""
        lost = max(len(tokens) - room, 0)
        if lost:
            LOG.warning("A prompt of %d tokens loses its first %d.", len(tokens), lost)
        ends = None
        if self._separator and prompt:
            told = self.tokenizer(
                prompt, return_offsets_mapping=True, **self._special(prompt, None)
            )
            if told["input_ids"] == tokens:
                starts = [start for start, _ in told["offset_mapping"]]
                ends = item_ends(prompt, self._separator, starts, lost)
        if self._separator and not ends:
            self._uncut += 1
            ends = []
        return self._cut.read(tokens[lost:], scored, ends)

    def _score(self, readings: list[Reading], quiet: bool, name: str) -> list[tuple[float, bool]]:
        with tqdm(total=len(readings), desc=name, disable=quiet) as bar:
            scores = score_readings(
                self.model, readings, self.method, batch=self.batch_size, on_done=bar.update
            )
        self._tell()
        return scores

    def _tell(self) -> None:
        LOG.info("%d programs compiled so far.", programs.count() - self._before)
        if self._uncut:
            LOG.warning(
                "%d prompts have no separator %r: they are read whole, by full attention.",
                self._uncut,
                self._separator,
            )
