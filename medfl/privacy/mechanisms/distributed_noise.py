"""Privacy of whole sites with secure aggregation: the shares of noise of all sites add up in the sum of the updates."""

from __future__ import annotations

from dataclasses import replace

from medfl.privacy.composition import Part
from medfl.privacy.concentrated import calibrated
from medfl.privacy.gaussian import SENSITIVITY
from medfl.privacy.mechanisms.site_updates import SiteUpdates
from medfl.privacy.statements import WHAT


class DistributedNoise(SiteUpdates):
    """Each sum of updates is one release of all its sites, accounted by concentrated differential privacy.

    An update that left a site by itself would carry the whole noise of `SiteUpdates`.
    """

    def sum_noise(self) -> float:
        """Return the noise multiplier of the sum that keeps the budget over all rounds."""
        return calibrated(self.privacy, self.settings.rounds)

    def sum_clip(self) -> float:
        """Return the L2 bound that the noise is made for."""
        return self.privacy.clip

    def release(self, images: int | None = None) -> Part:
        """Return one release: the sum of the updates of a round."""
        return Part(self.sum_noise(), 1, concentrated=True)

    def releases_of_replies(self, replies: int) -> Part | None:
        """Return None: a round has several replies for one sum."""
        return None

    def statement(self) -> str:
        """Return what the sums promise, by concentrated differential privacy, and who has to follow the protocol."""
        privacy, releases, release = self.privacy, self.settings.rounds, self.release()
        together, threshold = replace(release, count=releases), self.threshold
        budgets = {name: self.epsilon_of([together], name) for name in SENSITIVITY}
        chosen, other = privacy.adjacency, self.other_adjacency
        return (
            f"Unit {self.unit}, noise of all sites together: each update is clipped to L2 norm {privacy.clip:g}, each "
            f"site adds a share of discrete Gaussian noise, and {threshold} shares make up a standard deviation of "
            f"{release.sigma * privacy.clip:.4g} ({release.sigma:.4g} times the bound) in the sum, so that {releases} "
            f"sums together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon "
            f"{budgets[chosen]:.4g} for a {self.unit} that is {WHAT[chosen]} ('{chosen}', the adjacency of this run), "
            f"or epsilon {budgets[other]:.4g} for one that is {WHAT[other]} ('{other}'), by concentrated differential "
            f"privacy. This holds while at least {threshold} of a round's participants follow the protocol: they add "
            "their share of noise and keep it to themselves, and the server sees the sum only. A site that is alone "
            "among others that do not has no noise of its own to rely on; this covers the updates, not the scores, "
            "training losses and numbers of images in this report, nor whether a site replies."
        )
