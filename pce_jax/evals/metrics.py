"""Comparing an answer with what was expected, as HELMET and the paper's code do.

All take plain strings and return a number between 0 and 1.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence

_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_VERDICTS = frozenset({"yes", "no", "noanswer"})


def normalise(text: str) -> str:
    """SQuAD's normal form: lower case, no ASCII punctuation, no articles, single spaces.

    Example:
        >>> normalise("The  Eiffel Tower!")
        'eiffel tower'
    """
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(output: str, answer: str) -> float:
    """Whether the normal forms are equal."""
    return float(normalise(output) == normalise(answer))


def substring_exact_match(output: str, answer: str) -> float:
    """Whether the answer's normal form stands anywhere in the output's, inside a word too.

    An answer whose normal form is empty (`"The"`) is in every output, as in the published scorer.
    """
    return float(normalise(answer) in normalise(output))


def f1(output: str, answer: str) -> float:
    """Harmonic mean of precision and recall over the words of the normal forms.

    A yes, no or noanswer has no partial credit.
    """
    mine, theirs = normalise(output), normalise(answer)
    if mine != theirs and not _VERDICTS.isdisjoint((mine, theirs)):
        return 0.0
    words, expected = mine.split(), theirs.split()
    common = sum((Counter(words) & Counter(expected)).values())
    return 2 * common / (len(words) + len(expected)) if common else 0.0


def contained_share(output: str, parts: Sequence[str]) -> float:
    """Share of `parts` that stand in the output, whatever their case; nothing is normalised."""
    output = output.lower()
    return sum(part.lower() in output for part in parts) / len(parts)


def best_scores(output: str, answers: Sequence[str]) -> dict[str, float]:
    """Each metric of question answering, against the accepted answer that it likes best."""
    metrics = (substring_exact_match, exact_match, f1)
    return {
        metric.__name__: max(metric(output, answer) for answer in answers) for metric in metrics
    }


def parse_answer(output: str, prefix: str) -> str:
    r"""What stands behind the first `prefix`, up to the end of its line; else the first line.

    A prefix said twice in a row is taken off twice. Case does not matter.

    Example:
        >>> parse_answer("Label: label: 7\nWhy? ...", "label:")
        '7'
    """
    found = re.search(re.escape(prefix) + "(.*)", output, re.IGNORECASE)
    answer = (found[1] if found else output.partition("\n")[0]).strip()
    if answer.lower().startswith(prefix.lower()):
        answer = answer[len(prefix) :]
    return answer.strip()


def raw_or_parsed(output: str, answers: Sequence[str], prefix: str) -> dict[str, float]:
    """`best_scores` of the whole output or of the parsed answer, the better one of each metric."""
    raw, parsed = (best_scores(text, answers) for text in (output, parse_answer(output, prefix)))
    return {name: max(raw[name], parsed[name]) for name in raw}
