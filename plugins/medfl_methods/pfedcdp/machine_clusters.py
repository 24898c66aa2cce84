"""Clusters of sites by the capability of their machines. Each cluster has its own network.

The profile of a machine has seven numbers (`medfl_methods.pfedcdp.device_profiles.Profile`). They give four shares
between 0 and 1, whose weighted sum is the machine's score. The score decides the cluster: high, medium or low. Clusters
are fixed before the first round.

Source: Shadin et al., PFedCDP, equations for C_cpu, C_mem, C_bat and C_net. Neither the paper nor its code gives
thresholds. The shares are clipped to [0, 1], because the paper's C_net is negative if the latency is above its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from pydantic import Field, field_validator, model_validator

from medfl.engine.runs.network_assignment import MachineFacts, NetworkAssignment
from medfl.errors import SettingsError
from medfl.records.run_file import AssignedNetwork
from medfl.settings import StrictModel
from medfl_methods.pfedcdp.device_profiles import LIVE, SYNTHETIC, Profile, find_profiles, measure_profile, read_profile

ClusterName = Literal["high", "medium", "low"]
"""Name of a cluster of sites: sites with strong, medium or weak machines."""

CLUSTERS: tuple[ClusterName, ...] = ("high", "medium", "low")
"""Names of all clusters, from the strongest to the weakest machines."""

SCORE, CLUSTER = "score", "cluster"
"""Keys in the record ``run.json`` of a run, next to the numbers of a site's `Profile`. `SCORE`: score of the site's
machine; `CLUSTER`: name of the site's cluster."""


class Thresholds(StrictModel):
    """Fixed limits between the clusters, as scores of machines in [0, 1].

    Attributes:
        high: Smallest score in the cluster high.
        medium: Smallest score in the cluster medium. Machines with smaller scores are in the cluster low.
    """

    high: float = Field(0.6, ge=0, le=1)
    medium: float = Field(0.4, ge=0, le=1)

    @model_validator(mode="after")
    def _check_order(self) -> Thresholds:
        """Raise if the threshold of high is below that for medium."""
        if self.high < self.medium:
            raise ValueError(f"expected high >= medium, got {self.high} and {self.medium}")
        return self


class MachineClusters(NetworkAssignment):
    """Network assignment that puts sites into clusters by the capability of their machines.

    Attributes:
        profiles: Source of the machines' profiles. ``synthetic`` draws them from the run's seed. ``live`` measures this
            machine for all sites; in a run between machines each site reports its own profile. Any other text is the
            path of a CSV file with a column ``site`` and the columns of `Profile`. None assigns no network.
        weights: Weights of processor, memory, battery and network; they sum to 1.
        thresholds: Smallest scores of the clusters high and medium. ``tertiles`` splits the sites into thirds, so that
            no cluster of three or more sites is empty.
        networks: Mapping from each cluster to the name of its network. With the same name for all, the sites form one
            cluster.
    """

    profiles: str | None = SYNTHETIC
    weights: tuple[float, float, float, float] = (0.25, 0.25, 0.25, 0.25)
    thresholds: Literal["tertiles"] | Thresholds = "tertiles"
    networks: dict[ClusterName, str]

    @field_validator("weights")
    @classmethod
    def _check_sum(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        """Raise if a weight is negative or the weights do not sum to 1."""
        if min(value) < 0 or not abs(math.fsum(value) - 1) <= 1e-9:
            raise ValueError("expected four weights >= 0 that sum to 1")
        return value

    @field_validator("networks")
    @classmethod
    def _check_all_clusters(cls, value: dict[ClusterName, str]) -> dict[ClusterName, str]:
        """Raise if a cluster has no network."""
        if set(value) != set(CLUSTERS):
            raise ValueError(f"expected a network for each of {list(CLUSTERS)}")
        return value

    @property
    def asks_sites(self) -> bool:
        """True if each site of a run between machines reports the profile of its machine."""
        return self.profiles == LIVE

    def assign(self, sites: Sequence[str], seed: int) -> dict[str, AssignedNetwork]:
        """Return the assigned network of each site, with the profile, the score and the cluster of the site's machine.

        Args:
            sites: Names of all sites.
            seed: Seed of synthetic profiles.

        Raises:
            SettingsError: If a profile is missing or invalid.
        """
        if self.profiles is None:
            return {}
        return self._by_profile(find_profiles(sites, self.profiles, seed))

    def check_between_machines(self) -> None:
        """Raise if the profiles come from a file, which the sites of a run between machines do not have.

        Raises:
            SettingsError: If `profiles` is the path of a file.
        """
        if self.profiles not in (SYNTHETIC, LIVE, None):
            raise SettingsError(
                "unsupported_setting",
                f"In a run between machines, expected the profiles '{LIVE}' (reported by each site) or '{SYNTHETIC}', "
                "got a file, which the sites do not have.",
                setting="profiles",
                expected=(LIVE, SYNTHETIC),
            )

    def measure(self) -> dict[str, float]:
        """Measure the profile of this machine and return it, as a dict from field name to number, for a site's report.

        Raises:
            SettingsError: If psutil is not installed.
        """
        return measure_profile().facts

    def check_facts(self, facts: MachineFacts, where: str) -> None:
        """Raise if the numbers that a site reported are not a valid profile.

        Args:
            facts: Numbers by name, as reported by the site.
            where: Source of the numbers, for the message.

        Raises:
            SettingsError: If a number is missing, unknown or out of range.
        """
        read_profile(facts, where)

    def assign_reported(self, facts_by_site: Mapping[str, MachineFacts | None]) -> dict[str, AssignedNetwork]:
        """Return the assigned network of each site, by the machine profile that the site reported.

        A site without a profile gets the network of the weakest cluster, which any machine can train.

        Args:
            facts_by_site: Mapping from each site to the numbers of its profile, or to None if it reported none.
        """
        profiles = {site: Profile(**facts) for site, facts in facts_by_site.items() if facts is not None}
        return dict.fromkeys(facts_by_site, self._weakest) | self._by_profile(profiles)

    def assign_late(self, facts: MachineFacts | None, assigned: Mapping[str, AssignedNetwork]) -> AssignedNetwork:
        """Return the network of a site that joins after the clusters were fixed.

        With fixed thresholds the site gets the cluster of its score. With ``tertiles`` the site gets the strongest
        cluster that contains a machine with the same or a smaller score, or the weakest cluster if there is none.

        Args:
            facts: Numbers of the site's profile, or None if it reported none.
            assigned: Mapping from each earlier site to its assigned network.
        """
        if facts is None:
            return self._weakest
        profile = Profile(**facts)
        own = machine_score(profile, self.weights)
        if isinstance(self.thresholds, Thresholds):
            cluster = assign_clusters({"": own}, self.thresholds)[""]
        else:
            placed = [entry.facts for entry in assigned.values() if SCORE in entry.facts]
            reached = {entry[CLUSTER] for entry in placed if float(entry[SCORE]) <= own}
            cluster = next((name for name in CLUSTERS if name in reached), CLUSTERS[-1])
        return self._assigned(profile, own, cluster)

    @property
    def _weakest(self) -> AssignedNetwork:
        return AssignedNetwork(network=self.networks[CLUSTERS[-1]])

    def _by_profile(self, profiles: Mapping[str, Profile]) -> dict[str, AssignedNetwork]:
        scores = {site: machine_score(profile, self.weights) for site, profile in profiles.items()}
        cluster_by_site = assign_clusters(scores, self.thresholds)
        return {
            site: self._assigned(profile, scores[site], cluster_by_site[site]) for site, profile in profiles.items()
        }

    def _assigned(self, profile: Profile, machine_score: float, cluster: ClusterName) -> AssignedNetwork:
        facts = profile.facts | {SCORE: machine_score, CLUSTER: cluster}
        return AssignedNetwork(network=self.networks[cluster], facts=facts)


def machine_score(profile: Profile, weights: Sequence[float]) -> float:
    """Return the score of a machine: the weighted sum of its four shares, in [0, 1].

    Args:
        profile: Profile of the machine.
        weights: Weights of processor, memory, battery and network, summing to 1.
    """
    return math.fsum(weight * share for weight, share in zip(weights, profile.shares, strict=True))


def assign_clusters(
    scores: Mapping[str, float], thresholds: Literal["tertiles"] | Thresholds
) -> dict[str, ClusterName]:
    """Divide sites into clusters by the scores of their machines, and return a mapping from each site to its cluster.

    Args:
        scores: Mapping from each site to its score.
        thresholds: Fixed thresholds, or ``tertiles``, which puts the third of the sites with the largest scores into
            the cluster high. If the number of sites is not a multiple of three, the sizes differ by at most one. Among
            equal scores the first site by name counts as the larger.
    """
    if isinstance(thresholds, Thresholds):

        def cluster_of(value: float) -> ClusterName:
            return "high" if value >= thresholds.high else "medium" if value >= thresholds.medium else "low"

        return {site: cluster_of(value) for site, value in scores.items()}
    ranked = sorted(scores, key=lambda site: (-scores[site], site))
    return {site: CLUSTERS[rank * len(CLUSTERS) // len(ranked)] for rank, site in enumerate(ranked)}
