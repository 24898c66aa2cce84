"""Privacy mechanism for single images: sites train by DP-SGD, so everything computed from a trained model is private.

Release: the noised steps of one training, which leave the site as a trained model. The privacy unit is the part of the
data that the guarantee hides, here one image. A site's account lists its releases and the privacy that they spent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
from torch import nn

from medfl.contract import Capability, Method, Site
from medfl.errors import ContractError, SettingsError
from medfl.objectives import Objective
from medfl.privacy.composition import NoisedReleases
from medfl.privacy.mechanisms.differential_privacy import DifferentialPrivacy
from medfl.privacy.policy import Guarantee, mechanism_of
from medfl.privacy.samples import PrivateSteps, check_samples, planned_steps, sampling_schedule
from medfl.privacy.statements import ADJACENCY_WORDS
from medfl.records.ledger import Adjacency
from medfl.records.privacy_account import PrivacyAccount


class DPSGD(DifferentialPrivacy):
    """Privacy policy for the unit ``sample``. Each training is one release, with one noised step for each batch."""

    unit: ClassVar[str] = "sample"
    """Name of the privacy unit: one training image of a site."""
    accountant: ClassVar[str] = "prv"
    """Name of the accountant that composes the releases."""
    noises_training: ClassVar[bool] = True
    """Whether the training itself adds the noise, to the gradients of single images."""
    unit_noun: ClassVar[str] = "image"
    """Noun of the privacy unit, for tables."""
    unit_phrase: ClassVar[str] = "an image"
    """Noun of the privacy unit with an article, for sentences."""
    units: ClassVar[str] = "training images"
    """Plural noun of the privacy unit, for messages."""
    releases: ClassVar[str] = "trainings"
    """Plural noun of a site's releases, for sentences."""

    def steps(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        site: Site,
        start: Callable[[], str],
        gradient_clip: float | None = None,
    ) -> PrivateSteps:
        """Return the steps of DP-SGD, which replace the plain steps of a site's training.

        A step draws a random batch, clips the gradient of each image and adds noise to the sum of the gradients.

        Args:
            model: Model to train, on the task's device.
            optimizer: Optimizer of the parameters to train.
            site: Site that trains.
            start: Returns a hash of the model before the training.
            gradient_clip: Largest L2 norm of the noised gradient of a batch, or None.
        """
        return PrivateSteps(model, optimizer, site, start(), gradient_clip)

    # ---- compatibility

    def check_method(self, method: Method, name: str) -> None:
        """Check that a method sends only updates, which depend on the data only through the loss of single images.

        Raises:
            SettingsError: If the method sends something else, or does not declare `Capability.DP_SGD`.
        """
        super().check_method(method, name)
        if Capability.DP_SGD not in method.active_supports:
            raise SettingsError(
                "method_not_supported",
                f"Privacy with the unit 'sample' covers training by the loss of each single image, but method '{name}' "
                "does not promise, by `Capability.DP_SGD` in `supports`, that its updates depend on the site's data in "
                "no other way. Choose another method or setting of it, or the unit 'site', which covers any update.",
                feature="dp_sgd",
                method=name,
            )

    def check_objective(self, objective: Objective) -> None:
        """Check that the objective has a loss for each single case.

        Raises:
            SettingsError: If the loss of the objective compares cases with each other.
        """
        if not objective.per_case_loss:
            raise SettingsError(
                "incompatible_settings",
                f"The privacy unit 'sample' needs a loss of each single case, but the loss of the objective "
                f"'{objective.name}' compares cases with each other. Choose the unit 'site'.",
                settings=["objective", "privacy.unit"],
                objective=objective.name,
            )

    def check_secure_aggregation(self) -> None:
        """Raise an error, because secure aggregation is only possible with the unit ``site``.

        Raises:
            SettingsError: Always.
        """
        raise SettingsError(
            "incompatible_settings",
            "Privacy with the unit 'sample' adds each site's own noise in its training and accounts for each step, but "
            "secure aggregation shares the noise of the unit 'site' among the sites. Choose that unit.",
            settings=["privacy.unit", "secure_aggregation"],
        )

    def check_run(self, networks: Sequence[nn.Module], images: Mapping[str, int], sites: int) -> None:
        """Check that no network mixes images, and that delta is small enough for the images of every site.

        Raises:
            SettingsError: If a check fails.
        """
        check_samples(self.settings, networks)
        if images:
            largest = max(images, key=lambda name: images[name])  # the largest n gives the strictest bound 1/n
            self.check_delta(images[largest], f"site '{largest}'")

    def check_trainings(self, site: str, count: int) -> None:
        """Check that a site trains exactly once in a step, because the account covers one training in a step.

        Args:
            site: Name of the site, for the message.
            count: Number of trainings in the step.

        Raises:
            ContractError: If the number is not 1.
        """
        if count != 1:
            raise ContractError(
                "several_trainings",
                f"Expected one training in a step of site '{site}', got {count}: with the privacy unit 'sample' the "
                "account covers one, so the method must not support `Capability.DP_SGD`.",
                site=site,
                expected=1,
                found=count,
            )

    # ---- accounting

    def release(self, images: int | None = None) -> NoisedReleases | None:
        """Return one release of a site: the noised steps of one training.

        Args:
            images: Number of the site's training images, on which noise and sampling rate depend, or None.

        Returns:
            None if the number of images is unknown.
        """
        if images is None:
            return None
        rate, count = sampling_schedule(self.settings, images)
        return NoisedReleases(planned_steps(self.settings, images).sigma, count, rate)

    @classmethod
    def foreign_part(cls, unit: str, part: NoisedReleases, adjacency: Adjacency) -> NoisedReleases | None:
        """Convert releases that protect another privacy unit into equivalent releases for the unit image.

        Only releases of a mechanism that hides whole sites can be converted; the result is None for any other unit. A
        noised update of a whole site also hides an image: a different image changes the update by at most twice the
        clipping bound. For ``replace``, the sensitivity is twice the bound already.
        """
        if not mechanism_of(unit).hides_sites:
            return None
        return replace(part, sigma=part.sigma / 2) if adjacency == "add_remove" else part

    def redact(self, account: PrivacyAccount) -> PrivacyAccount:
        """Return a copy of a site's account without the numbers that reveal its number of images.

        The sampling rate, the number of steps, the noise and the last digits of the composed epsilon follow from the
        number of images. The rate, the steps and the noise become None. Public bounds replace the epsilons: the budget
        of the run, and the site's total budget for several runs. The site's own files keep the numbers.

        Args:
            account: The account as `medfl.privacy.ledger.Account.report` returns it.
        """
        spent = account.stated_epsilon if account.releases else 0.0
        composed = spent if account.runs <= 1 else account.total_epsilon
        changes = {"sigma": None, "rate": None, "steps": None, "epsilon": spent, "composed": composed}
        return account.model_copy(update=changes)

    # ---- statements

    def other_guarantee(self) -> Guarantee:
        """Return the guarantee that the run's guarantee implies for the adjacency that the settings don't name.

        A replacement is a removal and an addition, so (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta). In
        the other direction epsilon and delta stay the same, as a removal changes a training at most as much as a
        replacement.
        """
        privacy = self.privacy
        if privacy.adjacency == "replace":
            return Guarantee(self.other_adjacency, privacy.epsilon, privacy.delta, is_upper_bound=True)
        delta = min(1.0, privacy.delta * (1 + math.exp(min(privacy.epsilon, 700))))
        return Guarantee(self.other_adjacency, 2 * privacy.epsilon, delta, is_upper_bound=True)

    def statement(self) -> str:
        """Return sentences about the guarantee of all trainings of the run, for both adjacencies."""
        privacy, other = self.privacy, self.other_guarantee()
        chosen = privacy.adjacency
        return (
            f"Unit sample: sites train by DP-SGD, which draws the images of each step at random, clips the gradient of "
            f"each to L2 norm {privacy.clip:g} and adds Gaussian noise to their sum. The noise at each site is such "
            f"that its trainings in {self.settings.rounds} rounds together are (epsilon, delta)-private with delta "
            f"{privacy.delta:g} and epsilon at most {privacy.epsilon:.4g} for an image that is "
            f"{ADJACENCY_WORDS[chosen]} ('{chosen}', the adjacency of this run), or at most epsilon "
            f"{other.epsilon:.4g} with delta {other.delta:.3g} for one that is {ADJACENCY_WORDS[other.adjacency]} "
            f"('{other.adjacency}'), by numerical composition (accountant '{self.accountant}'); a patient with m "
            "images is protected like m images at "
            "once, and how many images a site has is not hidden; this covers the trained models, not the scores, "
            "training losses and numbers of images in this report."
        )
