"""The section of a report about clusters of sites: tables and pictures for its template."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from medfl.capability import Profile
from medfl.contract import Meta
from medfl.report.clusters import Cluster, clusters_of, scores_by_cluster
from medfl.report.curves import ends
from medfl.report.figures import Curve, Look, curves_figure, looks, svg
from medfl.report.formats import count, listed, score
from medfl.report.groups import Group, several
from medfl.report.runs import RunRecord
from medfl.report.scores import Value
from medfl.report.section import ReportData, TemplateSection
from medfl.report.sections import BANDS
from medfl.report.selection import key_metrics, named_runs
from medfl.report.words import metric_words

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
    names = list(dict.fromkeys(one.name for group in parts for run in group.runs for one in clusters_of(run)))
    shared = key_metrics(parts)
    metric = "accuracy" if "accuracy" in shared else shared[0] if shared else ""
    styles = looks(names)
    return {
        "placements": _placements(parts),
        "metric": metric_words(metric),
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
    found: dict[tuple[Cluster, ...], list[tuple[str, RunRecord]]] = {}
    for name, run in runs:
        found.setdefault(clusters_of(run), []).append((name, run))
    seeds = [{run.seed for _, run in members} for members in found.values()]
    by_seed = all(len(one) == 1 for one in seeds) and len(set.union(*seeds)) == len(seeds)
    return [
        {
            "name": "" if len(found) == 1 else _runs_named(members, by_seed),
            "machines": any(one.scores for one in clusters),
            "each": sum(len(one.spots) for one in clusters) <= SITES,
            "clusters": [_cluster(one) for one in clusters],
        }
        for clusters, members in found.items()
    ]


def _runs_named(members: Sequence[tuple[str, RunRecord]], by_seed: bool) -> str:
    return f"seed {members[0][1].seed}" if by_seed else listed([name for name, _ in members])


def _cluster(one: Cluster) -> Meta:
    told = "" if one.scores is None else f"scores {score(one.scores[0])} to {score(one.scores[1])}"
    return {
        "name": one.name,
        "sites": [spot.site for spot in one.spots],
        "told": ", ".join(filter(None, [count(len(one.spots), "site"), told])),
        "score": one.scores,
        "median": _machine(one.median),
        "rows": [{"site": spot.site, "cells": _machine(spot.profile), "score": spot.score} for spot in one.spots],
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
    curves = _curves(scores_by_cluster(group.runs, metric, split), list(styles))
    words, images = metric_words(metric), TESTS[split]
    if not curves:
        return {"svg": None, "caption": f"No curves of {group.label} on {images}: fewer than two rounds have scores."}
    figure = curves_figure(curves, styles, words)
    figure.axes[0].set_ylim(-0.02, 1.02)  # the same in all pictures, to compare them
    text = f"{group.label}: {words} of each cluster on {images}."
    return {"svg": svg(figure, name, f"{text} {ends(curves)}"), "caption": text}


def _curves(rows: pd.DataFrame, names: Sequence[str]) -> list[Curve]:
    """Mean over a cluster's sites after each round, with one standard deviation to both sides."""
    found = []
    for name in names:
        table = rows[rows["cluster"] == name].groupby("round")["value"].agg(["mean", "std"])
        if len(table) < 2:
            continue
        mean, spread = table["mean"], table["std"].fillna(0.0)
        low, high = (mean - spread).clip(lower=0.0), (mean + spread).clip(upper=1.0)
        band = (low.tolist(), high.tolist()) if len(names) <= BANDS else ((), ())
        found.append(Curve(name, table.index.astype(int).tolist(), mean.tolist(), *band))
    return found
