"""What runs cost, and what quantisation saves of the bytes that sites send up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from medfl.types import Meta
from medfl.utils.formats import plain
from medfl_report.groups import Group, data_names
from medfl_report.notices import Named
from medfl_report.scores import class_names

COSTS = ("bytes_up", "bytes_down", "bytes_to_peers", "train_seconds", "evaluate_seconds")


@dataclass(frozen=True)
class Cost:
    """What a run cost.

    Attributes:
        name: Of the run.
        total: Each of `COSTS`, over all sites and rounds.
        each: The same for one site and one round, on average.
        sites: The same for each site, over all rounds.
    """

    name: str
    total: dict[str, float]
    each: dict[str, float]
    sites: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Holding:
    """The images of each class that each site holds.

    Attributes:
        name: Of the data, as in `medfl_report.groups.data_names`.
        classes: Names of the classes.
        splits: ``training``, ``validation``, ``test`` to site to counts, without splits that are empty everywhere.
    """

    name: str
    classes: list[str]
    splits: dict[str, dict[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Fact:
    """A setting or another fact of runs.

    Attributes:
        name: Of the setting.
        value: As text.
        origin: Where it comes from; empty where nobody chooses.
        runs: The runs for which this holds; empty if for all.
    """

    name: str
    value: str
    origin: str
    runs: tuple[str, ...] = ()


def costs(runs: Sequence[Named]) -> list[Cost]:
    """The costs of the runs that are over."""
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


def group_costs(groups: Sequence[Group]) -> list[Cost]:
    """What a run of each group costs, as medians over its runs that are over; empty where no group has several."""
    by_group = {group.label: costs([(group.label, run) for run in group.runs]) for group in groups}
    if max(map(len, by_group.values()), default=0) < 2:
        return []
    return [
        Cost(
            f"{label}, median of {len(of_runs)} runs" if len(of_runs) > 1 else label,
            {cost: median(spent.total[cost] for spent in of_runs) for cost in COSTS},
            {cost: median(spent.each[cost] for spent in of_runs) for cost in COSTS},
            {},
        )
        for label, of_runs in by_group.items()
        if of_runs
    ]


def holdings(runs: Sequence[Named]) -> list[Holding]:
    """Who holds what, once for all runs on the same data."""
    names = data_names([run for _, run in runs])
    by_data: dict[str, Holding] = {}
    for _, run in runs:
        record = run.holdings
        if record is None or run.data in by_data:
            continue
        splits = {
            split: {site: counts[split] for site, counts in record.sites.items() if split in counts}
            for split in ("training", "validation", "test")
        }
        filled = {split: sites for split, sites in splits.items() if any(map(any, sites.values()))}
        by_data[run.data] = Holding(names[run.data], class_names(run), filled)
    return list(by_data.values())


def settings(runs: Sequence[Named]) -> list[Fact]:
    """Each setting with its value and origin."""
    return _merged(
        [
            (name, {key: (plain(setting.value), setting.origin) for key, setting in table.items()})
            for name, run in runs
            if (table := run.run.provenance.settings)
        ],
        len(runs),
    )


def surroundings(runs: Sequence[Named]) -> list[Fact]:
    """Versions, threads, device and plugins."""
    tables = []
    for name, run in runs:
        plugins = [f"{plugin} ({origin})" for plugin, origin in run.run.provenance.plugins.items()]
        facts: Meta = {**run.run.execution.model_dump(mode="json"), **run.run.versions.to_json(), "plugins": plugins}
        tables.append((name, {key: (plain(value), "") for key, value in facts.items()}))
    return _merged(tables, len(runs))


def data_hashes(runs: Sequence[Named]) -> list[Fact]:
    """SHA-256 of all data together, and of each holder's."""
    tables = []
    for name, run in runs:
        holders = run.run.provenance.data.sites
        tables.append((name, {key: (value, "") for key, value in ({"all data": run.data} | holders).items()}))
    return _merged(tables, len(runs))


def _merged(tables: Sequence[tuple[str, dict[str, tuple[str, str]]]], count: int) -> list[Fact]:
    """A fact for each name, or several where the runs differ."""
    facts = []
    for key in dict.fromkeys(key for _, table in tables for key in table):
        holders: dict[tuple[str, str], list[str]] = {}
        for name, table in tables:
            if key in table:
                holders.setdefault(table[key], []).append(name)
        for (value, origin), names in holders.items():
            facts.append(Fact(key, value, origin, () if len(names) == count else tuple(names)))
    return facts


PLAIN = "bytes_up_plain"
"""Metric of what a site would have sent in a round without quantisation; runs that quantise have it."""


@dataclass(frozen=True)
class Saving:
    """The bytes that all sites together send up in a round, on average over the rounds.

    Attributes:
        name: Of the run.
        bits: Of a quantised number.
        sent: As they travel.
        plain: Without quantisation; None in a run that did not note it down.
    """

    name: str
    bits: int
    sent: float
    plain: float | None

    @property
    def share(self) -> float | None:
        """The share that is saved, in [0, 1)."""
        return None if not self.plain else 1 - self.sent / self.plain


def savings(runs: Sequence[Named]) -> list[Saving]:
    """One for each run that quantises and has sent something."""
    quantised = []
    for name, run in runs:
        compression = run.settings.compression
        table = run.metrics[run.metrics["split"] == "train"]
        sent, plain = (table[table["metric"] == metric] for metric in ("bytes_up", PLAIN))
        if not compression or sent.empty:
            continue
        rounds = sent["round"].nunique()
        whole = len(plain) == len(sent)  # a run that an earlier version began has them for some rounds only
        means = [float(rows["value"].sum()) / rounds for rows in (sent, plain)]
        quantised.append(Saving(name, compression.bits, means[0], means[1] if whole else None))
    return quantised
