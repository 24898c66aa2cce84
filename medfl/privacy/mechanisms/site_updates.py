"""Privacy of whole sites: each site clips its update and adds Gaussian noise before the update leaves it."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

from medfl.privacy.composition import Part
from medfl.privacy.gaussian import SENSITIVITY, epsilon, noise_multiplier
from medfl.privacy.mechanisms.differential_privacy import DifferentialPrivacy
from medfl.privacy.policy import Guarantee
from medfl.privacy.statements import WHAT
from medfl.records.ledger import Adjacency, PrivacyUnit


class SiteUpdates(DifferentialPrivacy):
    """Each update is one Gaussian release of its site; all releases of the run compose exactly."""

    unit: ClassVar[PrivacyUnit] = "site"
    hides_sites: ClassVar[bool] = True
    noises_updates: ClassVar[bool] = True
    unit_noun: ClassVar[str] = "site"
    unit_phrase: ClassVar[str] = "a site"
    units: ClassVar[str] = "sites"
    releases: ClassVar[str] = "updates"

    def update_noise(self, releases: int) -> float:
        """Return the noise multiplier that keeps the budget over all updates of the site."""
        return noise_multiplier(self.privacy, releases)

    def release(self, images: int | None = None) -> Part:
        """Return one release; its noise spreads the budget over all rounds and depends on no number of images."""
        return Part(noise_multiplier(self.privacy, self.settings.rounds), 1)

    def releases_of_replies(self, replies: int) -> Part | None:
        """Return the releases of a site: every reply carries one update."""
        return replace(self.release(), count=replies)

    @classmethod
    def foreign_part(cls, part: Part, adjacency: Adjacency) -> Part | None:
        """Return None: noise for single images gives no known bound for a whole site."""
        return None

    def other_guarantee(self) -> Guarantee:
        """Return the guarantee of the same noise for the adjacency that the settings don't name."""
        together = replace(self.release(), count=self.settings.rounds)
        other = self.other_adjacency
        return Guarantee(other, self.epsilon_of([together], other), self.privacy.delta)

    def statement(self) -> str:
        """Return what the updates promise, by exact Gaussian composition."""
        privacy, releases, sigma = self.privacy, self.settings.rounds, self.release().sigma
        budgets = {name: epsilon(sigma, releases, privacy.delta, far) for name, far in SENSITIVITY.items()}
        chosen, other = privacy.adjacency, self.other_adjacency
        return (
            f"Unit {self.unit}: each update is clipped to L2 norm {privacy.clip:g} and carries Gaussian noise of "
            f"standard deviation {sigma * privacy.clip:.4g} ({sigma:.4g} times the bound), so that {releases} releases "
            f"together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon {budgets[chosen]:.4g} for "
            f"a {self.unit} that is {WHAT[chosen]} ('{chosen}', the adjacency of this run), or epsilon "
            f"{budgets[other]:.4g} for one that is {WHAT[other]} ('{other}'), by exact Gaussian composition "
            f"(accountant '{privacy.accountant}'); this covers the updates, not the scores, training losses and "
            "numbers of images in this report, nor whether a site replies."
        )
