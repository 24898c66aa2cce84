"""Privacy policy of a run: the object that decides noise, disclosure, compatibility and accounting.

`policy_of` returns the policy for the settings of a run. Each privacy mechanism is one subclass of `PrivacyPolicy`,
which a plugin lists by its unit in the hook `medfl_privacy_mechanisms`. All other code calls the policy instead of
reading the privacy setting.

The privacy unit is the part of the data that the guarantee hides, such as a site or one image. A release is one noised
value that leaves the site. A site's ledger is a file that lists the releases of one data set over all runs; its account
sums up the privacy that they spent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from medfl.errors import PluginError, RefusedError
from medfl.hooks import Capability
from medfl.plugins import look_up
from medfl.privacy.composition import NoisedReleases
from medfl.records.ledger import Adjacency, LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, Settings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from medfl.contract import Method, PayloadKind, Site
    from medfl.objectives import Objective
    from medfl.training.loop import StepStrategy
    from medfl.utils.metadata import Visibility


@dataclass(frozen=True)
class Guarantee:
    """Differential privacy guarantee of a run for one adjacency.

    Attributes:
        adjacency: Adjacency, ``add_remove`` or ``replace``.
        epsilon: Epsilon of all releases of the run together.
        delta: Delta of the guarantee.
        is_upper_bound: Whether epsilon is an upper bound, so that a smaller epsilon may also hold.
    """

    adjacency: str
    epsilon: float
    delta: float
    is_upper_bound: bool = False


class PrivacyPolicy(ABC):
    """Base class of privacy mechanisms. An object holds the settings of one run.

    Args:
        settings: Settings of the run.

    Attributes:
        unit: Name of the privacy unit: a site, or a part of one site's data. None without a guarantee.
        accountant: Name of the accountant that composes releases; empty without a guarantee.
        is_private: Whether the run has a differential privacy guarantee.
        hides_sites: Whether the guarantee covers all data of a site together.
        noises_training: Whether the training at a site adds the noise, to gradients of single images. Then everything
            computed from a trained model is private.
        noises_updates: Whether an update is clipped and noised as it leaves the site.
        discloses_integers: Whether integer and bool tensors of an update may leave the site.
        discloses_training_scores: Whether numbers about a site's training images may leave it.
        unit_noun: Noun of the unit, for tables.
        unit_phrase: Noun of the unit with an article, for sentences.
    """

    unit: ClassVar[str | None] = None
    accountant: ClassVar[str] = ""
    is_private: ClassVar[bool]
    hides_sites: ClassVar[bool] = False
    noises_training: ClassVar[bool] = False
    noises_updates: ClassVar[bool] = False
    discloses_integers: ClassVar[bool]
    discloses_training_scores: ClassVar[bool]
    unit_noun: ClassVar[str] = ""
    unit_phrase: ClassVar[str] = ""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings

    @classmethod
    def for_sums(cls) -> type[PrivacyPolicy]:
        """Return the class of the policy for runs with secure aggregation, in which updates leave a site in sums only.

        Without a mechanism of its own for sums, it is the class itself.
        """
        return cls

    @property
    def privacy(self) -> Privacy | None:
        """The privacy setting of the run."""
        return self.settings.privacy

    # ---- training, updates and sums

    def steps(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        site: Site,
        start: Callable[[], str],
        gradient_clip: float | None = None,
    ) -> StepStrategy | None:
        """Return the steps that replace the plain ones in a site's training, or None to keep the plain ones.

        Args:
            model: Model to train, on the task's device.
            optimizer: Optimizer of the parameters to train.
            site: Site that trains.
            start: Returns a hash of the model before the training.
            gradient_clip: Largest L2 norm of a batch's gradient, or None.
        """
        return None

    def update_noise(self, releases: int) -> float | None:
        """Return the noise multiplier of an update as it leaves a site, or None if it leaves without noise.

        Args:
            releases: Maximum number of updates that the site sends in the run.

        Raises:
            SettingsError: If no noise keeps the budget.
        """
        return None

    def sum_noise(self) -> float:
        """Return the noise multiplier of the sum of all updates under secure aggregation, 0 if it has no noise.

        Raises:
            SettingsError: If no noise keeps the budget.
        """
        return 0.0

    def sum_clip(self) -> float | None:
        """Return the L2 bound to which each site clips its update before secure aggregation adds the updates.

        Returns:
            None if the setting ``secure_aggregation.clip`` decides.
        """
        return None

    # ---- disclosure

    @abstractmethod
    def discloses(self, kind: PayloadKind) -> bool:
        """Return whether tensors of a kind may leave a site."""

    @abstractmethod
    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Return whether metadata with a declared visibility may leave a site."""

    @abstractmethod
    def discloses_peer_messages(self) -> bool:
        """Return whether a site may send messages to other sites."""

    @property
    def discloses_statistics(self) -> bool:
        """True if a site may disclose its numbers of images and of labels at the start of the run."""
        return not self.is_private and self.settings.secure_aggregation is None

    def check_payloads(self, kinds: Mapping[str, PayloadKind], site: str) -> None:
        """Check that all tensors of a reply may leave the site.

        Args:
            kinds: Maps the name of each tensor to its payload kind, such as ``update``.
            site: Name of the site, for the message.

        Raises:
            RefusedError: If a tensor may not leave the site.
        """
        if withheld := sorted(name for name, kind in kinds.items() if not self.discloses(kind)):
            name = withheld[0]
            raise RefusedError(
                "unprotected_payload",
                unprotected_message(f"site '{site}'", f"'{name}' ({kinds[name]})"),
                site=site,
                tensor=name,
                payload=kinds[name],
            )

    def check_peer_message(self, site: str) -> None:
        """Check that a site may send a message to another site.

        Raises:
            RefusedError: If the site may not send it.
        """
        if not self.discloses_peer_messages():
            raise RefusedError(
                "unprotected_payload",
                unprotected_message(f"site '{site}'", "a message for another site"),
                site=site,
                payload="peer_message",
            )

    # ---- compatibility

    def check_method(self, method: Method, name: str) -> None:
        """Check that a method can run under this policy.

        Args:
            method: The method.
            name: Name of the method.

        Raises:
            SettingsError: If the method can't run.
        """
        return

    def check_objective(self, objective: Objective) -> None:
        """Check that an objective can be trained under this policy.

        Raises:
            SettingsError: If the objective can't be trained.
        """
        return

    def check_secure_aggregation(self) -> None:
        """Check that the policy and the run's secure aggregation go together.

        Raises:
            SettingsError: If the two settings are not compatible.
        """
        return

    def check_run(self, networks: Sequence[nn.Module], images: Mapping[str, int], sites: int) -> None:
        """Check that the networks can keep the guarantee, and that delta is small enough for the number of units.

        Args:
            networks: One network of each kind that the run trains.
            images: Maps each site to its number of training images; only sites with a known number > 0.
            sites: Number of sites that are known to have training images.

        Raises:
            SettingsError: If the guarantee can't be kept, or delta is too large.
        """
        return

    def check_trainings(self, site: str, count: int) -> None:
        """Check the number of trainings in one step of a site.

        Args:
            site: Name of the site, for the message.
            count: Number of trainings in the step.

        Raises:
            ContractError: If the privacy account covers another number of trainings.
        """
        return

    # ---- accounting

    @property
    def planned_releases(self) -> int:
        """Maximum number of releases of a site in the run: one in each round."""
        return self.settings.rounds

    @property
    def threshold(self) -> int | None:
        """Number of sites whose shares of noise together make up the noise of a sum, under secure aggregation.

        None if each site adds the full noise itself, or no noise.
        """
        secure = self.settings.secure_aggregation
        return secure.resolved_threshold if self.is_private and secure is not None else None

    def release(self, images: int | None = None) -> NoisedReleases | None:
        """Return the noise of one release of a site: noise multiplier, number of noised steps, and sampling rate.

        Args:
            images: Number of the site's training images, or None if unknown.

        Returns:
            None without a guarantee, or if the noise depends on the number of images and that is unknown.

        Raises:
            SettingsError: If no noise keeps the budget.
        """
        return None

    def releases_of_replies(self, replies: int) -> NoisedReleases | None:
        """Return the releases of a site that sent a number of replies.

        Returns:
            None if the releases do not follow from the number of replies, or there is no guarantee.
        """
        return None

    @classmethod
    def part_of(cls, entry: LedgerEntry, adjacency: Adjacency) -> NoisedReleases | None:
        """Return the releases that a ledger's entry lists, converted to the privacy unit of this mechanism.

        Args:
            entry: Entry of a ledger: the releases of one run, of any privacy unit.
            adjacency: Adjacency of the guarantee that is computed from the result.

        Returns:
            None if no bound is known.
        """
        return None

    @classmethod
    def covers(cls, adjacency: Adjacency, unit: str, wanted: Adjacency) -> bool:
        """Return whether a guarantee of this mechanism implies another guarantee with the same epsilon and delta.

        Args:
            adjacency: Adjacency of this mechanism's guarantee.
            unit: Unit of the implied guarantee.
            wanted: Adjacency of the implied guarantee.
        """
        return False

    def redact(self, account: PrivacyAccount) -> PrivacyAccount:
        """Return a copy of a site's account without the numbers that its guarantee hides from the server."""
        return account

    # ---- statements

    def statement(self) -> str:
        """Return sentences about the guarantee for both adjacencies and about its accounting, for log and report.

        Returns:
            An empty text without a guarantee.
        """
        return ""

    def other_guarantee(self) -> Guarantee | None:
        """Return the numbers of the guarantee for the adjacency that the settings don't choose, with the same noise.

        Returns:
            None without a guarantee.
        """
        return None

    def describe_accounts(self, accounts: Mapping[str, PrivacyAccount]) -> str:
        """Return sentences about the releases of the run, and about the privacy that all runs on the data spent.

        Args:
            accounts: Maps each site to its account, which may be redacted.
        """
        return ""


class NoPrivacy(PrivacyPolicy):
    """Policy of a run without a privacy setting: no clipping, no noise, and every declared message may leave a site."""

    is_private: ClassVar[bool] = False
    """Whether the run has a differential privacy guarantee."""
    discloses_integers: ClassVar[bool] = True
    """Whether integer and bool tensors of an update may leave the site."""
    discloses_training_scores: ClassVar[bool] = True
    """Whether numbers about a site's training images may leave the site."""

    def discloses(self, kind: PayloadKind) -> bool:
        """Return whether tensors of a kind may leave a site: always True."""
        return True

    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Return whether metadata with a declared visibility may leave a site: always True."""
        return True

    def discloses_peer_messages(self) -> bool:
        """Return whether a site may send messages to other sites: always True."""
        return True


def mechanism_of(unit: str) -> type[PrivacyPolicy]:
    """Return the class of the privacy mechanism for a privacy unit, which a plugin provides.

    Raises:
        PluginError: If no plugin, or more than one, has a mechanism for that unit, or if it can't be imported.
    """
    return _checked(look_up("privacy_mechanism", unit, PrivacyPolicy), unit)


def _checked(kind: type[PrivacyPolicy], unit: str) -> type[PrivacyPolicy]:
    """Return the class of a mechanism after checking that its `unit` is the requested one."""
    if kind.unit != unit:
        raise PluginError(
            "wrong_name",
            f"Expected the privacy mechanism '{unit}' to have this name as its `unit`, got '{kind.unit}'. Its author "
            "can fix it.",
            expected=unit,
            found=kind.unit,
        )
    return kind


def policy_of(settings: Settings) -> PrivacyPolicy:
    """Return the privacy policy of a run.

    Raises:
        PluginError: If no plugin, or more than one, has a mechanism for the privacy unit, or if it can't be imported.
        SettingsError: If the settings are not possible for the mechanism.
    """
    if settings.privacy is None:
        return NoPrivacy(settings)
    unit = settings.privacy.unit
    kind = mechanism_of(unit)
    return (kind if settings.secure_aggregation is None else _checked(kind.for_sums(), unit))(settings)


def payloads_beside_updates(method: Method | type[Method]) -> list[str]:
    """Return a description of each payload other than updates that the sites of a method send, for messages."""
    other = [f"'{prefix}' ({kind})" for prefix, kind in sorted(method.sends.items()) if kind != "update"]
    if Capability.PEER_MESSAGES in method.supports:
        other.append("messages from site to site")
    if "pooled_data" in method.needs:
        other.append("the sites' raw data")
    needed = [key for key, field in method.sends_meta.items() if field.visibility == "needed"]
    return other + [f"'{key}' (metadata that it requires)" for key in needed]


def unprotected_message(sender: str, payload: str) -> str:
    """Return an error message about a payload that no privacy mechanism covers."""
    return (
        f"Privacy covers updates only, and {sender} would send {payload}. Choose a method that sends only updates, or "
        "leave the setting 'privacy' out."
    )
