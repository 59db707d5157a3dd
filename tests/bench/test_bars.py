import json
import math

import pytest
from tiny_models import tiny_config

from pce_jax.bench import accelerator, sizes
from pce_jax.bench.bars import Bar, is_reference, of_ratio
from pce_jax.bench.found import Found, Row
from pce_jax.bench.report import limit, number, seconds
from pce_jax.bench.roofline import Roofline
from pce_jax.bench.sizes import Cut
from pce_jax.bench.timing import Ratio, Sample
from pce_jax.cli.flags import PART_NAMES


@pytest.mark.parametrize(
    ("value", "limit", "at_least", "judged", "verdict"),
    [
        (0.64, 0.65, False, True, "pass"),
        (0.65, 0.65, False, True, "pass"),
        (0.66, 0.65, False, True, "miss"),
        (0.66, 0.65, False, False, ""),
        (0.60, 0.60, True, True, "pass"),
        (0.59, 0.60, True, True, "miss"),
        (math.nan, 0.60, True, True, "miss"),
        (math.nan, 0.65, False, True, "miss"),
    ],
)
def test_verdict(value, limit, at_least, judged, verdict):
    bar = Bar(key="a", name="a", value=value, limit=limit, at_least=at_least, judged=judged)
    assert bar.verdict == verdict
    assert bar.as_dict()["verdict"] == verdict


def test_how_a_bar_is_written():
    bar = of_ratio("a", "a / b", Ratio(0.666, 0.5, 0.9), 0.65, True)
    assert (bar.low, bar.high, bar.verdict) == (0.5, 0.9, "miss")
    assert (number(bar, bar.value), limit(bar)) == ("0.67", "<= 0.65")
    memory = Bar(key="m", name="m", value=117.4, limit=200, unit="MB")
    assert (number(memory, memory.value), limit(memory)) == ("117 MB", "<= 200 MB")
    programs = Bar(key="p", name="p", value=9, limit=11)
    assert (number(programs, programs.value), limit(programs)) == ("9", "<= 11")
    json.dumps([bar.as_dict(), memory.as_dict()])


@pytest.mark.parametrize(
    ("value", "says"),
    [(12.345, "12.3 s"), (1.5, "1.50 s"), (0.5, "500 ms"), (0.0123, "12.3 ms"), (150.4, "150 s")],
)
def test_seconds(value, says):
    assert seconds(value) == says


def test_what_the_limits_are_set_for():
    smollm2 = tiny_config(num_layers=30, hidden_size=576, intermediate_size=1536, vocab_size=49152)
    assert is_reference(smollm2, "float32", "cpu", 2)
    assert not is_reference(tiny_config(), "float32", "cpu", 2)
    assert not is_reference(smollm2, "bfloat16", "cpu", 2)
    assert not is_reference(smollm2, "float32", "gpu", 2)
    assert not is_reference(smollm2, "float32", "cpu", 64)


def test_sizes_fit_the_model():
    assert sizes.FULL.fitted(8192) == sizes.FULL
    small = sizes.FULL.fitted(2048)
    assert small.encode == (Cut(2048, 8),)  # both come to the same
    assert small.train == Cut(768, 8)
    tiny = sizes.FULL.fitted(512)
    assert tiny.encode == (Cut(512, 4),)
    assert tiny.train.tokens + tiny.train_tokens <= 512
    assert tiny.huggingface == 512


def test_names_of_parts():
    from pce_jax.bench.run import PARTS

    assert set(PARTS) == set(PART_NAMES)


def test_what_accelerators_are_held_to():
    def row(part, name, seconds, flops=0.0, bytes=0.0):
        sample = Sample((seconds,))
        return Row(part=part, size="s", name=name, sample=sample, flops=flops, bytes=bytes)

    rows = (
        row("encode", "in segments", 2.0, flops=120.0),
        row("decode", "naive", 0.5, bytes=30.0),
        row("query", "naive", 1.0),
        row("query", "naive, entropy", 1.2),
    )
    roofline = Roofline(flops=100.0, bytes=100.0)
    peak, copy, entropy = accelerator.bars(Found(rows=rows), roofline, judged=True)
    assert (peak.value, peak.verdict) == (pytest.approx(0.6), "pass")
    assert (copy.value, copy.verdict) == (pytest.approx(0.6), "miss")
    assert (entropy.value, entropy.verdict) == (pytest.approx(1.2), "miss")
    assert accelerator.bars(Found(rows=rows[:1]), roofline, judged=False)[0].verdict == ""
