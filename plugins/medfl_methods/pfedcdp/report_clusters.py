"""Section of the report about clusters: the cluster of each site by its machine, or by its network."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import UNBOUNDED
from medfl.records.run_file import AssignedNetwork
from medfl.types import NO_SITES, Meta
from medfl.utils.formats import count, listed, metric_words, score
from medfl_methods.pfedcdp.device_profiles import Profile
from medfl_methods.pfedcdp.machine_clusters import CLUSTER, CLUSTERS, SCORE
from medfl_report.curves import ends
from medfl_report.figures import Curve, Look, curves_figure, looks, svg
from medfl_report.groups import Group, output_names, several
from medfl_report.scores import Value, key_metrics, named_runs
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.standard import BANDS

DEFAULT = "the default network"
"""Of a site that no setting names a network for, in a run that does not say which it is."""


@dataclass(frozen=True)
class Spot:
    """A site's place.

    Attributes:
        site: Its name.
        cluster: By its machine; empty where machines play no part.
        network: Its network.
        profile: Of its machine, or None.
        score: Of its machine, in [0, 1], or None.
    """

    site: str
    cluster: str
    network: str
    profile: Profile | None = None
    score: float | None = None

    @property
    def name(self) -> str:
        """Of its cluster: ``high (cnn_a)``, or the network's name."""
        return f"{self.cluster} ({self.network})" if self.cluster else self.network

    @property
    def order(self) -> tuple[int, str, float, str]:
        """Where it stands in a table: strong clusters first, in each the highest score first."""
        rank = CLUSTERS.index(self.cluster) if self.cluster in CLUSTERS else len(CLUSTERS)
        return rank, self.network, -(self.score or 0.0), self.site


@dataclass(frozen=True)
class Cluster:
    """Sites of one cluster with one network.

    Attributes:
        name: As `Spot.name`.
        spots: The sites, with the highest score first.
    """

    name: str
    spots: tuple[Spot, ...]

    @property
    def scores(self) -> tuple[float, float] | None:
        """The lowest and the highest; None where machines play no part."""
        known = [spot.score for spot in self.spots if spot.score is not None]
        return (min(known), max(known)) if known else None

    @property
    def median(self) -> Profile | None:
        """The median of each number of the machines; None where they play no part."""
        profiles = [spot.profile for spot in self.spots if spot.profile is not None]
        return Profile(*map(statistics.median, zip(*profiles, strict=True))) if profiles else None


def clusters_of(run: RunRecord) -> tuple[Cluster, ...]:
    """The clusters of a run, the strongest first; none where all sites have one network and no machine was looked at.

    A network that the settings give a site counts, not that of its cluster.
    """
    assigned = run.run.provenance.assigned_networks
    machines = {
        site: entry for site, entry in assigned.items() if {SCORE, CLUSTER, *Profile._fields} <= entry.facts.keys()
    }
    networks, usual = run.settings.networks_by_site | run.run.provenance.late_networks, _default(run)
    spots = [_spot(site, networks.get(site, usual), machines.get(site)) for site in run.sites]
    if not machines and len({spot.network for spot in spots}) < 2:
        return ()
    spots_by_cluster: dict[str, list[Spot]] = {}
    for spot in sorted(spots, key=lambda spot: spot.order):
        spots_by_cluster.setdefault(spot.name, []).append(spot)
    return tuple(Cluster(name, tuple(members)) for name, members in spots_by_cluster.items())


def _spot(site: str, network: str, machine: AssignedNetwork | None) -> Spot:
    if machine is None:
        return Spot(site, "", network)
    profile = Profile(*(float(machine.facts[name]) for name in Profile._fields))
    return Spot(site, str(machine.facts[CLUSTER]), network, profile, float(machine.facts[SCORE]))


def _default(run: RunRecord) -> str:
    """Name of the network of sites that no setting names one for."""
    known = run.run.provenance.settings.get("network_name")
    names = list(run.run.identity.task.networks)
    return str(known.value) if known is not None else names[0] if len(names) == 1 else DEFAULT


def scores_by_cluster(runs: Sequence[RunRecord], metric: str, split: str = "test") -> pd.DataFrame:
    """The test scores of sites after each round, with their cluster: round, cluster, value; those that are defined.

    They are scores of the model that sites take home: the personal one where there is one, else the global one.

    Args:
        runs: Of one group.
        metric: Name of the score.
        split: ``test``, a site's own images; or ``shared``, those that all sites share.
    """
    tables = [pd.DataFrame({"round": [], "cluster": [], "value": []})]
    for run in runs:
        place = {spot.site: cluster.name for cluster in clusters_of(run) for spot in cluster.spots}
        rows = run.metrics
        rows = rows[(rows["moment"] == "aggregated") & (rows["split"] == split) & (rows["metric"] == metric)]
        rows = rows[~rows["site"].isin(NO_SITES)]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        rows = rows[(rows["model"] == kind) & rows["site"].isin(place)]
        tables.append(rows.assign(cluster=rows["site"].map(place))[["round", "cluster", "value"]])
    scored = pd.concat([table for table in tables if len(table)] or tables[:1])
    return scored[scored["value"].notna()]


SITES = 12
"""With more sites than this a table has a line for each cluster, with medians, instead of one for each site."""


TESTS = {"test": "the sites' own test images", "shared": "the server's test images, which all sites share"}
"""Splits on which the models that sites take home are scored, and what they are."""


class ClustersSection(TemplateSection):
    """Clusters of sites by machine or network."""

    template = "clusters.html"

    def content(self, data: ReportData) -> Meta | None:
        """Who is in which cluster, and how it scores."""
        return {"clusters": clusters} if (clusters := clusters_section(data.groups)) else None


def clusters_section(groups: Sequence[Group]) -> Meta | None:
    """The section; None where all sites of each run have one network and no machine was looked at."""
    parts = [Group(group.label, kept) for group in groups if (kept := _with_clusters(group))]
    if not parts:
        return None
    names = list(dict.fromkeys(cluster.name for group in parts for run in group.runs for cluster in clusters_of(run)))
    shared = key_metrics(parts)
    metric = "accuracy" if "accuracy" in shared else shared[0] if shared else ""
    styles = looks(names)
    return {
        "placements": _placements(parts),
        "metric": metric_words(metric, output_names(parts)),
        "names": names,
        "several": several(parts),
        "tests": [_scored(parts, metric, split, styles) for split in TESTS if _has_scores(parts, metric, split)],
    }


def _with_clusters(group: Group) -> tuple[RunRecord, ...]:
    return tuple(run for run in group.runs if clusters_of(run))


# ---- who is where


def _placements(groups: Sequence[Group]) -> list[Meta]:
    """Each way in which sites were put into clusters, with the runs in which they were."""
    runs = named_runs(groups)
    placements: dict[tuple[Cluster, ...], list[tuple[str, RunRecord]]] = {}
    for name, run in runs:
        placements.setdefault(clusters_of(run), []).append((name, run))
    seeds = [{run.seed for _, run in members} for members in placements.values()]
    by_seed = all(len(own_seeds) == 1 for own_seeds in seeds) and len(set.union(*seeds)) == len(seeds)
    return [
        {
            "name": "" if len(placements) == 1 else _runs_named(members, by_seed),
            "machines": any(cluster.scores for cluster in clusters),
            "each": sum(len(cluster.spots) for cluster in clusters) <= SITES,
            "clusters": [_cluster(cluster) for cluster in clusters],
        }
        for clusters, members in placements.items()
    ]


def _runs_named(members: Sequence[tuple[str, RunRecord]], by_seed: bool) -> str:
    return f"seed {members[0][1].seed}" if by_seed else listed([name for name, _ in members])


def _cluster(cluster: Cluster) -> Meta:
    span = "" if cluster.scores is None else f"scores {score(cluster.scores[0])} to {score(cluster.scores[1])}"
    return {
        "name": cluster.name,
        "sites": [spot.site for spot in cluster.spots],
        "told": ", ".join(filter(None, [count(len(cluster.spots), "site"), span])),
        "score": cluster.scores,
        "median": _machine(cluster.median),
        "rows": [{"site": spot.site, "cells": _machine(spot.profile), "score": spot.score} for spot in cluster.spots],
    }


def _machine(profile: Profile | None) -> list[str]:
    """Processor, memory, battery and network of a machine."""
    if profile is None:
        return []
    return [
        f"{profile.cpu_mhz:.0f} of {profile.cpu_max_mhz:.0f} MHz",
        f"{profile.memory_free_gb:.1f} of {profile.memory_gb:.0f} GB",
        f"{profile.battery_percent:.0f} %",
        f"{profile.latency_ms:.0f} of {profile.latency_max_ms:.0f} ms",
    ]


# ---- how they score


def _has_scores(groups: Sequence[Group], metric: str, split: str) -> bool:
    return split == "test" or any(len(scores_by_cluster(group.runs, metric, split)) for group in groups)


def _scored(groups: Sequence[Group], metric: str, split: str, styles: dict[str, Look]) -> Meta:
    """Table and pictures of the scores on some test images."""
    return {
        "images": TESTS[split],
        "rows": [_row(group, metric, split, list(styles)) for group in groups],
        "pictures": [_picture(group, metric, split, styles, f"clusters{split}{n}") for n, group in enumerate(groups)],
    }


def _row(group: Group, metric: str, split: str, names: Sequence[str]) -> Meta:
    """A group's score in each cluster after its last evaluated round, with the spread over the sites."""
    rows = _last_round(group, metric, split)
    cells = []
    for name in names:
        values = rows[rows["cluster"] == name]["value"]
        cells.append(_value(values))
    return {"label": group.label, "cells": cells}


def _last_round(group: Group, metric: str, split: str) -> pd.DataFrame:
    parts = [scores_by_cluster([run], metric, split) for run in group.runs]
    return pd.concat([rows[rows["round"] == rows["round"].max()] for rows in parts])


def _value(values: pd.Series[float]) -> Value:
    if values.empty:
        return Value(None)
    return Value(float(values.mean()), float(values.std()) if len(values) > 1 else None)


def _picture(group: Group, metric: str, split: str, styles: dict[str, Look], name: str) -> Meta:
    """Curves of a group's clusters over the rounds; without a picture where fewer than two were scored."""
    curves = _curves(scores_by_cluster(group.runs, metric, split), list(styles), metric in UNBOUNDED)
    words, images = metric_words(metric, group.names), TESTS[split]
    if not curves:
        return {"svg": None, "caption": f"No curves of {group.label} on {images}: fewer than two rounds have scores."}
    figure = curves_figure(curves, styles, words, metric not in UNBOUNDED)
    if metric not in UNBOUNDED:
        figure.axes[0].set_ylim(-0.02, 1.02)  # the same in all pictures, to compare them
    text = f"{group.label}: {words} of each cluster on {images}."
    return {"svg": svg(figure, name, f"{text} {ends(curves)}"), "caption": text}


def _curves(rows: pd.DataFrame, names: Sequence[str], unbounded: bool = False) -> list[Curve]:
    """Mean over a cluster's sites after each round, with one standard deviation to both sides."""
    curves = []
    for name in names:
        table = rows[rows["cluster"] == name].groupby("round")["value"].agg(["mean", "std"])
        if len(table) < 2:
            continue
        mean, spread = table["mean"], table["std"].fillna(0.0)
        low, high = mean - spread, mean + spread
        if not unbounded:
            low, high = low.clip(lower=0.0), high.clip(upper=1.0)
        band = (low.tolist(), high.tolist()) if len(names) <= BANDS else ((), ())
        curves.append(Curve(name, table.index.astype(int).tolist(), mean.tolist(), *band))
    return curves
