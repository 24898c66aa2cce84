"""Tables of runs: costs, image counts by site, settings, and bytes saved by quantisation.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from medfl.types import Meta
from medfl.utils.formats import setting_text
from medfl_report.groups import Group, data_names
from medfl_report.notices import NamedRun
from medfl_report.scores import class_names

COSTS = ("bytes_up", "bytes_down", "bytes_to_peers", "train_seconds", "evaluate_seconds")
"""Kinds of cost, which are fields of a run's summary: bytes sent and received, seconds of training and evaluation."""


@dataclass(frozen=True)
class Cost:
    """Cost of a run, or median cost of several runs.

    Attributes:
        name: Name of the run or group.
        total: Maps each of `COSTS` to its sum over all sites and rounds.
        each: Maps each of `COSTS` to its mean for one site and one round.
        sites: Maps each site to its `COSTS` over all rounds; empty for a median.
    """

    name: str
    total: dict[str, float]
    each: dict[str, float]
    sites: dict[str, dict[str, float]]

    @property
    def transferred(self) -> float:
        """Bytes sent and received by all sites: to the server, from the server, and to other sites."""
        return self.total["bytes_up"] + self.total["bytes_down"] + self.total["bytes_to_peers"]


@dataclass(frozen=True)
class ImageCounts:
    """Number of images of each class at each site.

    Attributes:
        name: Name of the data set, such as ``data of seed 0``; empty if the runs have only one data set.
        classes: Names of the classes.
        splits: Maps each split (``training``, ``validation``, ``test``) that has images to the counts by site.
    """

    name: str
    classes: list[str]
    splits: dict[str, dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class RunSetting:
    """Value of a setting, version or data hash, with the runs that have it.

    Attributes:
        name: Name of the setting.
        value: Value as text.
        origin: Origin of the value, such as ``bundle``; empty for values that no user chooses.
        runs: Names of the runs with this value; empty if all runs have it.
    """

    name: str
    value: str
    origin: str
    runs: tuple[str, ...] = ()


def costs(runs: Sequence[NamedRun]) -> list[Cost]:
    """Return the costs of the runs that are over."""
    run_costs = []
    for name, run in runs:
        if run.summary is None:
            continue
        sites = {site: {cost: getattr(spent, cost) for cost in COSTS} for site, spent in run.summary.costs.items()}
        if sites:
            total = {cost: sum(spent[cost] for spent in sites.values()) for cost in COSTS}
            shares = len(sites) * max(run.summary.rounds, 1)
            run_costs.append(Cost(name, total, {cost: value / shares for cost, value in total.items()}, sites))
    return run_costs


def median_cost(group: Group) -> Cost | None:
    """Return the median cost of a group's runs that are over; None if none is over."""
    of_runs = costs([(group.label, run) for run in group.runs])
    if not of_runs:
        return None
    return Cost(
        f"{group.label}, median of {len(of_runs)} runs" if len(of_runs) > 1 else group.label,
        {cost: median(spent.total[cost] for spent in of_runs) for cost in COSTS},
        {cost: median(spent.each[cost] for spent in of_runs) for cost in COSTS},
        {},
    )


def group_costs(groups: Sequence[Group]) -> list[Cost]:
    """Return the median cost of each group; an empty list if no group has several runs that are over."""
    if all(sum(run.summary is not None for run in group.runs) < 2 for group in groups):
        return []
    return [cost for group in groups if (cost := median_cost(group)) is not None]


def image_counts(runs: Sequence[NamedRun]) -> list[ImageCounts]:
    """Return the image counts of each data set."""
    names = data_names([run for _, run in runs])
    by_data: dict[str, ImageCounts] = {}
    for _, run in runs:
        record = run.holdings
        if record is None or run.data in by_data:
            continue
        splits = {
            split: {site: counts[split] for site, counts in record.sites.items() if split in counts}
            for split in ("training", "validation", "test")
        }
        filled = {split: sites for split, sites in splits.items() if any(map(any, sites.values()))}
        by_data[run.data] = ImageCounts(names[run.data], class_names(run), filled)
    return list(by_data.values())


def settings(runs: Sequence[NamedRun]) -> list[RunSetting]:
    """Return the settings of the runs with their values and origins."""
    return _merged(
        [
            (name, {key: (setting_text(setting.value), setting.origin) for key, setting in table.items()})
            for name, run in runs
            if (table := run.run.provenance.settings)
        ],
        len(runs),
    )


def surroundings(runs: Sequence[NamedRun]) -> list[RunSetting]:
    """Return the environment of the runs: software versions, threads, device and plugins."""
    tables = []
    for name, run in runs:
        plugins = [f"{plugin} ({origin})" for plugin, origin in run.run.provenance.plugins.items()]
        values: Meta = {**run.run.execution.model_dump(mode="json"), **run.run.versions.to_json(), "plugins": plugins}
        tables.append((name, {key: (setting_text(value), "") for key, value in values.items()}))
    return _merged(tables, len(runs))


def data_hashes(runs: Sequence[NamedRun]) -> list[RunSetting]:
    """Return the SHA-256 of all data together, and of the data of each site."""
    tables = []
    for name, run in runs:
        by_site = run.run.provenance.data.sites
        tables.append((name, {key: (value, "") for key, value in ({"all data": run.data} | by_site).items()}))
    return _merged(tables, len(runs))


def _merged(tables: Sequence[tuple[str, dict[str, tuple[str, str]]]], count: int) -> list[RunSetting]:
    """Return an entry for each name, or several if the runs differ.

    Args:
        tables: Pairs (name of the run, mapping from each name to (value, origin)).
        count: Number of runs of the page.
    """
    entries = []
    for key in dict.fromkeys(key for _, table in tables for key in table):
        runs_by_value: dict[tuple[str, str], list[str]] = {}
        for name, table in tables:
            if key in table:
                runs_by_value.setdefault(table[key], []).append(name)
        for (value, origin), names in runs_by_value.items():
            entries.append(RunSetting(key, value, origin, () if len(names) == count else tuple(names)))
    return entries


PLAIN = "bytes_up_plain"
"""Metric of the bytes that a site would have sent in a round without quantisation; quantised runs have it."""


@dataclass(frozen=True)
class Saving:
    """Bytes that all sites together send to the server in a round, as mean over the rounds.

    Attributes:
        name: Name of the run.
        bits: Number of bits of a quantised number.
        sent: Bytes that were sent.
        plain: Bytes without quantisation; None if the run did not record them.
    """

    name: str
    bits: int
    sent: float
    plain: float | None

    @property
    def share(self) -> float | None:
        """Saved share of the bytes, in [0, 1); None if it is not known."""
        return None if not self.plain else 1 - self.sent / self.plain


def savings(runs: Sequence[NamedRun]) -> list[Saving]:
    """Return the bytes that quantisation saved, for each run that quantises and has sent updates."""
    quantised = []
    for name, run in runs:
        compression = run.settings.compression
        table = run.metrics[run.metrics["split"] == "train"]
        sent, unquantised = (table[table["metric"] == metric] for metric in ("bytes_up", PLAIN))
        if not compression or sent.empty:
            continue
        rounds = sent["round"].nunique()
        whole = len(unquantised) == len(sent)  # a run that an earlier version started has these for some rounds only
        means = [float(rows["value"].sum()) / rounds for rows in (sent, unquantised)]
        quantised.append(Saving(name, compression.bits, means[0], means[1] if whole else None))
    return quantised
