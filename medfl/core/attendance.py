"""Which rounds a site missed: it was asked, and nothing usable came."""

from __future__ import annotations

from collections.abc import Iterable

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
