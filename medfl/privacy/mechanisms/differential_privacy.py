"""Common base of the privacy mechanisms with a guarantee: disclosure, checks of delta, and text about accounts.

The privacy unit is the part of the data that the guarantee hides: a site, or one image. A release is one noised value
that leaves the site. A site's ledger is a file that lists the releases of one data set over all runs. Its account
sums up the privacy that these releases spent.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from torch import nn

from medfl.contract import Method, PayloadKind
from medfl.errors import SettingsError
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.privacy.gaussian import SENSITIVITY
from medfl.privacy.policy import Guarantee, PrivacyPolicy, payloads_beside_updates, unprotected_message
from medfl.records.ledger import Adjacency, LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, Settings
from medfl.utils.metadata import Visibility


class DifferentialPrivacy(PrivacyPolicy):
    """Privacy policy with a differential privacy guarantee: only updates and public metadata may leave a site.

    A subclass is the mechanism of one privacy unit. It declares the attributes below.

    Args:
        settings: Settings of the run, with a privacy setting.

    Raises:
        SettingsError: If the settings name another accountant than that of the mechanism.

    Attributes:
        unit: Name of the privacy unit: the part of the data that the guarantee hides.
        accountant: Name of the accountant that composes releases.
        units: Plural noun of the unit for messages, such as "training images".
        releases: Plural noun of a site's releases for sentences, such as "updates".
    """

    unit: ClassVar[str]
    accountant: ClassVar[str]
    is_private: ClassVar[bool] = True
    """Whether the run has a differential privacy guarantee."""
    discloses_integers: ClassVar[bool] = False
    """Whether integer and bool tensors of an update may leave the site, although noise can't protect them."""
    discloses_training_scores: ClassVar[bool] = False
    """Whether numbers about a site's training images may leave the site."""
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
        """Adjacency that the run's settings don't choose: ``replace`` if they choose ``add_remove``, and vice versa."""
        return next(name for name in SENSITIVITY if name != self.privacy.adjacency)

    def epsilon_of(self, parts: Sequence[NoisedReleases], adjacency: str | None = None) -> float:
        """Return epsilon of several releases together, with the delta of the run.

        Args:
            parts: The releases, in groups of equal ones.
            adjacency: ``add_remove`` or ``replace``; None is the adjacency of the run.
        """
        return epsilon(tuple(parts), self.privacy.delta, adjacency or self.privacy.adjacency)

    @abstractmethod
    def other_guarantee(self) -> Guarantee:
        """Return the numbers of the guarantee for `other_adjacency`, with the same noise.

        `statement` returns the sentences about both adjacencies.
        """

    # ---- disclosure

    def discloses(self, kind: PayloadKind) -> bool:
        """Return whether tensors of a payload kind may leave a site: only those of the kind ``update``."""
        return kind == "update"

    def discloses_metadata(self, visibility: Visibility) -> bool:
        """Return whether metadata with a declared visibility may leave a site.

        Only metadata with the visibility ``public`` may, which are not computed from data.
        """
        return visibility == "public"

    def discloses_peer_messages(self) -> bool:
        """Return whether a site may send messages to other sites: always False."""
        return False

    # ---- compatibility

    def check_method(self, method: Method, name: str) -> None:
        """Check that the sites of a method send only updates.

        Raises:
            SettingsError: If they send something else.
        """
        if other := payloads_beside_updates(method):
            raise SettingsError(
                "method_not_supported",
                unprotected_message(f"method '{name}'", ", ".join(other)),
                feature="privacy",
                method=name,
                sends=other,
            )

    def check_secure_aggregation(self) -> None:
        """Check that the settings ``privacy`` and ``secure_aggregation`` have the same clip.

        The clip is the bound of an update's norm.

        Raises:
            SettingsError: If the two clips differ.
        """
        secure = self.settings.secure_aggregation
        clip = None if secure is None else secure.clip
        if clip is not None and clip != self.privacy.clip:
            raise SettingsError(
                "incompatible_settings",
                f"'secure_aggregation.clip' is {clip:g} and 'privacy.clip' is {self.privacy.clip:g}, but the noise is "
                "calibrated for one bound. Leave the first out.",
                settings=["privacy.clip", "secure_aggregation.clip"],
            )

    def check_run(self, networks: Sequence[nn.Module], images: Mapping[str, int], sites: int) -> None:
        """Check that the delta of the guarantee is small enough for the number of sites.

        Raises:
            SettingsError: If delta is 1 / sites or more.
        """
        self.check_delta(sites, "a federation")

    def check_delta(self, count: int, where: str) -> None:
        """Check that delta is small enough for a number of units.

        A mechanism that publishes one of n units, drawn at random, is (0, 1/n)-private. So a delta of 1/n or more gives
        no meaningful guarantee.

        Args:
            count: Number of units n, >= 1.
            where: Owner of the units, such as "a federation", for messages.

        Raises:
            SettingsError: If delta is 1 / count or more.
        """
        delta = self.privacy.delta
        if delta * count >= 1:
            raise SettingsError(
                "delta_too_large",
                f"A privacy delta of {delta:g} is too large for {where} with {count} {self.units}: expected less than "
                f"1/{count} = {1 / count:.3g}, as such a delta allows publishing one of them. Choose 1e-5 or less.",
                delta=delta,
                where=where,
                count=count,
                unit=self.unit,
            )

    # ---- accounting

    @classmethod
    def part_of(cls, entry: LedgerEntry, adjacency: Adjacency) -> NoisedReleases | None:
        """Return the releases that a ledger's entry lists, converted to the privacy unit of this mechanism.

        Args:
            entry: Entry of a ledger: the releases of one run, of any privacy unit.
            adjacency: Adjacency of the guarantee that is computed from the result.

        Returns:
            None if the entry has another unit and no bound for this mechanism's unit is known.
        """
        part = NoisedReleases.from_entry(entry)
        return part if entry.unit == cls.unit or not part.count else cls.foreign_part(entry.unit, part, adjacency)

    @classmethod
    @abstractmethod
    def foreign_part(cls, unit: str, part: NoisedReleases, adjacency: Adjacency) -> NoisedReleases | None:
        """Convert releases that protect another privacy unit into equivalent releases for this mechanism's unit.

        Runs with different units on the same data need the conversion to be composed in one account.

        Args:
            unit: Privacy unit of the releases.
            part: The releases, as a group with equal noise.
            adjacency: Adjacency of the guarantee that is computed from the result.

        Returns:
            Releases that lose at least as much privacy of this mechanism's unit; None if no bound is known.
        """

    @classmethod
    def covers(cls, adjacency: Adjacency, unit: str, wanted: Adjacency) -> bool:
        """Return whether a guarantee of this mechanism implies another guarantee with the same epsilon and delta.

        ``replace`` is the stronger adjacency, as its sensitivity is twice as large. A mechanism that hides a whole site
        hides each of its images, but only under ``replace``: then two data sets of a site that differ in one image are
        neighbours. Under ``add_remove`` they are two steps apart, as a site is compared with no site.

        Args:
            adjacency: Adjacency of this mechanism's guarantee.
            unit: Unit of the implied guarantee.
            wanted: Adjacency of the implied guarantee.
        """
        if unit == cls.unit:
            return adjacency in ("replace", wanted)
        return cls.hides_sites and adjacency == "replace"

    # ---- statements

    def describe_accounts(self, accounts: Mapping[str, PrivacyAccount]) -> str:
        """Return sentences about the releases of the run, and about the privacy that all runs on the data spent.

        Args:
            accounts: Maps each site to its privacy account, which may be redacted.
        """
        most = max(accounts.values(), key=lambda account: (account.releases, account.planned))
        text = f"Each site released at most {most.releases} of {most.planned} planned {self.releases}"
        withheld = any(account.withholds_noise for account in accounts.values())
        bound = "epsilon at most" if withheld else "epsilon"
        spent = _largest({site: account.epsilon for site, account in accounts.items()})
        text += f", with {bound} {spent} ('{most.adjacency}')."
        runs = max(account.runs for account in accounts.values())
        if any(account.ledger for account in accounts.values()):
            total, composed = most.total_epsilon, {site: account.composed for site, account in accounts.items()}
            text += f" The ledgers of the sites hold up to {runs} {'run' if runs == 1 else 'runs'} on the same data: "
            if withheld and None in composed.values():
                return text + "their composed epsilon stays at the sites, as it would reveal the number of images."
            text += f"composed {bound} {_largest(composed)} with delta {most.delta:g}" + (
                f" of a total of {total:g}." if total is not None else "; no total is set."
            )
        return text


def _largest(epsilons: Mapping[str, float | None]) -> str:
    """Return a text with the largest epsilon and the name of its site. None counts as infinite."""

    def bound(site: str) -> float:
        value = epsilons[site]
        return math.inf if value is None else value

    site = max(epsilons, key=bound)
    value = epsilons[site]
    return f"{'not bounded' if value is None else format(value, '.4g')} at {site}"
