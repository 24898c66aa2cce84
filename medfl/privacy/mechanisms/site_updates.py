"""Privacy mechanism for whole sites: each site clips its update and adds Gaussian noise before the update leaves.

Release: one noised update, or under secure aggregation one noised sum, to which each site adds a share of the noise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from medfl.privacy.composition import NoisedReleases
from medfl.privacy.concentrated import calibrate_sum
from medfl.privacy.gaussian import SENSITIVITY, epsilon, noise_multiplier
from medfl.privacy.mechanisms.differential_privacy import DifferentialPrivacy
from medfl.privacy.policy import Guarantee, PrivacyPolicy
from medfl.privacy.statements import ADJACENCY_WORDS
from medfl.records.ledger import Adjacency


class SiteUpdates(DifferentialPrivacy):
    """Privacy policy for the unit ``site``. Each update is one Gaussian release; all releases compose exactly."""

    unit: ClassVar[str] = "site"
    accountant: ClassVar[str] = "gaussian"
    hides_sites: ClassVar[bool] = True
    noises_updates: ClassVar[bool] = True
    unit_noun: ClassVar[str] = "site"
    unit_phrase: ClassVar[str] = "a site"
    units: ClassVar[str] = "sites"
    releases: ClassVar[str] = "updates"

    @classmethod
    def for_sums(cls) -> type[PrivacyPolicy]:
        """Return `DistributedNoise`."""
        return DistributedNoise

    def update_noise(self, releases: int) -> float:
        """Return the noise multiplier that keeps the budget for all updates of the site together."""
        return noise_multiplier(self.privacy, releases)

    def release(self, images: int | None = None) -> NoisedReleases:
        """Return one release. Its noise covers all rounds and does not depend on the number of images."""
        return NoisedReleases(noise_multiplier(self.privacy, self.settings.rounds), 1)

    def releases_of_replies(self, replies: int) -> NoisedReleases | None:
        """Return the releases of a site: every reply carries one update."""
        return replace(self.release(), count=replies)

    @classmethod
    def foreign_part(cls, unit: str, part: NoisedReleases, adjacency: Adjacency) -> NoisedReleases | None:
        """Return None, because noise for a part of a site's data gives no known bound for a whole site."""
        return None

    def other_guarantee(self) -> Guarantee:
        """Return the guarantee of the same noise for the adjacency that the settings don't name."""
        together = replace(self.release(), count=self.settings.rounds)
        other = self.other_adjacency
        return Guarantee(other, self.epsilon_of([together], other), self.privacy.delta)

    def statement(self) -> str:
        """Return the guarantee of the updates, by exact Gaussian composition."""
        privacy, releases, sigma = self.privacy, self.settings.rounds, self.release().sigma
        budgets = {
            name: epsilon(sigma, releases, privacy.delta, sensitivity) for name, sensitivity in SENSITIVITY.items()
        }
        chosen, other = privacy.adjacency, self.other_adjacency
        return (
            f"Unit {self.unit}: each update is clipped to L2 norm {privacy.clip:g} and carries Gaussian noise of "
            f"standard deviation {sigma * privacy.clip:.4g} ({sigma:.4g} times the bound), so that {releases} releases "
            f"together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon {budgets[chosen]:.4g} for "
            f"a {self.unit} that is {ADJACENCY_WORDS[chosen]} ('{chosen}', the adjacency of this run), or epsilon "
            f"{budgets[other]:.4g} for one that is {ADJACENCY_WORDS[other]} ('{other}'), by exact Gaussian composition "
            f"(accountant '{self.accountant}'); this covers the updates, not the scores, training losses and "
            "numbers of images in this report, nor whether a site replies."
        )


class DistributedNoise(SiteUpdates):
    """Privacy policy for the unit ``site`` under secure aggregation. Each sum of updates is one release of its sites.

    The accounting uses concentrated differential privacy. An update that leaves a site outside of a sum carries the
    full noise of `SiteUpdates`.
    """

    def sum_noise(self) -> float:
        """Return the noise multiplier of the sum that keeps the budget for all rounds together."""
        return calibrate_sum(self.privacy, self.settings.rounds)

    def sum_clip(self) -> float:
        """Return the L2 bound of an update, for which the noise is calibrated."""
        return self.privacy.clip

    def release(self, images: int | None = None) -> NoisedReleases:
        """Return one release: the sum of the updates of a round."""
        return NoisedReleases(self.sum_noise(), 1, concentrated=True)

    def releases_of_replies(self, replies: int) -> NoisedReleases | None:
        """Return None, because a round has several replies for one sum."""
        return None

    def statement(self) -> str:
        """Return the guarantee of the sums, by concentrated differential privacy, and its trust assumptions."""
        privacy, releases, release = self.privacy, self.settings.rounds, self.release()
        together, threshold = replace(release, count=releases), self.threshold
        budgets = {name: self.epsilon_of([together], name) for name in SENSITIVITY}
        chosen, other = privacy.adjacency, self.other_adjacency
        return (
            f"Unit {self.unit}, noise of all sites together: each update is clipped to L2 norm {privacy.clip:g}, each "
            f"site adds a share of discrete Gaussian noise, and {threshold} shares make up a standard deviation of "
            f"{release.sigma * privacy.clip:.4g} ({release.sigma:.4g} times the bound) in the sum, so that {releases} "
            f"sums together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon "
            f"{budgets[chosen]:.4g} for a {self.unit} that is {ADJACENCY_WORDS[chosen]} ('{chosen}', the adjacency of "
            f"this run), or epsilon {budgets[other]:.4g} for one that is {ADJACENCY_WORDS[other]} ('{other}'), by "
            f"concentrated differential privacy. This holds while at least {threshold} of a round's participants "
            "follow the protocol: they add their share of noise and keep it secret, and the server sees the sum only. "
            "If fewer follow it, the sum has only their shares of noise; this covers the updates, not the scores, "
            "training losses and numbers of "
            "images in this report, nor whether a site replies."
        )
