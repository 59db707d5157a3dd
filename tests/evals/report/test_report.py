import csv
import dataclasses
import io
from contextlib import nullcontext
from unittest.mock import patch

import numpy as np
import pytest
from evals.report.result_rows import answers, passages, row
from PIL import Image

from pce_jax.errors import EvalError
from pce_jax.evals.report import Bootstrap, render

BOOT = Bootstrap(repeats=200)
PICTURES = {"score.png", "entropy.png", "correlation.png", "gap.png", "given_full_right.png"}


def report(rows, *, draw=False, **settings):
    """A report; pictures take most of the time, so there are none unless asked for."""
    with nullcontext() if draw else patch("pce_jax.evals.report.report.pictures", return_value={}):
        return render(rows, title="some model", bootstrap=BOOT, **settings)


def text(files):
    return files["report.md"].decode()


def table(files, name):
    return list(csv.DictReader(io.StringIO(files[name].decode())))


def lines(files, first, second):
    """Rows of Markdown tables that begin with these cells."""
    start = f"| {first} | {second} |"
    return [line for line in text(files).splitlines() if line.startswith(start)]


def report_on_both():
    return report(passages() + answers(), draw=True, facts={"a": "b"}, families={"qa": "rag"})


@pytest.fixture(scope="module")
def both():
    return report_on_both()


def test_files(both):
    assert set(both) == {"report.md", "cells.csv", "statistics.csv"} | PICTURES
    for name in PICTURES:
        image = Image.open(io.BytesIO(both[name]))
        assert min(image.size) > 400
        assert f"]({name})" in text(both)


def test_same_rows_same_bytes(both):
    assert report_on_both() == both


def test_no_nan_anywhere(both):
    for name in ("report.md", "cells.csv", "statistics.csv"):
        assert "nan" not in both[name].decode().lower()


def test_score_table(both):
    # exp(2 + 0.2 per doubling + 0.2 of the texts' mean)
    assert "| books | perplexity | naive | 9.03 | 11.02 | 13.46 |" in text(both)
    assert "| qa | exact_match (%) | sink | 100.0 | **87.5** | **75.0** |" in text(both)


def test_entropy_table(both):
    (line,) = lines(both, "books", "sink")[:1]
    assert line == "| books | sink | 3.02 | 3.22 | 3.42 | +0.20 [+0.20, +0.20] |"


def test_csv_files(both):
    cells = {
        (c["task"], c["method"], c["degree"], c["measure"]): c for c in table(both, "cells.csv")
    }
    found = cells["qa", "naive", "4", "exact_match"]
    assert (float(found["value"]), found["instances"]) == (0.5, "8")
    assert float(found["low"]) < 0.5 < float(found["high"])
    assert float(cells["books", "naive", "1", "perplexity"]["value"]) == pytest.approx(np.exp(2.2))
    assert cells["qa", "naive", "4", "f1"]["value"] == "0.5"
    assert cells["qa", "naive", "4", "seconds"]["value"] == "0.5"
    found = {
        (s["statistic"], s["task"], s["method"], s["versus"], s["degree"]): s
        for s in table(both, "statistics.csv")
    }
    assert float(found["gap_closed", "books", "sink", "naive", "4"]["value"]) == pytest.approx(0.5)
    assert float(found["difference", "qa", "sink", "naive", "4"]["value"]) == 0.25
    assert float(found["difference", "qa", "naive", "full", "4"]["value"]) == -0.5
    assert float(found["given_full_right", "qa", "naive", "full", "2"]["value"]) == 0.75
    assert float(found["correlation", "qa", "naive", "", ""]["value"]) == pytest.approx(-1)
    assert float(found["correlation_log", "books", "all methods", "", ""]["value"]) > 0.99
    assert found["gap_closed", "qa", "sink", "naive", "2"]["remark"].startswith("naive is not")


def test_reasons_are_in_the_report(both):
    assert (
        "- qa: naive is not worse than full attention by more than chance (sink at P=2)."
        in text(both)
    )


def test_family_means():
    files = report(answers("a") + answers("b", count=4), families={"a": "rag", "b": "rag"})
    assert "| rag (2 tasks) | score (%) | naive | 100.00 | 62.50 | 25.00 |" in text(files)
    assert "families" not in text(report(answers("a"), families={"a": "rag"}))


def test_full_attention_of_its_own():
    full = [dataclasses.replace(r, method="full") for r in answers(methods=("naive",), degrees=[1])]
    rows = answers(degrees=(2, 4)) + full
    files = report(rows)
    assert "| qa | exact_match (%) | full attention | 100.0 | – | – |" in text(files)
    assert "| qa | exact_match (%) | naive | – | 75.0 | 50.0 |" in text(files)
    found = {(s["statistic"], s["method"]): s for s in table(files, "statistics.csv")}
    assert float(found["correlation", "naive"]["value"]) == pytest.approx(-1)  # with P=1
    assert found["correlation", "sink"]["remark"] == "2 of the 3 cells that R needs"


def test_without_full_attention():
    files = report(answers(degrees=(2, 4)), draw=True)
    assert "qa: full attention was not measured" in text(files)
    assert "gap.png" not in files and "given_full_right.png" not in files


def test_without_naive():
    full = [dataclasses.replace(r, method="full") for r in answers(methods=("naive",), degrees=[1])]
    files = report(answers(methods=("sink",)) + full, draw=True)
    assert "qa: method naive was not measured" in text(files)
    assert "gap.png" not in files and "given_full_right.png" in files


def test_one_degree_and_one_instance():
    files = report(answers(degrees=(4,), count=1), draw=True)
    assert "there is one degree only, P=4" in text(files)
    assert "one instance: no interval" in files["statistics.csv"].decode()
    assert "nan" not in text(files).lower()


def test_cells_with_other_instances():
    rows = answers()
    rows = [r for r in rows if not (r.method == "sink" and r.degree == 2 and r.id > "qa/4")]
    files = report(rows)
    assert "cells differ in their instances, from 5 (sink, P=2) to 8; 5 are in all" in text(files)
    found = {
        (s["method"], s["versus"], s["degree"]): s
        for s in table(files, "statistics.csv")
        if s["statistic"] == "difference"
    }
    assert found["sink", "naive", "2"]["instances"] == "5"
    assert found["sink", "naive", "4"]["instances"] == "8"
    # Instances 0-4: the sink loses one of them and naive two.
    assert float(found["sink", "naive", "2"]["value"]) == pytest.approx(0.2)


def test_cells_with_nothing_in_common():
    rows = [dataclasses.replace(r, id=r.id + "x") if r.method == "sink" else r for r in answers()]
    files = report(rows)
    found = [s for s in table(files, "statistics.csv") if s["versus"] and s["method"] == "sink"]
    assert found and all(s["value"] == "" for s in found)
    assert {s["remark"] for s in found} == {"the cells have no instance in common"}


def test_full_attention_that_gets_nothing_right():
    rows = [dataclasses.replace(r, metrics={"exact_match": 0.0}) for r in answers()]
    files = report(rows, draw=True)
    assert "full attention gets no instance right" in text(files)
    assert "score is the same in all cells" in text(files)
    assert "given_full_right.png" not in files and "gap.png" not in files


def test_rows_that_are_no_numbers_are_left_out_and_told():
    rows = passages()
    rows[0] = dataclasses.replace(rows[0], nll=float("nan"))
    rows[1] = dataclasses.replace(rows[1], entropy=float("inf"))
    files = report(rows)
    assert "books, naive, P=1: 2 rows without a finite score and entropy" in text(files)
    assert "nan" not in text(files).lower()


def test_fewer_items_than_segments():
    rows = [dataclasses.replace(r, segments=min(r.degree, 3)) for r in answers()]
    assert "Segments really filled, on average: 3 at P=4." in text(report(rows))


def test_metric_of_choice():
    rows = [dataclasses.replace(r, metrics=r.metrics | {"f1": 0.25}) for r in answers()]
    assert "| qa | f1 (%) | naive | 25.0 |" in text(report(rows, metrics={"qa": "f1"}))


def test_other_methods_and_names():
    rows = answers("a|b", methods=("naive", "sel-k5"))
    assert r"| a\|b | exact_match (%) | sel-k5 |" in text(report(rows))


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([], "there are no rows to report"),
        (answers() + answers()[:1], "instance 'qa/0': the instance is there twice"),
        (answers() + passages("qa"), "some are answers"),
        ([row("qa", "naive", 1, 0, nll=1.0, scored=0)], "`scored` is 0"),
        ([*answers(), row("qa", "naive", 8, 0, metrics={"f1": 1})], "no metric 'exact_match'"),
        ([row("qa", "naive", 1, 0, nll=float("nan"))], "no row has a finite score"),
    ],
)
def test_bad_rows(rows, says):
    with pytest.raises(EvalError, match=says):
        report(rows)
