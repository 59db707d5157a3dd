"""JSON key-value retrieval: made here, or read from the published files."""

import uuid
from collections.abc import Iterator, Sequence

from pce_jax.evals.instance import Instance
from pce_jax.evals.tasks.draws import stream
from pce_jax.evals.tasks.sources import Record, parse_json, records

_QUERY = (
    "}}\n\nExtract the value corresponding to the specified key in the JSON object above.\n\n"
    "Key: {key}\nCorresponding value:"
)
_LINE = '    "{key}": "{value}",\n'


def generate(id_: str, size: int, position: float | None, seed: int) -> Instance:
    """An instance of `size` random pairs.

    Args:
        id_: Of the instance; with `seed` it settles every draw.
        size: Number of pairs.
        position: Depth of the asked-for pair between 0 and 1; drawn with `None`.
        seed: Of all draws.
    """
    random = stream(seed, "kv", id_)
    pairs = [(_uuid(random.bytes(16)), _uuid(random.bytes(16))) for _ in range(size)]
    drawn = random.randint(size)
    key, value = pairs[drawn if position is None else round(position * (size - 1))]
    return _instance(id_, pairs, key, (value,))


def read(source: str) -> Iterator[Instance]:
    """Instances of Lost in the Middle (`ordered_kv_records`, `key`) or HELMET (`context`).

    Raises:
        SettingsError: It cannot be read, a row is malformed, or the key is not among the pairs.
    """
    for record in records(source):
        if "ordered_kv_records" in record.values:
            pairs, key = record.get("ordered_kv_records"), record.text("key")
            answers = record.get("value")
        else:
            pairs, key = _pairs_in(record), record.text("question")
            answers = record.get("answer")
        answers = tuple(answers) if isinstance(answers, list) else (answers,)
        if not isinstance(pairs, list) or not all(
            isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs
        ):
            raise record.error('"ordered_kv_records" must be a list of pairs of key and value.')
        for text in (*answers, *(text for pair in pairs for text in pair)):
            if not isinstance(text, str) or not text:
                raise record.error(f"keys and values must be texts, not {text!r:.60}.")
        if not any(key == one and value in answers for one, value in pairs):
            raise record.error(
                f"the key {key!r} with its value is not among the {len(pairs)} pairs."
            )
        yield _instance(str(record.number), pairs, key, answers)


def _pairs_in(record: Record) -> list[tuple[str, str]]:
    """The pairs of a JSON object behind a heading."""
    text = record.text("context")
    heading, brace, _ = text.partition("{")
    data = parse_json(text[len(heading) :], f'{record.where}, "context"') if brace else None
    if not isinstance(data, dict):
        raise record.error('"context" must hold a JSON object.')
    return list(data.items())


def _instance(
    id_: str, pairs: Sequence[Sequence[str]], key: str, answers: tuple[str, ...]
) -> Instance:
    """One item a pair; the braces are left out (the query closes), as in the paper's code."""
    return Instance(
        id=id_,
        items=tuple(_LINE.format(key=one, value=value) for one, value in pairs),
        query=_QUERY.format(key=key),
        answers=answers,
    )


def _uuid(data: bytes) -> str:
    return str(uuid.UUID(bytes=data, version=4))
