"""The common part of all mechanisms with a promise: what may leave a site, delta, and accounts in words."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import nn

from medfl.contract import Method, PayloadKind
from medfl.errors import SettingsError
from medfl.privacy.composition import Part, epsilon
from medfl.privacy.gaussian import SENSITIVITY
from medfl.privacy.policy import Guarantee, PrivacyPolicy, payloads_beside_updates, unprotected
from medfl.records.ledger import Adjacency, LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, Settings
from medfl.utils.metadata import Visibility


class DifferentialPrivacy(PrivacyPolicy):
    """A policy with a promise: only updates and public metadata may leave a site.

    Args:
        settings: Settings of the run, with a privacy setting.

    Raises:
        SettingsError: If the settings name an accountant of another unit.

    Attributes:
        unit: Whose data are hidden.
        accountant: Name of the accountant that composes releases.
        units: The unit in the plural, for messages.
        releases: Releases of a site in the plural, for sentences.
    """

    unit: ClassVar[str]
    accountant: ClassVar[str]
    is_private: ClassVar[bool] = True
    discloses_integers: ClassVar[bool] = False
    discloses_training_scores: ClassVar[bool] = False
    units: ClassVar[str]
    releases: ClassVar[str]

    def __init__(self, settings: Settings) -> None:
        assert settings.privacy is not None
        super().__init__(settings)
        self._privacy = settings.privacy
        if self._privacy.accountant not in (None, self.accountant):
            raise SettingsError(
                "unsupported_setting",
                f"The privacy unit '{self.unit}' is accounted by '{self.accountant}', got the accountant "
                f"'{self._privacy.accountant}' in 'privacy.accountant'. Leave it out.",
                setting="privacy.accountant",
                unit=self.unit,
                expected=self.accountant,
                found=self._privacy.accountant,
            )

    @property
    def privacy(self) -> Privacy:
        """The privacy setting of the run."""
        return self._privacy

    @property
    def other_adjacency(self) -> str:
        """The adjacency that the settings don't name."""
        return next(name for name in SENSITIVITY if name != self.privacy.adjacency)

    def epsilon_of(self, parts: Sequence[Part], adjacency: str | None = None) -> float:
        """Return epsilon of releases together, with the run's delta.

        Args:
            parts: The releases.
            adjacency: Adjacency, or None for the run's own.
        """
        return epsilon(tuple(parts), self.privacy.delta, adjacency or self.privacy.adjacency)

    @abstractmethod
    def other_guarantee(self) -> Guarantee:
        """Return the guarantee of the same noise for the adjacency that the settings don't name."""

    # ---- disclosure

    def discloses(self, kind: PayloadKind) -> bool:
        """Whether tensors of a kind may leave a site: updates alone."""
        return kind == "update"

    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Whether metadata may leave a site: only those that are computed from no data."""
        return visibility == "public"

    def discloses_peer_messages(self) -> bool:
        """Whether a site may send messages to other sites: never."""
        return False

    # ---- compatibility

    def check_method(self, method: Method, name: str) -> None:
        """Check that a method sends updates alone.

        Raises:
            SettingsError: If it sends something else.
        """
        if other := payloads_beside_updates(method):
            raise SettingsError(
                "method_not_supported",
                unprotected(f"method '{name}'", ", ".join(other)),
                feature="privacy",
                method=name,
                sends=other,
            )

    def check_secure_aggregation(self) -> None:
        """Check that the two settings don't name unlike bounds of an update.

        Raises:
            SettingsError: If they do.
        """
        secure = self.settings.secure_aggregation
        clip = None if secure is None else secure.clip
        if clip is not None and clip != self.privacy.clip:
            raise SettingsError(
                "incompatible_settings",
                f"'secure_aggregation.clip' is {clip:g} and 'privacy.clip' {self.privacy.clip:g}: the noise is made "
                "for one bound. Leave the first out.",
                settings=["privacy.clip", "secure_aggregation.clip"],
            )

    def check_run(self, networks: Sequence[nn.Module], images: Mapping[str, int], sites: int) -> None:
        """Check that delta is small enough for the number of sites.

        Raises:
            SettingsError: If it is not.
        """
        self.check_delta(sites, "a federation")

    def check_delta(self, count: int, where: str) -> None:
        """Check that delta does not permit what privacy forbids.

        A mechanism that publishes one unit in n, drawn at random, is (0, 1/n)-private: from there on delta means
        nothing.

        Args:
            count: Number of units, >= 1.
            where: Owner of the units, for the message.

        Raises:
            SettingsError: If delta is 1 / count or more.
        """
        delta = self.privacy.delta
        if delta * count >= 1:
            raise SettingsError(
                "delta_too_large",
                f"A privacy delta of {delta:g} is too large for {where} with {count} {self.units}: expected less than "
                f"1/{count} = {1 / count:.3g}, for a delta that large permits to publish one of them outright. Choose "
                "1e-5, or less.",
                delta=delta,
                where=where,
                count=count,
                unit=self.unit,
            )

    # ---- accounting

    @classmethod
    def part_of(cls, entry: LedgerEntry, adjacency: Adjacency) -> Part | None:
        """Return the releases of a ledger's entry, as they count for this unit, or None if no bound is known."""
        part = Part.from_entry(entry)
        return part if entry.unit == cls.unit or not part.count else cls.foreign_part(entry.unit, part, adjacency)

    @classmethod
    @abstractmethod
    def foreign_part(cls, unit: str, part: Part, adjacency: Adjacency) -> Part | None:
        """Return releases that were made for another unit, as they count for this one; None without a known bound."""

    @classmethod
    def covers(cls, adjacency: Adjacency, unit: str, wanted: Adjacency) -> bool:
        """Whether a promise of this mechanism implies another one with the same numbers.

        ``replace`` is the stronger adjacency, as its noise is made for twice the bound. A mechanism that hides a whole
        site hides each of its images, but only under ``replace``: two data sets of a site that differ in an image are
        neighbours then. Under ``add_remove`` they are two steps apart, as a site is compared with no site.
        """
        if unit == cls.unit:
            return adjacency in ("replace", wanted)
        return cls.hides_sites and adjacency == "replace"

    # ---- statements

    def describe_accounts(self, accounts: Mapping[str, PrivacyAccount]) -> str:
        """Return sentences about what was released, and what it costs with the runs before."""
        most = max(accounts.values(), key=lambda account: (account.releases, account.planned))
        text = f"Released were at most {most.releases} of {most.planned} planned {self.releases} of a site"
        withheld = any(account.withholds_noise for account in accounts.values())
        bound = "epsilon at most" if withheld else "epsilon"
        spent = _largest({site: account.epsilon for site, account in accounts.items()})
        text += f", {bound} {spent} ('{most.adjacency}')."
        runs = max(account.runs for account in accounts.values())
        if any(account.ledger for account in accounts.values()):
            total, composed = most.total_epsilon, {site: account.composed for site, account in accounts.items()}
            text += f" The ledgers of the sites hold up to {runs} {'run' if runs == 1 else 'runs'} on the same data: "
            if withheld and None in composed.values():
                return text + "what these come to stays at the sites, for the number of images follows from it."
            text += f"composed {bound} {_largest(composed)} with delta {most.delta:g}" + (
                f" of a total of {total:g}." if total is not None else "; no total is set."
            )
        return text


def _largest(epsilons: Mapping[str, float | None]) -> str:
    """Return the largest epsilon with the name of its site. None counts as infinite."""

    def bound(site: str) -> float:
        value = epsilons[site]
        return math.inf if value is None else value

    site = max(epsilons, key=bound)
    value = epsilons[site]
    return f"{'not bounded' if value is None else format(value, '.4g')} at {site}"
