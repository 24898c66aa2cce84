"""Participation of sites by round: rounds in which a site took part, missed its request, or received none."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Stretches = dict[str, list[list[int]]]
"""Maps each site to its stretches of missed rounds, ascending; a stretch is [first round, last round]."""


def add_missed_round(missed_rounds: Stretches, sites: Iterable[str], round_: int) -> Stretches:
    """Return a copy of the sites' missed rounds to which one more round is added.

    Args:
        missed_rounds: Missed rounds so far; not modified.
        sites: Sites that received a request in a step of the round and sent no usable reply.
        round_: Number of the round, >= every round in `missed_rounds`.
    """
    after = {site: [list(stretch) for stretch in stretches] for site, stretches in missed_rounds.items()}
    for site in sites:
        stretches = after.setdefault(site, [])
        if stretches and stretches[-1][1] >= round_ - 1:
            stretches[-1][1] = round_
        else:
            stretches.append([round_, round_])
    return after


TOOK_PART, MISSED, NOT_REQUESTED = "took part", "missed", "not asked"
"""Participation of a site in a round.

`TOOK_PART`: the site replied. `MISSED`: it received a request and sent no usable reply. `NOT_REQUESTED`: it received no
request.
"""


@dataclass(frozen=True)
class Stretch:
    """Consecutive rounds with the same participation of a site.

    Attributes:
        participation: `TOOK_PART`, `MISSED` or `NOT_REQUESTED`.
        first: First round, >= 1.
        last: Last round.
    """

    participation: str
    first: int
    last: int

    @property
    def rounds(self) -> int:
        """Number of rounds in the stretch."""
        return self.last - self.first + 1

    @property
    def css_class(self) -> str:
        """CSS class of the stretch in the report: ``took``, ``missed`` or ``skipped``."""
        return {TOOK_PART: "took", MISSED: "missed"}.get(self.participation, "skipped")

    @property
    def description(self) -> str:
        """Description of the stretch in words, such as ``missed rounds 3 to 5``."""
        verb = {TOOK_PART: "took part in", MISSED: "missed"}.get(self.participation, "was not asked in")
        return f"{verb} " + (f"round {self.first}" if self.rounds == 1 else f"rounds {self.first} to {self.last}")


def stretches(attendance: Mapping[str, Mapping[int, str]], rounds: int) -> dict[str, list[Stretch]]:
    """Return each site's stretches, which together cover all rounds.

    Args:
        attendance: Maps each site to a mapping from round to `TOOK_PART` or `MISSED`. In other rounds the site received
            no request.
        rounds: Last round, >= 0.
    """
    rows: dict[str, list[Stretch]] = {}
    for site, participation_by_round in sorted(attendance.items()):
        rows[site], at = [], 1
        # Only listed rounds are visited, so that a forged number of rounds costs nothing.
        for round_ in sorted(round_ for round_ in participation_by_round if 1 <= round_ <= rounds):
            _append(rows[site], NOT_REQUESTED, at, round_ - 1)
            _append(rows[site], participation_by_round[round_], round_, round_)
            at = round_ + 1
        _append(rows[site], NOT_REQUESTED, at, rounds)
    return rows


def _append(row: list[Stretch], participation: str, first: int, last: int) -> None:
    """Append a stretch to a row in place, merging it with an equal neighbour. Does nothing if it is empty."""
    if row and row[-1].participation == participation and first <= last:
        row[-1] = Stretch(participation, row[-1].first, last)
    elif first <= last:
        row.append(Stretch(participation, first, last))
