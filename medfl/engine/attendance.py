"""Which rounds a site took part in, and which it missed: it was asked, and nothing usable came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

Stretches = dict[str, list[list[int]]]
"""Site to stretches of rounds, each its first and its last one, ascending."""


def add_missed_round(missed_rounds: Stretches, sites: Iterable[str], round_: int) -> Stretches:
    """The rounds that sites missed, with a further one.

    Args:
        missed: Of the rounds up to it; it stays as it is.
        sites: Those that missed this one, in a step of it at least.
        round_: Not below any in `missed`.
    """
    after = {site: [list(stretch) for stretch in stretches] for site, stretches in missed_rounds.items()}
    for site in sites:
        stretches = after.setdefault(site, [])
        if stretches and stretches[-1][1] >= round_ - 1:
            stretches[-1][1] = round_
        else:
            stretches.append([round_, round_])
    return after


TOOK_PART, MISSED, NOT_ASKED = "took part", "missed", "not asked"
"""What a site did in a round."""


@dataclass(frozen=True)
class Stretch:
    """Rounds in a row in which a site did the same.

    Attributes:
        did: `TOOK_PART`, `MISSED` or `NOT_ASKED`.
        first: The first of them, >= 1.
        last: The last of them.
    """

    did: str
    first: int
    last: int

    @property
    def rounds(self) -> int:
        """How many."""
        return self.last - self.first + 1

    @property
    def look(self) -> str:
        """What a picture knows it by."""
        return {TOOK_PART: "took", MISSED: "missed"}.get(self.did, "skipped")

    @property
    def words(self) -> str:
        """As ``missed rounds 3 to 5``."""
        verb = {TOOK_PART: "took part in", MISSED: "missed"}.get(self.did, "was not asked in")
        return f"{verb} " + (f"round {self.first}" if self.rounds == 1 else f"rounds {self.first} to {self.last}")


def stretches(attendance: Mapping[str, Mapping[int, str]], rounds: int) -> dict[str, list[Stretch]]:
    """Site to its stretches, which together are all rounds.

    Args:
        attendance: Site to round to `TOOK_PART` or `MISSED`; a round that is not there it was not asked in.
        rounds: The last one, >= 0.
    """
    rows: dict[str, list[Stretch]] = {}
    for site, known in sorted(attendance.items()):
        rows[site], at = [], 1
        for round_ in sorted(round_ for round_ in known if 1 <= round_ <= rounds):  # the work of what is known alone
            _append(rows[site], NOT_ASKED, at, round_ - 1)
            _append(rows[site], known[round_], round_, round_)
            at = round_ + 1
        _append(rows[site], NOT_ASKED, at, rounds)
    return rows


def _append(row: list[Stretch], did: str, first: int, last: int) -> None:
    """Add a stretch, which is none where it ends before it begins, or which the last one grows by."""
    if row and row[-1].did == did and first <= last:
        row[-1] = Stretch(did, row[-1].first, last)
    elif first <= last:
        row.append(Stretch(did, first, last))
