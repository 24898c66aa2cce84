"""Groups of runs that differ only in seed and fold, and in data drawn for these.

Runs may be averaged site by site only if a site contains the same people in all of them (`same_people`). That holds for
runs on the same data, and for the folds of one seed, which differ in the people that are tested. Data of another seed
may be partitioned again, and a site then contains other people. A group has several runs of a seed only if
they are folds.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from medfl.engine.runs.records import RunRecord, common_output_names, describe_repetition
from medfl.errors import SettingsError
from medfl.objectives import Objective
from medfl.records.summary import ImageCounts
from medfl.types import Meta
from medfl.utils.formats import join_words
from medfl_report.statistics import fold_ratio

NETWORKS = "task.networks."
"""Prefix of the dotted names of the settings that name the networks."""


@dataclass(frozen=True)
class Group:
    """Group of runs that differ only in seed and fold.

    Attributes:
        label: Method, with the settings that distinguish it from other groups of the same method; or a label of the
            caller.
        runs: Runs, sorted by seed and then by fold.
    """

    label: str
    runs: tuple[RunRecord, ...]

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.runs[0].method

    @property
    def objective(self) -> Objective:
        """Objective of the runs."""
        return self.runs[0].objective

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the network outputs; empty if no run names them."""
        return common_output_names(self.runs)

    @property
    def repetitions(self) -> str:
        """Seeds of the runs, with their folds: ``0, 1`` or ``0 (folds 0, 1, 2)``."""
        return repetitions(self.runs)


def output_names(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return the names of the network outputs; empty if no run names them or the runs differ in them."""
    return common_output_names(run for group in groups for run in group.runs)


def group_runs(runs: Sequence[RunRecord], labels: Sequence[str] | None = None) -> list[Group]:
    """Group runs that differ only in seed and data, or that have the same label.

    Args:
        runs: The runs.
        labels: Label of each run; by default the method, with the settings that distinguish groups of one method.

    Raises:
        SettingsError: If a group has two runs with the same seed and fold, or with different numbers of folds for a
            seed.
    """
    members: dict[str, list[RunRecord]] = {}
    for run, key in zip(runs, labels or _keys(runs), strict=True):
        members.setdefault(key, []).append(run)
    names = list(members) if labels else _labels([of_group[0] for of_group in members.values()])
    groups = [
        Group(name, tuple(sorted(of_group, key=lambda run: (run.seed, -1 if run.fold is None else run.fold))))
        for name, of_group in zip(names, members.values(), strict=True)
    ]
    for group in groups:
        _check_repetitions(group)
    return groups


def _check_repetitions(group: Group) -> None:
    """Raise if two runs have the same seed and fold, or different numbers of folds for one seed."""
    for run, other in zip(group.runs, group.runs[1:], strict=False):
        places = f"'{run.folder}' and '{other.folder}'"
        if (run.seed, run.fold) == (other.seed, other.fold):
            fold = "" if run.fold is None else f" and the fold {run.fold}"
            raise SettingsError(
                "duplicate_run",
                f"Two runs of '{group.label}' have the seed {run.seed}{fold}: {places}. "
                "Give each run once, and compare runs on other data separately.",
                label=group.label,
                seed=run.seed,
                fold=run.fold,
                paths=[run.folder, other.folder],
            )
        if run.seed == other.seed and run.folds != other.folds:
            raise SettingsError(
                "unequal_folds",
                f"Two runs of '{group.label}' with the seed {run.seed} have different numbers of folds, "
                f"{run.folds or 'none'} and {other.folds or 'none'}: {places}. "
                "Compare only runs with the same number of folds.",
                label=group.label,
                seed=run.seed,
                folds=[run.folds, other.folds],
            )


def repetitions(runs: Sequence[RunRecord]) -> str:
    """Return the seeds of runs, with their folds: ``0, 1`` or ``0 (folds 0, 1, 2)``."""
    folds: dict[int, list[int]] = {}
    for run in runs:
        folds.setdefault(run.seed, []).extend([] if run.fold is None else [run.fold])
    return ", ".join(
        str(seed) + (f" (fold{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))})" if numbers else "")
        for seed, numbers in folds.items()
    )


def repeated_word(groups: Sequence[Group]) -> str:
    """Return a word for the repeated runs of a group.

    The word is ``seeds`` if they differ in seed, ``folds`` if in fold, ``runs`` if in both; empty without repetitions.
    """
    repeating = [group.runs for group in groups if len(group.runs) > 1]
    seeds = any(len({run.seed for run in runs}) > 1 for runs in repeating)
    folds = any(len({run.fold for run in runs}) > 1 for runs in repeating)
    return "runs" if seeds and folds else "folds" if folds else "seeds" if seeds else ""


def folds_among(runs: Sequence[RunRecord]) -> int | None:
    """Return the number of folds if runs test several of them (the smallest number if it differs); else None."""
    if None in {run.fold for run in runs} or len({run.fold for run in runs}) < 2:
        return None
    return min(run.folds for run in runs if run.folds)


UNKNOWN_RATIO = 1.0
"""Ratio for runs that do not know their numbers of images: test sets as large as the training sets."""


def split_ratio(runs: Sequence[RunRecord]) -> float | None:
    """Return the number of test images divided by the number of all other images, if runs have different splits.

    The ratio is 1 / (K - 1) for K folds. For data that are partitioned again for each seed it is the mean over the
    runs, or `UNKNOWN_RATIO` if no run knows its numbers of images.

    Returns:
        None if all runs have the same split.
    """
    folds = folds_among(runs)
    if folds is not None:
        return fold_ratio(folds)
    if len({run.data for run in runs}) < 2:
        return None
    ratios = [_test_ratio(run.holdings) for run in runs if run.holdings is not None]
    return sum(ratios) / len(ratios) if ratios else UNKNOWN_RATIO


def _test_ratio(holdings: ImageCounts) -> float:
    """Return the number of test images divided by the number of other images; `UNKNOWN_RATIO` without other images."""
    tested = sum(sum(splits.get("test", ())) for splits in holdings.sites.values())
    others = sum(sum(counts) for splits in holdings.sites.values() for name, counts in splits.items() if name != "test")
    return tested / others if others else UNKNOWN_RATIO


def pairs(group: Group, base: Group) -> list[tuple[RunRecord, RunRecord]]:
    """Return the pairs (run of `group`, run of `base`) with the same seed and data, hence the same fold.

    The pairs have the order of the runs in `group`.
    """
    partners = {(run.seed, run.data): run for run in base.runs}
    return [(run, partners[run.seed, run.data]) for run in group.runs if (run.seed, run.data) in partners]


def by_data(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Split the groups by data set; a site's name can stand for other images in another data set.

    Returns:
        Maps the name of each data set (`data_names`), empty for a single one, to the groups with their runs on it.
    """
    names = data_names([run for group in groups for run in group.runs])
    by_name: dict[str, list[Group]] = {}
    for data, name in names.items():
        parts = [Group(group.label, tuple(run for run in group.runs if run.data == data)) for group in groups]
        by_name[name] = [part for part in parts if part.runs]
    return by_name


def data_names(runs: Sequence[RunRecord]) -> dict[str, str]:
    """Return a mapping from the digest of each data set of the runs to a name.

    A name is ``data of seed 0``, ``data of seed 0, fold 2``, or ``data`` with a part of the digest; it is empty if
    there is only one data set.
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
    "seed and fold": lambda run: describe_repetition(run.seed, run.fold),
}


def data_per(runs: Sequence[RunRecord]) -> str:
    """Return what the data sets of the runs differ by.

    * ``seed``: each seed has its own data set;
    * ``seed and fold``: each combination of seed and fold has its own data set;
    * ``fold``: each fold has its own data set, the same for all seeds;
    * empty: there is only one data set, or no such correspondence.
    """
    ways = ["seed"] if all(run.fold is None for run in runs) else ["seed and fold", "fold"]
    for way in ways:
        drawn = {(_DRAWN_FOR[way](run), run.data) for run in runs}
        if len(drawn) == len({draw for draw, _ in drawn}) == len({data for _, data in drawn}) > 1:
            return way
    return ""


def same_people(group: Group) -> dict[str, list[RunRecord]]:
    """Split the runs of a group by the people at the sites.

    Returns:
        Mapping from the name of each set of people (empty for a single set) to the runs on these people.
    """
    parts = [[run for run in group.runs if run.data in data] for data in _people([group])]
    return {_seeds(part) if len(parts) > 1 else "": part for part in parts}


def by_people(groups: Sequence[Group]) -> dict[str, list[Group]]:
    """Split the groups by the people at the sites.

    Returns:
        Maps the name of each set of people, empty for a single one, to the groups with their runs on these people.
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
    """Return a mapping from each seed to the runs of a group with this seed: one run, or one for each fold."""
    runs_by_seed: dict[int, list[RunRecord]] = {}
    for run in group.runs:
        runs_by_seed.setdefault(run.seed, []).append(run)
    return runs_by_seed


def _people(groups: Sequence[Group]) -> list[set[str]]:
    """Return sets of data digests that are about the same people, in the order of the runs."""
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
    return f"seed{'s' if len(seeds) > 1 else ''} {join_words([str(seed) for seed in seeds])}"


def _keys(runs: Sequence[RunRecord]) -> list[str]:
    """Return a key for each run; runs with equal keys make a group.

    Networks that an assignment rule chose are part of the key only if runs of the same seed would else collide.
    """
    loose = [json.dumps(_identity(run, drawn=False), sort_keys=True) for run in runs]
    counts = Counter((key, run.seed, run.fold) for key, run in zip(loose, runs, strict=True))
    clashing = {key for (key, *_), times in counts.items() if times > 1}
    return [
        json.dumps(_identity(run), sort_keys=True) if key in clashing else key
        for key, run in zip(loose, runs, strict=True)
    ]


def _identity(run: RunRecord, drawn: bool = True) -> Meta:
    """Return all settings that distinguish two groups, by dotted name.

    Args:
        run: A run.
        drawn: True to include the networks that an assignment rule chose.
    """
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
    """Return the leaves of nested mappings by dotted name."""
    leaves: Meta = {}
    for name, value in values.items():
        leaves |= _flat(value, f"{path}{name}.") if isinstance(value, Mapping) else {path + name: value}
    return leaves


def _labels(runs: Sequence[RunRecord]) -> list[str]:
    """Return a label for each run: the method, with the settings in which runs of the same method differ.

    Networks are distinguished by name. If sites or networks differ in another way, the label has the folder's name.
    """
    labels = []
    for run in runs:
        same = [other for other in runs if other.method == run.method]
        loose = [_identity(other, drawn=False) for other in same]
        drawn = any(loose.count(identity) > 1 for identity in loose)  # nothing else distinguishes them
        settings, others = _identity(run, drawn), [_identity(other, drawn) for other in same]
        names = sorted({name for other in others for name in other.keys() | settings.keys()})
        differing = [name for name in names if any(other.get(name) != settings.get(name) for other in others)]
        parts = [_describe_setting(name, settings, others) for name in differing if not _is_long(name)]
        parts = list(dict.fromkeys(filter(None, parts)))
        if any(_is_long(name) for name in differing):
            by_name = len({_networks(other) for other in others}) > 1
            parts.append(f"network={_networks(settings)}" if by_name else run.folder.name)
        labels.append(f"{run.method} ({', '.join(parts)})" if parts else run.method)
    return labels


def _describe_setting(name: str, settings: Meta, others: Sequence[Meta]) -> str:
    """Return the text of a differing setting for a run's label; empty to leave it out.

    If a group of settings is None in some runs, such as privacy, the other runs are described by the settings of the
    group in which they differ, or else by the name of the group.

    Args:
        name: Dotted name of the setting.
        settings: Settings of the run.
        others: Settings of all runs of the method.
    """
    within = [above for other in others for above in other if other[above] is None and name.startswith(f"{above}.")]
    if not within:
        return f"{_short(name)}={_text(settings.get(name, 'default'))}"
    having = [other for other in others if name in other]
    siblings = {key for other in having for key in other if key.startswith(f"{within[0]}.")}
    differing = {key for key in siblings if any(other.get(key) != having[0].get(key) for other in having)}
    if name not in settings or (differing and name not in differing):
        return ""
    return f"{_short(name)}={_text(settings[name])}" if differing or len(siblings) == 1 else _short(within[0])


def _is_long(name: str) -> bool:
    return name == "sites" or name.startswith(NETWORKS)


def _networks(settings: Meta) -> str:
    return "+".join(sorted(name.removeprefix(NETWORKS) for name in settings if name.startswith(NETWORKS)))


def _short(name: str) -> str:
    return name.removeprefix("method_args.").removeprefix("settings.").removeprefix("task.")


def _text(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def constant_predictions(group: Group) -> str:
    """Return sentences about models of a group that predict the same for every image.

    Returns:
        A sentence for each finding, such as ``seeds 0, 1: The same prediction...``; empty without findings.
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
    """Return a short name for a set of runs: ``all runs``, ``local and fedper``, ``fedavg (seeds 0, 1)``.

    Args:
        chosen: At least one of the groups' runs.
        groups: All groups of the page.
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
    return "; ".join(f"{join_words(same)}{which}" for which, same in labels.items())
