"""Report section on clusters: the cluster of each site, by its machine or its network, and scores by cluster.

The network assignment ``machine_clusters`` gives each machine a score in [0, 1] from seven numbers, the machine's
profile, and puts the site into the cluster high, medium or low. Without this assignment, the sites with the same
network form a cluster. A group of runs contains the runs that differ only in seed or fold.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from medfl.engine.runs.records import RunRecord
from medfl.metrics import UNBOUNDED_METRICS
from medfl.records.run_file import AssignedNetwork
from medfl.types import NON_SITE_NAMES, Meta
from medfl.utils.formats import count, join_words, metric_words, score
from medfl_methods.pfedcdp.device_profiles import Profile
from medfl_methods.pfedcdp.machine_clusters import CLUSTER, CLUSTERS, SCORE
from medfl_report.curves import last_values
from medfl_report.figures import Curve, Look, curves_figure, looks, svg
from medfl_report.groups import Group, output_names, repeated_word
from medfl_report.scores import MeanAndSpread, key_metrics, named_runs
from medfl_report.section import ReportData, TemplateSection
from medfl_report.sections.standard import MAX_BANDS

DEFAULT_NETWORK_NAME = "the default network"
"""Name shown for the network of a site without a network setting, in a run that does not record the default."""


@dataclass(frozen=True)
class SitePlacement:
    """Cluster, network and machine of a site.

    Attributes:
        site: Name of the site.
        cluster: Cluster of the site's machine, ``high``, ``medium`` or ``low``; empty if the run did not use machine
            profiles.
        network: Name of the site's network.
        profile: Profile of the machine, seven numbers; None if the run did not use profiles.
        score: Score of the machine, in [0, 1]; None if the run did not use profiles.
    """

    site: str
    cluster: str
    network: str
    profile: Profile | None = None
    score: float | None = None

    @property
    def name(self) -> str:
        """Name of the cluster in the report, for example ``high (cnn_a)``; the network's name if `cluster` is empty."""
        return f"{self.cluster} ({self.network})" if self.cluster else self.network

    @property
    def sort_key(self) -> tuple[int, str, float, str]:
        """Sort key for the order of sites in the report.

        Clusters with the strongest machines come first; within a cluster the site with the highest score comes first.
        """
        rank = CLUSTERS.index(self.cluster) if self.cluster in CLUSTERS else len(CLUSTERS)
        return rank, self.network, -(self.score or 0.0), self.site


@dataclass(frozen=True)
class SiteCluster:
    """Sites of one cluster with the same network.

    Attributes:
        name: Name of the cluster in the report, for example ``high (cnn_a)``.
        spots: Placements of the cluster's sites, highest score first.
    """

    name: str
    spots: tuple[SitePlacement, ...]

    @property
    def scores(self) -> tuple[float, float] | None:
        """Lowest and highest score of the cluster's machines; None if the run did not use profiles."""
        known = [spot.score for spot in self.spots if spot.score is not None]
        return (min(known), max(known)) if known else None

    @property
    def median(self) -> Profile | None:
        """Profile with the median of each number over the cluster's machines; None if the run did not use profiles."""
        profiles = [spot.profile for spot in self.spots if spot.profile is not None]
        return Profile(*map(statistics.median, zip(*profiles, strict=True))) if profiles else None


def clusters_of(run: RunRecord) -> tuple[SiteCluster, ...]:
    """Return the clusters of a run, the strongest first.

    The result is empty if all sites have the same network and the run did not use machine profiles. A network that the
    settings name for a site takes precedence over the network of the site's cluster.
    """
    assigned = run.run.provenance.assigned_networks
    machines = {
        site: entry for site, entry in assigned.items() if {SCORE, CLUSTER, *Profile._fields} <= entry.facts.keys()
    }
    networks, usual = run.settings.networks_by_site | run.run.provenance.late_networks, _default_network(run)
    spots = [_site_placement(site, networks.get(site, usual), machines.get(site)) for site in run.sites]
    if not machines and len({spot.network for spot in spots}) < 2:
        return ()
    spots_by_cluster: dict[str, list[SitePlacement]] = {}
    for spot in sorted(spots, key=lambda spot: spot.sort_key):
        spots_by_cluster.setdefault(spot.name, []).append(spot)
    return tuple(SiteCluster(name, tuple(members)) for name, members in spots_by_cluster.items())


def _site_placement(site: str, network: str, machine: AssignedNetwork | None) -> SitePlacement:
    """Return cluster, network and machine of a site."""
    if machine is None:
        return SitePlacement(site, "", network)
    profile = Profile(*(float(machine.facts[name]) for name in Profile._fields))
    return SitePlacement(site, str(machine.facts[CLUSTER]), network, profile, float(machine.facts[SCORE]))


def _default_network(run: RunRecord) -> str:
    """Return the name of the network of sites for which no setting names one."""
    known = run.run.provenance.settings.get("network_name")
    names = list(run.run.identity.task.networks)
    return str(known.value) if known is not None else names[0] if len(names) == 1 else DEFAULT_NETWORK_NAME


def scores_by_cluster(runs: Sequence[RunRecord], metric: str, split: str = "test") -> pd.DataFrame:
    """Return the test scores of all sites after each round, as a table with the columns round, cluster and value.

    The scores are of the model that sites export: the personal model if there is one, else the global model. Undefined
    scores (NaN) are left out.

    Args:
        runs: Runs of one group.
        metric: Name of the score.
        split: Test images: ``test``, the site's own; or ``shared``, the server's, which all sites share.
    """
    tables = [pd.DataFrame({"round": [], "cluster": [], "value": []})]
    for run in runs:
        place = {spot.site: cluster.name for cluster in clusters_of(run) for spot in cluster.spots}
        rows = run.metrics
        rows = rows[(rows["moment"] == "aggregated") & (rows["split"] == split) & (rows["metric"] == metric)]
        rows = rows[~rows["site"].isin(NON_SITE_NAMES)]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        rows = rows[(rows["model"] == kind) & rows["site"].isin(place)]
        tables.append(rows.assign(cluster=rows["site"].map(place))[["round", "cluster", "value"]])
    scored = pd.concat([table for table in tables if len(table)] or tables[:1])
    return scored[scored["value"].notna()]


MAX_LISTED_SITES = 12
"""Maximum number of sites that the report's table lists one by one. With more sites, the table lists clusters with
medians."""


TEST_SPLITS = {"test": "the sites' own test images", "shared": "the server's test images, which all sites share"}
"""Mapping from each set of test images on which exported models are scored to a description for the report."""


class ClustersSection(TemplateSection):
    """Report section on clusters of sites by machine or network."""

    template = "clusters.html"
    """File name of the section's HTML template (Jinja), in the folder of this module."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template; None leaves the section out, because no run has clusters."""
        return {"clusters": clusters} if (clusters := clusters_section(data.groups)) else None


def clusters_section(groups: Sequence[Group]) -> Meta | None:
    """Return the variables of the section's template, or None if no run has clusters.

    Args:
        groups: Groups of runs on the page.
    """
    parts = [Group(group.label, kept) for group in groups if (kept := _runs_with_clusters(group))]
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
        "several": repeated_word(parts),
        "tests": [
            _scores_content(parts, metric, split, styles) for split in TEST_SPLITS if _has_scores(parts, metric, split)
        ],
    }


def _runs_with_clusters(group: Group) -> tuple[RunRecord, ...]:
    """Return the runs of a group that have clusters."""
    return tuple(run for run in group.runs if clusters_of(run))


# ---- sites by cluster


def _placements(groups: Sequence[Group]) -> list[Meta]:
    """Return each way in which sites were put into clusters, with the runs that used it."""
    runs = named_runs(groups)
    placements: dict[tuple[SiteCluster, ...], list[tuple[str, RunRecord]]] = {}
    for name, run in runs:
        placements.setdefault(clusters_of(run), []).append((name, run))
    seeds = [{run.seed for _, run in members} for members in placements.values()]
    by_seed = all(len(own_seeds) == 1 for own_seeds in seeds) and len(set.union(*seeds)) == len(seeds)
    return [
        {
            "name": "" if len(placements) == 1 else _placement_name(members, by_seed),
            "has_machines": any(cluster.scores for cluster in clusters),
            "lists_sites": sum(len(cluster.spots) for cluster in clusters) <= MAX_LISTED_SITES,
            "clusters": [_cluster_content(cluster) for cluster in clusters],
        }
        for clusters, members in placements.items()
    ]


def _placement_name(members: Sequence[tuple[str, RunRecord]], by_seed: bool) -> str:
    """Return the name of a placement: its seed, or the names of its runs."""
    return f"seed {members[0][1].seed}" if by_seed else join_words([name for name, _ in members])


def _cluster_content(cluster: SiteCluster) -> Meta:
    """Return the content of one cluster."""
    span = "" if cluster.scores is None else f"scores {score(cluster.scores[0])} to {score(cluster.scores[1])}"
    return {
        "name": cluster.name,
        "sites": [spot.site for spot in cluster.spots],
        "summary": ", ".join(filter(None, [count(len(cluster.spots), "site"), span])),
        "score": cluster.scores,
        "median": _machine_cells(cluster.median),
        "rows": [
            {"site": spot.site, "cells": _machine_cells(spot.profile), "score": spot.score} for spot in cluster.spots
        ],
    }


def _machine_cells(profile: Profile | None) -> list[str]:
    """Return processor, memory, battery and network of a machine as text."""
    if profile is None:
        return []
    return [
        f"{profile.cpu_mhz:.0f} of {profile.cpu_max_mhz:.0f} MHz",
        f"{profile.memory_free_gb:.1f} of {profile.memory_gb:.0f} GB",
        f"{profile.battery_percent:.0f} %",
        f"{profile.latency_ms:.0f} of {profile.latency_max_ms:.0f} ms",
    ]


# ---- scores by cluster


def _has_scores(groups: Sequence[Group], metric: str, split: str) -> bool:
    """Return whether runs have scores on a split; always True for the sites' own test images."""
    return split == "test" or any(len(scores_by_cluster(group.runs, metric, split)) for group in groups)


def _scores_content(groups: Sequence[Group], metric: str, split: str, styles: dict[str, Look]) -> Meta:
    """Return table and figures of the scores on a split."""
    return {
        "images": TEST_SPLITS[split],
        "rows": [_score_row(group, metric, split, list(styles)) for group in groups],
        "figures": [
            _cluster_figure(group, metric, split, styles, f"clusters{split}{n}") for n, group in enumerate(groups)
        ],
    }


def _score_row(group: Group, metric: str, split: str, names: Sequence[str]) -> Meta:
    """Return a group's score in each cluster after its last evaluated round, with the spread over the sites."""
    rows = _last_round_scores(group, metric, split)
    cells = []
    for name in names:
        values = rows[rows["cluster"] == name]["value"]
        cells.append(_mean_and_spread(values))
    return {"label": group.label, "cells": cells}


def _last_round_scores(group: Group, metric: str, split: str) -> pd.DataFrame:
    """Return the scores of each run's last evaluated round."""
    parts = [scores_by_cluster([run], metric, split) for run in group.runs]
    return pd.concat([rows[rows["round"] == rows["round"].max()] for rows in parts])


def _mean_and_spread(values: pd.Series[float]) -> MeanAndSpread:
    """Return mean and standard deviation of scores."""
    if values.empty:
        return MeanAndSpread(None)
    return MeanAndSpread(float(values.mean()), float(values.std()) if len(values) > 1 else None)


def _cluster_figure(group: Group, metric: str, split: str, styles: dict[str, Look], name: str) -> Meta:
    """Return curves of a group's clusters over the rounds; without a figure if fewer than two rounds have scores."""
    curves = _cluster_curves(scores_by_cluster(group.runs, metric, split), list(styles), metric in UNBOUNDED_METRICS)
    words, images = metric_words(metric, group.names), TEST_SPLITS[split]
    if not curves:
        return {"svg": None, "caption": f"No curves of {group.label} on {images}: fewer than two rounds have scores."}
    figure = curves_figure(curves, styles, words, metric not in UNBOUNDED_METRICS)
    if metric not in UNBOUNDED_METRICS:
        figure.axes[0].set_ylim(-0.02, 1.02)  # equal in all figures, so that they can be compared
    text = f"{group.label}: {words} of each cluster on {images}."
    return {"svg": svg(figure, name, f"{text} {last_values(curves)}"), "caption": text}


def _cluster_curves(rows: pd.DataFrame, names: Sequence[str], unbounded: bool = False) -> list[Curve]:
    """Return the mean over a cluster's sites after each round, with a band of one standard deviation."""
    curves = []
    for name in names:
        table = rows[rows["cluster"] == name].groupby("round")["value"].agg(["mean", "std"])
        if len(table) < 2:
            continue
        mean, spread = table["mean"], table["std"].fillna(0.0)
        low, high = mean - spread, mean + spread
        if not unbounded:
            low, high = low.clip(lower=0.0), high.clip(upper=1.0)
        band = (low.tolist(), high.tolist()) if len(names) <= MAX_BANDS else ((), ())
        curves.append(Curve(name, table.index.astype(int).tolist(), mean.tolist(), *band))
    return curves
