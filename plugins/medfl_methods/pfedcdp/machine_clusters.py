"""Clusters of sites by the capability of their machines: each cluster has a network of its own.

A machine's profile holds seven numbers (`medfl_methods.pfedcdp.device_profiles.Profile`). From them come four shares
between 0 and 1, their weighted sum (the score), and a cluster: high, medium or low. Clusters are settled before the
first round.

Source: Shadin et al., PFedCDP, equations for C_cpu, C_mem, C_bat and C_net. Neither the paper nor its code gives
thresholds. The shares are clipped to [0, 1]: the paper's C_net is negative if the latency is above its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from medfl.engine.runs.network_assignment import NetworkAssignment, SiteFacts
from medfl.errors import SettingsError
from medfl.records.run_file import AssignedNetwork
from medfl.settings import Strict
from medfl_methods.pfedcdp.device_profiles import LIVE, SYNTHETIC, Profile, find_profiles, live, read_profile

Cluster = Literal["high", "medium", "low"]
"""Name of a cluster."""

CLUSTERS: tuple[Cluster, ...] = ("high", "medium", "low")
"""All clusters, the strongest first."""

SCORE, CLUSTER = "score", "cluster"
"""Names of the facts about a site in ``run.json``, beside those of its `Profile`."""


class Thresholds(Strict):
    """Smallest score of the clusters high and medium, in [0, 1]. A machine with less is in the cluster low."""

    high: float = Field(0.6, ge=0, le=1)
    medium: float = Field(0.4, ge=0, le=1)

    @model_validator(mode="after")
    def _in_order(self) -> Thresholds:
        if self.high < self.medium:
            raise ValueError(f"expected high >= medium, got {self.high} and {self.medium}")
        return self


class MachineClusters(NetworkAssignment):
    """Network assignment that puts sites into clusters by their machines.

    Attributes:
        profiles: Source of the machines' profiles. ``synthetic`` draws them from the run's seed. ``live`` measures this
            machine for all sites; between machines each site reports its own profile. Anything else is the path of a
            CSV file with a column ``site`` and those of `Profile`. None assigns no network.
        weights: Weights of processor, memory, battery and network; they sum to 1.
        thresholds: Smallest scores of the clusters high and medium. ``tertiles`` splits the sites into thirds, so that
            no cluster of three or more sites is empty.
        networks: Maps each cluster to the name of its network. One name for all makes one cluster.
    """

    profiles: str | None = SYNTHETIC
    weights: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    thresholds: Literal["tertiles"] | Thresholds = "tertiles"
    networks: dict[Cluster, str]

    @field_validator("weights")
    @classmethod
    def _sums_to_one(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if min(value) < 0 or not abs(math.fsum(value) - 1) <= 1e-9:
            raise ValueError("expected four weights >= 0 that sum to 1")
        return value

    @field_validator("networks")
    @classmethod
    def _all_named(cls, value: dict[Cluster, str]) -> dict[Cluster, str]:
        if set(value) != set(CLUSTERS):
            raise ValueError(f"expected a network for each of {list(CLUSTERS)}")
        return value

    @property
    def asks_sites(self) -> bool:
        """Whether each site of a run between machines reports the profile of its machine."""
        return self.profiles == LIVE

    def assign(self, sites: Sequence[str], seed: int) -> dict[str, AssignedNetwork]:
        """Return the network of each site, with the profile, the score and the cluster of its machine.

        Args:
            sites: Names of all sites.
            seed: Seed of synthetic profiles.

        Raises:
            SettingsError: If a profile is missing or impossible.
        """
        if self.profiles is None:
            return {}
        return self._by_profile(find_profiles(sites, self.profiles, seed))

    def check_between_machines(self) -> None:
        """Refuse a file of profiles: the sites don't have it.

        Raises:
            SettingsError: If `profiles` is the path of a file.
        """
        if self.profiles not in (SYNTHETIC, LIVE, None):
            raise SettingsError(
                "unsupported_setting",
                f"Between machines profiles are '{LIVE}', the profile that each site's own file lets it report, or "
                f"'{SYNTHETIC}'; got a file, which the sites don't have.",
                setting="profiles",
                expected=(LIVE, SYNTHETIC),
            )

    def measure(self) -> dict[str, float]:
        """Return the profile of this machine.

        Raises:
            SettingsError: If psutil is not installed.
        """
        return live().facts

    def check_facts(self, facts: SiteFacts, where: str) -> None:
        """Refuse facts that are no possible profile.

        Raises:
            SettingsError: If a number is missing, unknown or impossible.
        """
        read_profile(facts, where)

    def assign_reported(self, facts_by_site: Mapping[str, SiteFacts | None]) -> dict[str, AssignedNetwork]:
        """Return the network of each site by the profile that the site reported.

        A site that reports nothing gets the network of the weakest cluster, which any machine can train.

        Args:
            facts_by_site: Profile of each site, or None.
        """
        profiles = {site: Profile(**facts) for site, facts in facts_by_site.items() if facts is not None}
        return dict.fromkeys(facts_by_site, self._weakest) | self._by_profile(profiles)

    def assign_late(self, facts: SiteFacts | None, assigned: Mapping[str, AssignedNetwork]) -> AssignedNetwork:
        """Return the network of a site that joins after the clusters were settled.

        With fixed thresholds its cluster is the same as at the start. With ``tertiles`` it is the strongest cluster in
        which some machine has no larger score, or the weakest cluster if there is none.

        Args:
            facts: Profile of the site, or None.
            assigned: Networks that were assigned before.
        """
        if facts is None:
            return self._weakest
        profile = Profile(**facts)
        own = score(profile, self.weights)
        if isinstance(self.thresholds, Thresholds):
            cluster = clusters({"": own}, self.thresholds)[""]
        else:
            placed = [entry.facts for entry in assigned.values() if SCORE in entry.facts]
            reached = {entry[CLUSTER] for entry in placed if float(entry[SCORE]) <= own}
            cluster = next((name for name in CLUSTERS if name in reached), CLUSTERS[-1])
        return self._assigned(profile, own, cluster)

    @property
    def _weakest(self) -> AssignedNetwork:
        return AssignedNetwork(network=self.networks[CLUSTERS[-1]])

    def _by_profile(self, profiles: Mapping[str, Profile]) -> dict[str, AssignedNetwork]:
        scores = {site: score(profile, self.weights) for site, profile in profiles.items()}
        cluster_by_site = clusters(scores, self.thresholds)
        return {
            site: self._assigned(profile, scores[site], cluster_by_site[site]) for site, profile in profiles.items()
        }

    def _assigned(self, profile: Profile, machine_score: float, cluster: Cluster) -> AssignedNetwork:
        facts = profile.facts | {SCORE: machine_score, CLUSTER: cluster}
        return AssignedNetwork(network=self.networks[cluster], facts=facts)


def score(profile: Profile, weights: Sequence[float]) -> float:
    """Return the weighted sum of a machine's four shares, in [0, 1]."""
    return math.fsum(weight * share for weight, share in zip(weights, profile.shares, strict=True))


def clusters(scores: Mapping[str, float], thresholds: Literal["tertiles"] | Thresholds) -> dict[str, Cluster]:
    """Return each site's cluster.

    Args:
        scores: Maps each site to its score.
        thresholds: Fixed thresholds, or ``tertiles``: the sites with the largest scores are the first third. If the
            number of sites is no multiple of three, the clusters differ by one site at most. Of equal scores the first
            by name counts as the larger.
    """
    if isinstance(thresholds, Thresholds):

        def of(value: float) -> Cluster:
            return "high" if value >= thresholds.high else "medium" if value >= thresholds.medium else "low"

        return {site: of(value) for site, value in scores.items()}
    ranked = sorted(scores, key=lambda site: (-scores[site], site))
    return {site: CLUSTERS[rank * len(CLUSTERS) // len(ranked)] for rank, site in enumerate(ranked)}
