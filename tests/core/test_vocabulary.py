"""Token ids that the model does not have, and other things that are no tokens at all."""

import pytest
from core.cases import make, model

import pce_jax as pce
from pce_jax.errors import LayoutError, MethodError

VOCABULARY = model().config.vocab_size


@pytest.mark.parametrize("wrong", [-1, VOCABULARY])
def test_tokens_outside_the_vocabulary_are_refused_wherever_they_stand(wrong: int):
    outside = rf"token id {wrong} is outside the model's vocabulary of {VOCABULARY}"
    cache = pce.encode(model(), make(0, [3]).context())
    for attempt in (
        lambda: pce.encode(model(), pce.from_segments([[1, wrong]])),
        lambda: pce.encode(model(), pce.from_segments([[1]], sink=[wrong])),
        lambda: pce.query(model(), cache, [wrong]),
        lambda: pce.score(model(), cache, [1, wrong]),
        lambda: pce.generate(model(), cache, [[1], [wrong]]),
    ):
        with pytest.raises(LayoutError, match=outside):
            attempt()


def test_text_in_place_of_tokens_and_names_in_place_of_methods_are_refused():
    case = make(0, [3])
    cache = pce.encode(model(), case.context())
    with pytest.raises(LayoutError, match="given as token ids"):
        pce.generate(model(), cache, "Who bakes bread?")  # pyrefly: ignore
    with pytest.raises(MethodError, match=r"such as pce\.METHODS"):
        pce.encode(model(), case.context(), "sink")  # pyrefly: ignore
