"""Which rounds a site took part in, and which it missed: it was asked, and nothing usable came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby

Stretches = dict[str, list[list[int]]]
"""Site to stretches of rounds, each its first and its last one, ascending."""


def with_missed(missed: Stretches, sites: Iterable[str], round_: int) -> Stretches:
    """The rounds that sites missed, with a further one.

    Args:
        missed: Of the rounds up to it; it stays as it is.
        sites: Those that missed this one, in a step of it at least.
        round_: Not below any in `missed`.
    """
    after = {site: [list(stretch) for stretch in stretches] for site, stretches in missed.items()}
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
        did = [known.get(round_, NOT_ASKED) for round_ in range(1, rounds + 1)]
        rows[site], at = [], 1
        for what, same in groupby(did):
            length = len(list(same))
            rows[site].append(Stretch(what, at, at + length - 1))
            at += length
    return rows
