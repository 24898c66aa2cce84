"""Which runs of a group may be averaged site by site, because a site's name stands for the same people in them."""

from __future__ import annotations

from collections.abc import Sequence

from medfl.report.formats import listed
from medfl.report.groups import Group
from medfl.report.runs import RunRecord


def same_people(group: Group) -> dict[str, list[RunRecord]]:
    """The runs of a group by the people at its sites, each part with a name; the name is empty if there is one part.

    Runs on the same data have the same people, and so have the folds of one seed, which differ in who of a site is
    tested; a group has several runs of a seed only if they are folds. Data of another seed may be dealt anew, and a
    site's name then stands for other people.
    """
    parts: list[list[RunRecord]] = []
    for run in group.runs:
        near = [part for part in parts if any(_alike(run, other) for other in part)]
        parts = [part for part in parts if part not in near] + [[*(one for part in near for one in part), run]]
    parts.sort(key=lambda part: [(run.seed, str(run.folder)) for run in part])
    return {_name(part) if len(parts) > 1 else "": part for part in parts}


def by_seed(group: Group) -> dict[int, list[RunRecord]]:
    """The runs of each seed of a group: one, or the folds of a partition."""
    found: dict[int, list[RunRecord]] = {}
    for run in group.runs:
        found.setdefault(run.seed, []).append(run)
    return found


def _alike(run: RunRecord, other: RunRecord) -> bool:
    return run.data == other.data or run.seed == other.seed


def _name(runs: Sequence[RunRecord]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"
