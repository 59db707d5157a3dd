"""Lengths that share a bucket share its programs, by the counters that users have."""

from core.cases import model

import pce_jax as pce


def test_documents_of_a_hundred_lengths_compile_no_more_programs_than_buckets():
    lengths = range(93, 193)
    buckets = {pce.bucket(length) for length in lengths}
    assert len(buckets) == 3
    before = pce.programs.counts()
    for length in lengths:
        document = [token % model().config.vocab_size for token in range(length)]
        pce.encode(model(), pce.from_segments([document]))
    new = {name: count - before[name] for name, count in pce.programs.counts().items()}
    assert 0 < new.pop("encode") <= len(buckets)
    assert not any(new.values())
