"""Which runs may be averaged site by site, because a site's name stands for the same people in them.

Runs on the same data have the same people, and so have the folds of one seed, which differ in who of a site is tested.
A group has several runs of a seed only if they are folds. Data of another seed may be dealt anew, and a site's name
then stands for other people.
"""

from __future__ import annotations

from collections.abc import Sequence

from medfl.report.formats import listed
from medfl.report.groups import Group, data_names
from medfl.runs.records import RunRecord


def same_people(group: Group) -> dict[str, list[RunRecord]]:
    """The runs of a group by the people at its sites, each part with a name; the name is empty if there is one part."""
    parts = [[run for run in group.runs if run.data in data] for data in _people([group])]
    return {_seeds(part) if len(parts) > 1 else "": part for part in parts}


def by_people(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups once for each set of people, cut to the runs on them, by a name for these.

    The name is empty where all runs have the same people.
    """
    runs = [run for group in groups for run in group.runs]
    names, parts = data_names(runs), _people(groups)
    seeds = [{run.seed for run in runs if run.data in data} for data in parts]
    apart = sum(map(len, seeds)) == len(set().union(*seeds))
    by_name = {}
    for data in parts:
        own = [run for run in runs if run.data in data]
        if len(parts) == 1:
            name = ""
        elif len(data) == 1:
            name = names[own[0].data]
        else:
            name = f"data of {_seeds(own)}" if apart else f"folds of data {own[0].data[:8]}"
        cut = [Group(group.label, tuple(run for run in group.runs if run.data in data)) for group in groups]
        by_name[name] = [group for group in cut if group.runs]
    return by_name


def by_seed(group: Group) -> dict[int, list[RunRecord]]:
    """The runs of each seed of a group: one, or the folds of a partition."""
    runs_by_seed: dict[int, list[RunRecord]] = {}
    for run in group.runs:
        runs_by_seed.setdefault(run.seed, []).append(run)
    return runs_by_seed


def _people(groups: Sequence[Group]) -> list[set[str]]:
    """The data of all runs, put together where they are of the same people; in the order of the runs."""
    parts: list[set[str]] = []
    for group in groups:
        for runs in by_seed(group).values():
            data = {run.data for run in runs}
            near = [part for part in parts if part & data]
            parts = [part for part in parts if part not in near] + [data.union(*near)]
    order = list(dict.fromkeys(run.data for group in groups for run in group.runs))
    return sorted(parts, key=lambda part: min(order.index(data) for data in part))


def _seeds(runs: Sequence[RunRecord]) -> str:
    seeds = sorted({run.seed for run in runs})
    return f"seed{'s' if len(seeds) > 1 else ''} {listed([str(seed) for seed in seeds])}"
