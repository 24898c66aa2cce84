"""The privacy policy of a run: one object that answers every question about its differential privacy.

`policy_of` returns the policy of a run's settings. Each mechanism is one subclass of `PrivacyPolicy`, which a plugin
lists by its unit in the hook `medfl_privacy_mechanisms`. All other code asks the policy and compares no setting.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from medfl.errors import PluginError, RefusedError
from medfl.hooks import Capability
from medfl.plugins import look_up
from medfl.privacy.composition import Part
from medfl.records.ledger import Adjacency, LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, Settings

if TYPE_CHECKING:
    import torch
    from torch import nn

    from medfl.contract import Method, PayloadKind, Site
    from medfl.objectives import Objective
    from medfl.training.loop import Steps
    from medfl.utils.metadata import Visibility


@dataclass(frozen=True)
class Guarantee:
    """The promise of a run for one adjacency.

    Attributes:
        adjacency: Neighbouring data sets.
        epsilon: Epsilon over all releases of the run.
        delta: Probability that the guarantee fails.
        is_upper_bound: Whether a smaller epsilon may hold, too.
    """

    adjacency: str
    epsilon: float
    delta: float
    is_upper_bound: bool = False


class PrivacyPolicy(ABC):
    """The answers of one privacy mechanism for the settings of a run.

    Args:
        settings: Settings of the run.

    Attributes:
        unit: Whose data are hidden: a site, or a part of one site's data. None if nothing is promised.
        accountant: Name of the accountant that composes releases; empty if nothing is promised.
        is_private: Whether the run promises differential privacy.
        hides_sites: Whether the promise covers all data of a site together.
        noises_training: Whether the noise is in a site's training: gradients of single images, drawn at random. Then
            whatever is computed from a trained model is private.
        noises_updates: Whether an update is clipped and noised as it leaves the site.
        discloses_integers: Whether integer and bool tensors of an update may leave the site.
        discloses_training_scores: Whether numbers about a site's training images may leave it.
        unit_noun: The unit as a noun, for tables.
        unit_phrase: The unit with an article, for sentences.
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
        """Return the class of the policy for runs with secure aggregation, whose updates leave in sums only."""
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
    ) -> Steps | None:
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
        """Return the L2 bound of an update in a sum, or None if secure aggregation's own setting decides."""
        return None

    # ---- disclosure

    @abstractmethod
    def discloses(self, kind: PayloadKind) -> bool:
        """Whether tensors of a kind may leave a site."""

    @abstractmethod
    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Whether metadata declared with a visibility may leave a site."""

    @abstractmethod
    def discloses_peer_messages(self) -> bool:
        """Whether a site may send messages to other sites."""

    @property
    def discloses_statistics(self) -> bool:
        """Whether a site states its number of images and of labels at the start of the run."""
        return not self.is_private and self.settings.secure_aggregation is None

    def check_payloads(self, kinds: Mapping[str, PayloadKind], site: str) -> None:
        """Check that all tensors of a reply may leave the site.

        Args:
            kinds: Maps the name of each tensor to its kind.
            site: Name of the site.

        Raises:
            RefusedError: If one may not.
        """
        if withheld := sorted(name for name, kind in kinds.items() if not self.discloses(kind)):
            name = withheld[0]
            raise RefusedError(
                "unprotected_payload",
                unprotected(f"site '{site}'", f"'{name}' ({kinds[name]})"),
                site=site,
                tensor=name,
                payload=kinds[name],
            )

    def check_peer_message(self, site: str) -> None:
        """Check that a site may send a message to another site.

        Raises:
            RefusedError: If it may not.
        """
        if not self.discloses_peer_messages():
            raise RefusedError(
                "unprotected_payload",
                unprotected(f"site '{site}'", "a parcel for another site"),
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
            SettingsError: If it can't.
        """
        return

    def check_objective(self, objective: Objective) -> None:
        """Check that an objective can be trained under this policy.

        Raises:
            SettingsError: If it can't.
        """
        return

    def check_secure_aggregation(self) -> None:
        """Check that the policy and the run's secure aggregation go together.

        Raises:
            SettingsError: If they don't.
        """
        return

    def check_run(self, networks: Sequence[nn.Module], images: Mapping[str, int], sites: int) -> None:
        """Check that the networks can keep the promise, and that delta is small enough for the number of units.

        Args:
            networks: One network of each kind that is trained.
            images: Maps each site to its number of training images, as far as known here and not zero.
            sites: Number of sites that have training images, as far as known.

        Raises:
            SettingsError: If the promise can't be kept or is empty.
        """
        return

    def check_trainings(self, site: str, count: int) -> None:
        """Check the number of trainings in one step of a site.

        Raises:
            ContractError: If the account covers another number.
        """
        return

    # ---- accounting

    @property
    def planned_releases(self) -> int:
        """Maximum number of releases of a site in the run: one in each round."""
        return self.settings.rounds

    @property
    def threshold(self) -> int | None:
        """Number of sites whose shares add up to the noise, or None if the noise is the site's own."""
        secure = self.settings.secure_aggregation
        return secure.resolved_threshold if self.is_private and secure is not None else None

    def release(self, images: int | None = None) -> Part | None:
        """Return the noised steps of one release of a site.

        Args:
            images: Number of the site's training images, or None if unknown.

        Returns:
            None if nothing is promised, or if the noise depends on the number of images and that is unknown.

        Raises:
            SettingsError: If no noise keeps the budget.
        """
        return None

    def releases_of_replies(self, replies: int) -> Part | None:
        """Return the releases of a site that sent a number of replies, or None if replies don't tell them."""
        return None

    @classmethod
    def part_of(cls, entry: LedgerEntry, adjacency: Adjacency) -> Part | None:
        """Return the releases of a ledger's entry, as they count for this mechanism's unit.

        Args:
            entry: Entry of any unit.
            adjacency: Adjacency of the promise.

        Returns:
            None if no bound is known.
        """
        return None

    @classmethod
    def covers(cls, adjacency: Adjacency, unit: str, wanted: Adjacency) -> bool:
        """Whether a promise of this mechanism implies the promise for a unit and adjacency, with the same numbers.

        Args:
            adjacency: Adjacency of this mechanism's promise.
            unit: Unit of the implied promise.
            wanted: Adjacency of the implied promise.
        """
        return False

    def redact(self, account: PrivacyAccount) -> PrivacyAccount:
        """Return a site's account without the numbers that its promise hides from the server."""
        return account

    # ---- statements

    def statement(self) -> str:
        """Return what is promised to whom, by which reckoning, in sentences; an empty text if nothing is promised."""
        return ""

    def other_guarantee(self) -> Guarantee | None:
        """Return the guarantee of the same noise for the adjacency that the settings don't name."""
        return None

    def describe_accounts(self, accounts: Mapping[str, PrivacyAccount]) -> str:
        """Return one or two sentences: what was released, and what it costs with the runs before.

        Args:
            accounts: Maps each site to its account, which may be redacted.
        """
        return ""


class NoPrivacy(PrivacyPolicy):
    """No promise: nothing is clipped or noised, and all that the method declares may leave a site."""

    is_private: ClassVar[bool] = False
    discloses_integers: ClassVar[bool] = True
    discloses_training_scores: ClassVar[bool] = True

    def discloses(self, kind: PayloadKind) -> bool:
        """Whether tensors of a kind may leave a site: always."""
        return True

    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Whether metadata may leave a site: always."""
        return True

    def discloses_peer_messages(self) -> bool:
        """Whether a site may send messages to other sites: always."""
        return True


def mechanism_of(unit: str) -> type[PrivacyPolicy]:
    """Return the class of the policy for a privacy unit.

    Raises:
        PluginError: If no plugin, or more than one, has a mechanism for that unit, or if it can't be imported.
    """
    return _checked(look_up("privacy_mechanism", unit, PrivacyPolicy), unit)


def _checked(kind: type[PrivacyPolicy], unit: str) -> type[PrivacyPolicy]:
    """Return the class of a mechanism if it says that it is for a unit."""
    if kind.unit != unit:
        raise PluginError(
            "wrong_name",
            f"Expected the privacy mechanism '{unit}' to have this name as its `unit`, got '{kind.unit}'. Its author "
            "can mend it.",
            expected=unit,
            found=kind.unit,
        )
    return kind


def policy_of(settings: Settings) -> PrivacyPolicy:
    """Return the privacy policy of a run.

    Raises:
        PluginError: As `mechanism_of` does.
        SettingsError: If the settings are not possible for the mechanism.
    """
    if settings.privacy is None:
        return NoPrivacy(settings)
    unit = settings.privacy.unit
    kind = mechanism_of(unit)
    return (kind if settings.secure_aggregation is None else _checked(kind.for_sums(), unit))(settings)


def payloads_beside_updates(method: Method | type[Method]) -> list[str]:
    """Return descriptions of all that a method's sites send beside updates."""
    other = [f"'{prefix}' ({kind})" for prefix, kind in sorted(method.sends.items()) if kind != "update"]
    if Capability.PEER_MESSAGES in method.supports:
        other.append("parcels from site to site")
    if "pooled_data" in method.needs:
        other.append("the sites' raw data")
    needed = [fact for fact, field in method.sends_meta.items() if field.visibility == "needed"]
    return other + [f"'{fact}' (a fact that it can't do without)" for fact in needed]


def unprotected(sender: str, payload: str) -> str:
    """Return the sentence about a payload that no privacy mechanism covers."""
    return (
        f"Privacy covers updates only, and {sender} would send {payload}. Choose a method that sends only updates, or "
        "leave the setting 'privacy' out."
    )
