"""Runs that belong together: those that differ only in their seed, their fold, and data that were drawn for these.

Runs may be averaged site by site if a site's name stands for the same people in them (`same_people`). Runs on the same
data have the same people, and so have the folds of one seed, which differ in who of a site is tested. A group has
several runs of a seed only if they are folds. Data of another seed may be dealt anew, and a site's name then stands for
other people.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medfl.engine.runs.records import RunRecord, names_of, repetition
from medfl.errors import SettingsError
from medfl.objectives import Objective
from medfl.types import Meta
from medfl.utils.formats import listed

NETWORKS = "task.networks."


@dataclass(frozen=True)
class Group:
    """Runs that differ only in their seed and fold.

    Attributes:
        label: The method, with the settings in which it differs from other groups of the same method; or as given.
        runs: In the order of their seeds, and then of their folds.
    """

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def objective(self) -> Objective:
        """What was learned."""
        return self.runs[0].objective

    @property
    def names(self) -> tuple[str, ...]:
        """What each output of its networks is for; empty where nobody named them."""
        return names_of(self.runs)

    @property
    def repetitions(self) -> str:
        """Its seeds, and the folds of each seed that has some: ``0, 1`` or ``0 (folds 0, 1, 2)``."""
        return repetitions(self.runs)


def output_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """What each output of the groups' networks is for; empty where nobody named them, or they differ in that."""
    return names_of(run for group in groups for run in group.runs)


def group_runs(runs: Sequence[RunRecord], labels: Sequence[str] | None = None) -> list[Group]:
    """Put runs together that differ only in seed and data, or that have the same label.

    Args:
        runs: The runs.
        labels: One for each run; by default the method, with the settings in which it is there twice.

    Raises:
        SettingsError: If a group has two runs with the same seed and fold, or a seed with unlike numbers of folds.
    """
    members: dict[str, list[RunRecord]] = {}
    for run, key in zip(runs, labels or _keys(runs), strict=True):
        members.setdefault(key, []).append(run)
    names = list(members) if labels else _labels([alike[0] for alike in members.values()])
    groups = [
        Group(name, tuple(sorted(alike, key=lambda run: (run.seed, -1 if run.fold is None else run.fold))))
        for name, alike in zip(names, members.values(), strict=True)
    ]
    for group in groups:
        _check_repetitions(group)
    return groups


def _check_repetitions(group: Group) -> None:
    for run, other in zip(group.runs, group.runs[1:], strict=False):
        places = f"'{run.folder}' and '{other.folder}'"
        if (run.seed, run.fold) == (other.seed, other.fold):
            fold = "" if run.fold is None else f" and the fold {run.fold}"
            raise SettingsError(
                "duplicate_run",
                f"Two runs of '{group.label}' have the seed {run.seed}{fold}: {places}. "
                "Give each run once, and runs on other data in a comparison of their own.",
                label=group.label,
                seed=run.seed,
                fold=run.fold,
                paths=[run.folder, other.folder],
            )
        if run.seed == other.seed and run.folds != other.folds:
            raise SettingsError(
                "unequal_folds",
                f"Two runs of '{group.label}' with the seed {run.seed} have unlike numbers of folds, "
                f"{run.folds or 'none'} and {other.folds or 'none'}: {places}. "
                "Give those with one number of folds in a comparison of their own.",
                label=group.label,
                seed=run.seed,
                folds=[run.folds, other.folds],
            )


def repetitions(runs: Sequence[RunRecord]) -> str:
    """The seeds of some runs, and the folds of each seed that has some: ``0, 1`` or ``0 (folds 0, 1, 2)``."""
    folds: dict[int, list[int]] = {}
    for run in runs:
        folds.setdefault(run.seed, []).extend([] if run.fold is None else [run.fold])
    return ", ".join(
        str(seed) + (f" (fold{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})" if numbers else "")
        for seed, numbers in folds.items()
    )


def several(groups: Sequence[Group]) -> str:
    """What the runs of a group differ in: ``seeds``, ``folds``, or ``runs`` for both; empty if each has one run."""
    repeating = [group.runs for group in groups if len(group.runs) > 1]
    seeds = any(len({run.seed for run in runs}) > 1 for runs in repeating)
    folds = any(len({run.fold for run in runs}) > 1 for runs in repeating)
    return "runs" if seeds and folds else "folds" if folds else "seeds" if seeds else ""


def folds_among(runs: Sequence[RunRecord]) -> int | None:
    """How many folds there are where runs test several of them, the smallest number if it differs; else None."""
    if None in {run.fold for run in runs} or len({run.fold for run in runs}) < 2:
        return None
    return min(run.folds for run in runs if run.folds)


def pairs(group: Group, base: Group) -> list[tuple[RunRecord, RunRecord]]:
    """The runs of two groups with the same seed on the same data, which is the same fold, too; in the first's order."""
    partners = {(run.seed, run.data): run for run in base.runs}
    return [(run, partners[run.seed, run.data]) for run in group.runs if (run.seed, run.data) in partners]


def by_data(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """The groups once for each data set, cut to the runs on it, by a name for the data, as `data_names` gives it.

    The name is empty where all runs have the same data. A site's name may stand for other images in other data.
    """
    names = data_names([run for group in groups for run in group.runs])
    by_name: dict[str, list[Group]] = {}
    for data, name in names.items():
        parts = [Group(group.label, tuple(run for run in group.runs if run.data == data)) for group in groups]
        by_name[name] = [part for part in parts if part.runs]
    return by_name


def data_names(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Each data set of some runs to a name: ``data of seed 0``, ``data of seed 0, fold 2``, or a part of its hash.

    The name is empty where there is one data set only.
    """
    kinds = dict.fromkeys(run.data for run in runs)
    if len(kinds) == 1:
        return dict.fromkeys(kinds, "")
    way = data_per(runs)
    if not way:
        return {data: f"data {data[:8]}" for data in kinds}
    return {run.data: f"data of {_DRAWN_FOR[way](run)}" for run in runs}


_DRAWN_FOR: Mapping[str, Callable[[RunRecord], str]] = {
    "seed": lambda run: f"seed {run.seed}",
    "fold": lambda run: f"fold {run.fold}",
    "seed and fold": lambda run: repetition(run.seed, run.fold),
}


def data_per(runs: Sequence[RunRecord]) -> str:
    """What several data sets were drawn for: ``seed``, ``seed and fold``, or ``fold`` if all seeds share the folds.

    Empty if there is one data set only, or any is not that of one such draw and of all its runs.
    """
    ways = ["seed"] if all(run.fold is None for run in runs) else ["seed and fold", "fold"]
    for way in ways:
        drawn = {(_DRAWN_FOR[way](run), run.data) for run in runs}
        if len(drawn) == len({draw for draw, _ in drawn}) == len({data for _, data in drawn}) > 1:
            return way
    return ""


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


def _keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return the facts that the runs of a group share. Assigned networks count only among runs of the same seed."""
    loose = [json.dumps(_facts(run, drawn=False), sort_keys=True) for run in runs]
    counts = Counter((key, run.seed, run.fold) for key, run in zip(loose, runs, strict=True))
    clashing = {key for (key, *_), times in counts.items() if times > 1}
    return [
        json.dumps(_facts(run), sort_keys=True) if key in clashing else key
        for key, run in zip(loose, runs, strict=True)
    ]


def _facts(run: RunRecord, drawn: bool = True) -> Meta:
    """Return all that distinguishes two groups, by dotted name; networks that a rule assigned only with `drawn`."""
    identity, assigned = run.run.identity, run.run.provenance.assigned_networks
    settings = identity.settings
    by_rule = {} if drawn else {site: entry.network for site, entry in assigned.items()}
    kept = {site: name for site, name in run.settings.networks_by_site.items() if name != by_rule.get(site)}
    optimizer, brace, defaults = identity.task.optimizer.partition("{")
    return _flat(
        {
            "method": run.method,
            "method_args": identity.method_args,
            "settings": {name: value for name, value in settings.items() if name != "seed"} | {"networks": kept},
            "task": identity.task.to_json() | {"optimizer": optimizer},
            "optimizer": json.loads(brace + defaults or "{}"),
            "sites": list(identity.sites),
            "rounds": run.run.rounds,
        }
    )


def _flat(values: Mapping[str, Any], path: str = "") -> Meta:
    facts: Meta = {}
    for name, value in values.items():
        facts |= _flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return facts


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """The method of each run, with the facts in which runs of the same method differ.

    Networks are told apart by name; where sites or networks differ in another way, the folder's name says so.
    """
    labels = []
    for run in runs:
        same = [other for other in runs if other.method == run.method]
        loose = [_facts(other, drawn=False) for other in same]
        drawn = any(loose.count(settings) > 1 for settings in loose)  # nothing else tells them apart
        facts, others = _facts(run, drawn), [_facts(other, drawn) for other in same]
        names = sorted({name for other in others for name in other.keys() | facts.keys()})
        unlike = [name for name in names if any(other.get(name) != facts.get(name) for other in others)]
        parts = [_told(name, facts, others) for name in unlike if not _is_long(name)]
        parts = list(dict.fromkeys(filter(None, parts)))
        if any(_is_long(name) for name in unlike):
            by_name = len({_networks(other) for other in others}) > 1
            parts.append(f"network={_networks(facts)}" if by_name else run.folder.name)
        labels.append(f"{run.method} ({', '.join(parts)})" if parts else run.method)
    return labels


def _told(name: str, facts: Meta, others: Sequence[Meta]) -> str:
    """What a fact in which runs differ says of one of them; empty for nothing.

    Where a part of the settings is none in some runs, as privacy may be, the others are told by the facts of the part
    in which they differ among themselves, or else by its name.
    """
    within = [above for other in others for above in other if other[above] is None and name.startswith(f"{above}.")]
    if not within:
        return f"{_short(name)}={_text(facts.get(name, 'default'))}"
    having = [other for other in others if name in other]
    siblings = {key for other in having for key in other if key.startswith(f"{within[0]}.")}
    unlike = {key for key in siblings if any(other.get(key) != having[0].get(key) for other in having)}
    if name not in facts or (unlike and name not in unlike):
        return ""
    return f"{_short(name)}={_text(facts[name])}" if unlike or len(siblings) == 1 else _short(within[0])


def _is_long(name: str) -> bool:
    return name == "sites" or name.startswith(NETWORKS)


def _networks(facts: Meta) -> str:
    return "+".join(sorted(name.removeprefix(NETWORKS) for name in facts if name.startswith(NETWORKS)))


def _short(name: str) -> str:
    return name.removeprefix("method_args.").removeprefix("settings.").removeprefix("task.")


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def constant_predictions(group: Group) -> str:
    """Return what is known of models that predict the same for every image: ``seeds 0, 1: The same prediction...``.

    Returns:
        A sentence for each finding, with the seeds that have it in common; empty if there is none.
    """
    runs_by_sentence: dict[str, list[RunRecord]] = {}
    for run in group.runs:
        for entry in run.constant_predictions:
            runs_by_sentence.setdefault(entry.sentence, []).append(run)
    return " ".join(
        f"seed{'s' if len(runs) > 1 else ''} {repetitions(runs)}: {sentence}"
        for sentence, runs in runs_by_sentence.items()
    )


def name_runs(chosen: Collection[RunRecord], groups: Sequence[Group]) -> str:
    """Return in few words which runs are meant: ``all runs``, ``local and fedper``, ``fedavg (seeds 0, 1)``.

    Args:
        chosen: At least one of the groups' runs.
        groups: All groups that a reader sees.
    """
    folders = {run.folder for run in chosen}
    shown = [run for group in groups for run in group.runs]
    if len(shown) > 1 and all(run.folder in folders for run in shown):
        return "all runs"
    labels: dict[str, list[str]] = {}
    for group in groups:
        runs = [run for run in group.runs if run.folder in folders]
        if runs:
            which = "" if len(runs) == len(group.runs) else f" (seed{'s' if len(runs) > 1 else ''} {repetitions(runs)})"
            labels.setdefault(which, []).append(group.label)
    return "; ".join(f"{listed(same)}{which}" for which, same in labels.items())
