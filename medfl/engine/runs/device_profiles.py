"""Which cluster of sites a site belongs to by what its machine can do.

The card of a machine holds seven raw numbers (`medfl.engine.runs.machines.Profile`); from them come four shares between
0 and 1, their weighted sum, and a cluster: high, medium or low. It is settled once, before the first round.

Source: Shadin et al., PFedCDP, equations for C_cpu, C_mem, C_bat and C_net, which neither the paper nor its code gives
thresholds for. The shares are clipped to [0, 1]: the paper's C_net is negative where the latency is above its maximum.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pydantic import Field, field_validator, model_validator

from medfl.engine.runs.machines import SYNTHETIC, Profile, find_profiles
from medfl.records.run_file import Cluster, Machine
from medfl.settings import Strict, read_settings

CLUSTERS: tuple[Cluster, ...] = ("high", "medium", "low")


class Thresholds(Strict):
    """From which score a machine is in the cluster, in [0, 1]; below `medium` it is low."""

    high: float = Field(0.6, ge=0, le=1)
    medium: float = Field(0.4, ge=0, le=1)

    @model_validator(mode="after")
    def _in_order(self) -> Thresholds:
        if self.high < self.medium:
            raise ValueError(f"expected high >= medium, got {self.high} and {self.medium}")
        return self


class Capability(Strict):
    """How sites are put into clusters, and which network each cluster gets.

    Attributes:
        profiles: Where profiles come from: ``synthetic`` draws them from `ARCHETYPES`, ``live`` measures this machine
            for all sites, anything else is a CSV file with a column ``site`` and those of `Profile`. Between machines
            ``live`` is what each site tells of its own, and no file is read.
        weights: Of processor, memory, battery and network; they sum to 1.
        thresholds: Scores from which a machine is high or medium; ``tertiles`` splits the sites into thirds, so that no
            cluster of three or more sites is empty.
        networks: Cluster to the name of its network. One name for all makes one cluster.
    """

    profiles: str = SYNTHETIC
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


class Placed(NamedTuple):
    """Where a site was put, and why."""

    profile: Profile
    score: float
    cluster: Cluster
    network: str

    @property
    def machine(self) -> Machine:
        """Record of it for ``run.json``."""
        profile = {name: float(value) for name, value in self.profile._asdict().items()}
        return Machine(profile=profile, score=self.score, cluster=self.cluster, network=self.network)


def place(sites: Sequence[str], capability: Capability, seed: int) -> dict[str, Placed]:
    """Put sites into clusters.

    Args:
        sites: Their names.
        capability: How.
        seed: Of made-up profiles.

    Raises:
        SettingsError: If a profile is missing or impossible.
    """
    return place_profiles(find_profiles(sites, capability.profiles, seed), capability)


def place_profiles(profiles: Mapping[str, Profile], capability: Capability) -> dict[str, Placed]:
    """`place` for machines that are known.

    Args:
        profiles: Site to its machine.
        capability: How.
    """
    scores = {site: score(profile, capability.weights) for site, profile in profiles.items()}
    clusters_ = clusters(scores, capability.thresholds)
    return {
        site: Placed(profiles[site], scores[site], clusters_[site], capability.networks[clusters_[site]])
        for site in profiles
    }


def place_late(profile: Profile, capability: Capability, placed: Sequence[tuple[float, Cluster]]) -> Placed:
    """Where a machine belongs that comes when the clusters are settled: nobody else changes place for it.

    With fixed thresholds it is where it would have been. With ``tertiles`` it is in the strongest cluster in which some
    machine has no larger score, and in the weakest one if there is none.

    Args:
        profile: The machine.
        capability: How.
        placed: Score and cluster of each machine that is placed.
    """
    own = score(profile, capability.weights)
    if isinstance(capability.thresholds, Thresholds):
        cluster = clusters({"": own}, capability.thresholds)[""]
    else:
        reached = {name for least, name in placed if least <= own}
        cluster = next((name for name in CLUSTERS if name in reached), CLUSTERS[-1])
    return Placed(profile, own, cluster, capability.networks[cluster])


def place_sites(sites: Sequence[str], settings: Mapping[str, Any] | None, seed: int) -> dict[str, Placed]:
    """`place` with settings as a user gives them; nothing where there are none.

    Raises:
        SettingsError: If they are not valid, or as `place`.
    """
    return {} if settings is None else place(sites, read_settings(Capability, dict(settings), "capability"), seed)


def score(profile: Profile, weights: Sequence[float]) -> float:
    """The weighted sum of a machine's four shares, in [0, 1]."""
    return math.fsum(weight * share for weight, share in zip(weights, profile.shares, strict=True))


def clusters(scores: Mapping[str, float], thresholds: Literal["tertiles"] | Thresholds) -> dict[str, Cluster]:
    """Each site's cluster.

    Args:
        scores: Site to score.
        thresholds: Fixed ones, or ``tertiles``: the sites with the largest scores are the first third. Where the number
            of sites is no multiple of three, the clusters differ by one site at most. Of equal scores the first by name
            counts as the larger.
    """
    if isinstance(thresholds, Thresholds):

        def of(value: float) -> Cluster:
            return "high" if value >= thresholds.high else "medium" if value >= thresholds.medium else "low"

        return {site: of(value) for site, value in scores.items()}
    ranked = sorted(scores, key=lambda site: (-scores[site], site))
    return {site: CLUSTERS[rank * len(CLUSTERS) // len(ranked)] for rank, site in enumerate(ranked)}
