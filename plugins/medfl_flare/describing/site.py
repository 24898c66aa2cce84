"""A site's answer to a request for its description: computed at home, as its own file allows.

The file's ``describe`` says which facts may be told, ``min_count`` of how few images no number is told, and a floor of
``[privacy]`` asks for noise: at least its promise, charged to its ledger. A floor of the unit ``site`` can't be met, as
noise that hides a whole site leaves no number.
"""

from __future__ import annotations

from pathlib import Path

from medfl.data.partition_file import check_unchanged
from medfl.engine.runs.provenance import bundle_values
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.composition import Part
from medfl.privacy.ledger import Account
from medfl.privacy.policy import mechanism_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, read_settings
from medfl.version import __version__
from medfl_flare.describing.request import Request, settings_of
from medfl_flare.sites.file import SiteFile
from medfl_flare.sites.policy import at_least, promise
from medfl_flare.statistics.description import Description
from medfl_flare.statistics.measures import Measured, measure_site
from medfl_flare.statistics.telling import Noise, Policy, describe


def answer_request(request: Request, site_file: SiteFile) -> tuple[Description, PrivacyAccount | None]:
    """Return the description of this site's data, and the site's privacy account after it.

    Args:
        request: The server's request.
        site_file: The site's own file.

    Returns:
        The account is None if the numbers of the description are exact.

    Raises:
        RefusedError: If the site's file does not allow the description, or if the privacy budget is spent.
        MedflError: If the data or the account can't be read.
    """
    folder = _data_of(request, site_file)
    privacy = _privacy(request, site_file)
    measured = measure_site(folder)
    allow_changes = site_file.bundle(request.bundle).allow_changes
    check_unchanged(folder.parent, [measured.data], allow_changes)
    policy = Policy(site_file.disclose, site_file.min_count)
    if privacy is None:
        return describe(measured, policy), None
    accounts: list[Account] = []

    def release(sigma: float, run: str, made_of: str) -> None:
        account = _account(site_file, measured, privacy, sigma, run)
        account.release(made_of)
        accounts.append(account)

    description = describe(measured, policy, Noise(privacy, site_file.secret(), request.describe, release))
    return description, accounts[0].report()


def _data_of(request: Request, site_file: SiteFile) -> Path:
    if request.medfl != __version__:
        raise RefusedError(
            "version_mismatch",
            f"version of medfl: the request has {request.medfl}, '{site_file.site}' has {__version__}",
            site=site_file.site,
            expected=request.medfl,
            found=__version__,
        )
    if request.sites and site_file.site not in request.sites:
        raise RefusedError(
            "wrong_recipient",
            f"The request is for {', '.join(request.sites)}; this one is '{site_file.site}'.",
            site=site_file.site,
            sites=request.sites,
        )
    entry = site_file.bundle(request.bundle)
    if "adopted" in bundle_values(entry.folder):
        raise RefusedError(
            "data_not_supported",
            f"The data of the adopted bundle '{request.bundle}' are files that its own transforms read; only data as "
            "`medfl prep` makes them can be described.",
            bundle=request.bundle,
        )
    if entry.data is None:
        raise RefusedError(
            "missing_bundle_data",
            f"'{site_file.site}' names no data for the bundle '{request.bundle}' in its own file.",
            site=site_file.site,
            bundle=request.bundle,
        )
    return entry.data


def _privacy(request: Request, site_file: SiteFile) -> Privacy | None:
    """The noise of this description, with the site's own account; None for exact numbers."""
    privacy = None if request.privacy is None else settings_of(request.privacy)
    floor = site_file.privacy
    if floor is not None and not at_least(floor, privacy):
        raise RefusedError(
            "insufficient_privacy",
            f"The request promises privacy: {promise(privacy)}; required at least: {promise(floor)}."
            + (" No noise for a description hides a whole site." if mechanism_of(floor.unit).hides_sites else ""),
            unit=floor.unit,
            expected=promise(floor),
            found=promise(privacy),
        )
    if privacy is None or floor is None:
        return privacy
    account = {"ledger": floor.ledger, "total_epsilon": floor.total_epsilon}
    try:
        return read_settings(Privacy, privacy.model_dump() | account, "the privacy with the site's account")
    except SettingsError:
        raise RefusedError(
            "epsilon_above_total",
            f"The request wants epsilon {privacy.epsilon:g}; '{site_file.site}' allows a total of "
            f"{floor.total_epsilon:g} over all runs.",
            site=site_file.site,
            found=privacy.epsilon,
            maximum=floor.total_epsilon,
        ) from None


def _account(site_file: SiteFile, measured: Measured, privacy: Privacy, sigma: float, run: str) -> Account:
    """Return the account of these data. It is in the site's ledger, or in its state folder if there is no ledger."""
    folder = privacy.ledger or site_file.state / "descriptions"
    path = folder / f"{measured.data.digest}.json"
    return Account(path=path, site=site_file.site, run=run, privacy=privacy, step=Part(sigma, 1), planned=1)
