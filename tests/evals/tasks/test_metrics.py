import pytest

from pce_jax.evals import metrics


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Eiffel\tTower!", "eiffel tower"),
        ("A man, a plan, an otter", "man plan otter"),
        ("card_arrival", "cardarrival"),
        ("theatre", "theatre"),
        ("«Émile»", "«émile»"),  # ASCII punctuation only
        ("The", ""),
    ],
)
def test_normal_form(text, normal):
    assert metrics.normalise(text) == normal


def test_matches():
    assert metrics.exact_match("the Nile.", "Nile") == 1
    assert metrics.exact_match("the Nile river", "Nile") == 0
    assert metrics.substring_exact_match("It is the Nile river", "nile") == 1
    assert metrics.substring_exact_match("juvenile", "Nile") == 1
    assert metrics.substring_exact_match("It is Ni", "Nile") == 0


@pytest.mark.parametrize(
    ("output", "answer", "expected"),
    [
        ("the blue Nile", "Nile", 2 / 3),
        ("Nile Nile", "Nile", 2 / 3),  # words are counted
        ("Rhine", "Nile", 0),
        ("", "Nile", 0),
        ("yes it is", "yes", 0),  # no partial credit for a verdict
        ("Yes.", "yes", 1),
        ("yes", "yes it is", 0),
    ],
)
def test_f1(output, answer, expected):
    assert metrics.f1(output, answer) == pytest.approx(expected)


def test_contained_share_ignores_case_and_nothing_else():
    assert metrics.contained_share("17 and AB-c", ["17", "ab-C", "99"]) == pytest.approx(2 / 3)
    assert metrics.contained_share("1,7", ["17"]) == 0


def test_each_metric_takes_the_answer_it_likes_best():
    scores = metrics.best_scores("the blue Nile", ["Nile", "blue river Nile", "Blue Nile"])
    assert scores == {"substring_exact_match": 1, "exact_match": 1, "f1": 1}


@pytest.mark.parametrize(
    ("output", "parsed"),
    [
        ("label: 7\nlabel: 8", "7"),
        ("I say LABEL:  label: 7 \n", "7"),
        ("no prefix here\nlabel 7", "no prefix here"),
        ("label:\n7", ""),
        ("", ""),
    ],
)
def test_parsing(output, parsed):
    assert metrics.parse_answer(output, "label:") == parsed


def test_the_better_of_raw_and_parsed():
    output = "Answer: Nile\nQuestion: where"
    assert metrics.raw_or_parsed(output, ["Nile"], "answer:") == {
        "substring_exact_match": 1,  # both
        "exact_match": 1,  # parsed
        "f1": 1,
    }
