"""Which cluster each site of a run is in, by what its machine can do, or by the network that it has."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from medfl.capability import CLUSTERS, Profile
from medfl.data.sites import NO_SITES
from medfl.report.runs import RunRecord

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
        found = [spot.score for spot in self.spots if spot.score is not None]
        return (min(found), max(found)) if found else None

    @property
    def median(self) -> Profile | None:
        """The median of each number of the machines; None where they play no part."""
        found = [spot.profile for spot in self.spots if spot.profile is not None]
        return Profile(*map(statistics.median, zip(*found, strict=True))) if found else None


def clusters_of(run: RunRecord) -> tuple[Cluster, ...]:
    """The clusters of a run, the strongest first; none where all sites have one network and no machine was looked at.

    A network that the settings give a site counts, not that of its cluster.
    """
    identity = run.run["identity"]
    capability: Mapping[str, Mapping[str, object]] = run.run.get("capability") or {}
    networks, usual = identity["settings"].get("networks") or {}, _default(run)
    spots = [_spot(site, networks.get(site, usual), capability.get(site)) for site in identity["sites"]]
    if not capability and len({spot.network for spot in spots}) < 2:
        return ()
    found: dict[str, list[Spot]] = {}
    for spot in sorted(spots, key=lambda spot: spot.order):
        found.setdefault(spot.name, []).append(spot)
    return tuple(Cluster(name, tuple(members)) for name, members in found.items())


def _spot(site: str, network: str, card: Mapping[str, object] | None) -> Spot:
    if card is None:
        return Spot(site, "", network)
    numbers = card["profile"]
    assert isinstance(numbers, Mapping)
    profile = Profile(**{name: float(numbers[name]) for name in Profile._fields})
    return Spot(site, str(card["cluster"]), network, profile, float(str(card["score"])))


def _default(run: RunRecord) -> str:
    """Name of the network of sites that no setting names one for."""
    known = run.run.get("settings", {}).get("network_name", {}).get("value")
    names = list(run.run["identity"]["task"]["networks"])
    return str(known) if known is not None else names[0] if len(names) == 1 else DEFAULT


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
        place = {spot.site: one.name for one in clusters_of(run) for spot in one.spots}
        rows = run.metrics
        rows = rows[(rows["moment"] == "aggregated") & (rows["split"] == split) & (rows["metric"] == metric)]
        rows = rows[~rows["site"].isin(NO_SITES)]
        kind = "personal" if (rows["model"] == "personal").any() else "global"
        rows = rows[(rows["model"] == kind) & rows["site"].isin(place)]
        tables.append(rows.assign(cluster=rows["site"].map(place))[["round", "cluster", "value"]])
    found = pd.concat([table for table in tables if len(table)] or tables[:1])
    return found[found["value"].notna()]
