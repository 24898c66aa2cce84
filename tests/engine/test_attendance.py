"""Test the rounds that sites missed, as stretches and as a matrix."""

from __future__ import annotations

import hypothesis
from hypothesis import strategies as st

from medfl.engine.attendance import MISSED, NOT_REQUESTED, TOOK_PART, Stretches, add_missed_round, stretches


@hypothesis.given(st.lists(st.sets(st.sampled_from("abc")), max_size=12))
def test_stretches_are_the_rounds_that_were_missed(rounds: list[set[str]]) -> None:
    missed_rounds: Stretches = {}
    for number, sites in enumerate(rounds, 1):
        before = {site: [list(span) for span in spans] for site, spans in missed_rounds.items()}
        after = add_missed_round(missed_rounds, sites, number)
        assert missed_rounds == before, "the commit before keeps its own"
        missed_rounds = add_missed_round(after, sites, number)  # a second step of the same round
        assert missed_rounds == after
    for site in "abc":
        wanted = [number for number, sites in enumerate(rounds, 1) if site in sites]
        spans = missed_rounds.get(site, [])
        assert [number for first, last in spans for number in range(first, last + 1)] == wanted
        assert all(span[1] + 1 < after[0] for span, after in zip(spans, spans[1:], strict=False)), "they don't touch"


def test_a_matrix_has_every_round_of_every_site_once() -> None:
    rows = stretches({"b": {1: TOOK_PART, 2: TOOK_PART, 4: MISSED}, "a": {}}, 5)
    assert list(rows) == ["a", "b"]
    assert [(part.participation, part.first, part.last) for part in rows["b"]] == [
        (TOOK_PART, 1, 2),
        (NOT_REQUESTED, 3, 3),
        (MISSED, 4, 4),
        (NOT_REQUESTED, 5, 5),
    ]
    assert [part.description for part in rows["b"]][::2] == ["took part in rounds 1 to 2", "missed round 4"]
    assert [(part.participation, part.rounds) for part in rows["a"]] == [(NOT_REQUESTED, 5)]
    assert stretches({"a": {}}, 0) == {"a": []}
