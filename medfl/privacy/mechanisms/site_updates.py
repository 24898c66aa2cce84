"""Privacy mechanism for whole sites: each site clips its update and adds Gaussian noise before the update leaves.

Release: one noised update, or under secure aggregation one noised sum, to which each site adds a share of the noise.
The privacy unit is the part of the data that the guarantee hides, here all data of a site.
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
    """Name of the privacy unit: all data of one site together."""
    accountant: ClassVar[str] = "gaussian"
    """Name of the accountant that composes the releases."""
    hides_sites: ClassVar[bool] = True
    """Whether the guarantee covers all data of a site together, not only single images."""
    noises_updates: ClassVar[bool] = True
    """Whether an update is clipped and noised as it leaves the site, after the training."""
    unit_noun: ClassVar[str] = "site"
    """Noun of the privacy unit, for tables."""
    unit_phrase: ClassVar[str] = "a site"
    """Noun of the privacy unit with an article, for sentences."""
    units: ClassVar[str] = "sites"
    """Plural noun of the privacy unit, for messages."""
    releases: ClassVar[str] = "updates"
    """Plural noun of a site's releases, for sentences."""

    @classmethod
    def for_sums(cls) -> type[PrivacyPolicy]:
        """Return the class of the policy for runs with secure aggregation, which discloses sums only."""
        return DistributedNoise

    def update_noise(self, releases: int) -> float:
        """Return the noise multiplier of an update as it leaves a site.

        Args:
            releases: Number of updates of the site that together keep the privacy budget.
        """
        return noise_multiplier(self.privacy, releases)

    def release(self, images: int | None = None) -> NoisedReleases:
        """Return the noise of one release of a site: one update.

        Args:
            images: Not used, because the noise does not depend on the number of images.
        """
        return NoisedReleases(noise_multiplier(self.privacy, self.settings.rounds), 1)

    def releases_of_replies(self, replies: int) -> NoisedReleases | None:
        """Return the releases of a site that sent a number of replies, each of which carries one noised update."""
        return replace(self.release(), count=replies)

    @classmethod
    def foreign_part(cls, unit: str, part: NoisedReleases, adjacency: Adjacency) -> NoisedReleases | None:
        """Convert releases of another privacy unit: return None, as they give no known bound for a whole site."""
        return None

    def other_guarantee(self) -> Guarantee:
        """Return the numbers of the guarantee for the adjacency that the settings don't choose, with the same noise."""
        together = replace(self.release(), count=self.settings.rounds)
        other = self.other_adjacency
        return Guarantee(other, self.epsilon_of([together], other), self.privacy.delta)

    def statement(self) -> str:
        """Return sentences about the guarantee of all updates of a site, for both adjacencies."""
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
        """Return the noise multiplier of a round's sum of updates, which keeps the budget for all rounds together."""
        return calibrate_sum(self.privacy, self.settings.rounds)

    def sum_clip(self) -> float:
        """Return the L2 bound to which each site clips its update before secure aggregation adds the updates."""
        return self.privacy.clip

    def release(self, images: int | None = None) -> NoisedReleases:
        """Return the noise of one release: the sum of the updates of a round.

        Args:
            images: Not used, because the noise does not depend on the number of images.
        """
        return NoisedReleases(self.sum_noise(), 1, concentrated=True)

    def releases_of_replies(self, replies: int) -> NoisedReleases | None:
        """Return None: the releases do not follow from a site's replies, as a round has several replies for one sum."""
        return None

    def statement(self) -> str:
        """Return sentences about the guarantee of all sums, for both adjacencies, and its trust assumptions."""
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
