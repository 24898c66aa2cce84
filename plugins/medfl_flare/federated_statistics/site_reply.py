"""A site's reply to a request for statistics, computed at the site and limited by the site's own file.

In that file ``disclose`` lists the kinds of statistics that may leave, and ``min_count`` sets the minimum number of
images behind a number. A minimum privacy in ``[privacy]`` requires noise that is at least as strong. The site's ledger,
its record of the privacy budget spent over all runs, is charged for it. A minimum of the unit ``site`` can't be met:
noise that hides a whole site leaves no useful number.
"""

from __future__ import annotations

from pathlib import Path

from medfl.data.partition_file import check_unchanged
from medfl.engine.runs.provenance import bundle_values
from medfl.errors import RefusedError, SettingsError
from medfl.privacy.composition import NoisedReleases
from medfl.privacy.ledger import Account
from medfl.privacy.policy import mechanism_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, read_settings
from medfl.version import __version__
from medfl_flare.federated_evaluation.evaluation_request import EvaluationRequest
from medfl_flare.federated_statistics.statistics_request import StatisticsRequest, privacy_settings
from medfl_flare.sites.policy import guarantee_text, is_at_least
from medfl_flare.sites.site_file import SiteFile
from medfl_flare.statistics.disclosure import DisclosurePolicy, NoiseOptions, disclose_statistics
from medfl_flare.statistics.measurements import SiteMeasurements, measure_site
from medfl_flare.statistics.site_statistics import SiteStatistics


def compute_reply(request: StatisticsRequest, site_file: SiteFile) -> tuple[SiteStatistics, PrivacyAccount | None]:
    """Return the statistics of this site's data, and the site's privacy account after the statistics are released.

    Args:
        request: The server's request.
        site_file: The site's own file.

    Returns:
        The statistics; the privacy account (the budget spent on these data so far), or None if the numbers are exact.

    Raises:
        RefusedError: If the site's own file does not allow the statistics, or if the privacy budget is spent.
        MedflError: If the data or the account can't be read.
    """
    folder = requested_data_folder(request, site_file)
    privacy = _noise_settings(request, site_file)
    measured = measure_site(folder)
    allow_changes = site_file.bundle(request.bundle).allow_changes
    check_unchanged(folder.parent, [measured.data], allow_changes)
    policy = DisclosurePolicy(site_file.disclose, site_file.min_count)
    if privacy is None:
        return disclose_statistics(measured, policy), None
    accounts: list[Account] = []

    def release(sigma: float, run: str, made_of: str) -> None:
        """Charge the release to the site's account; raise if the budget is spent."""
        account = _open_account(site_file, measured, privacy, sigma, run)
        account.release(made_of)
        accounts.append(account)

    statistics = disclose_statistics(
        measured, policy, NoiseOptions(privacy, site_file.secret(), request.statistics, release)
    )
    return statistics, accounts[0].report()


def requested_data_folder(request: StatisticsRequest | EvaluationRequest, site_file: SiteFile) -> Path:
    """Return the folder of the requested data.

    Args:
        request: The server's request.
        site_file: The site's own file.

    Raises:
        RefusedError: If the request is not for this site or these data, or comes from another version of medfl.
    """
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
            f"The request is for {', '.join(request.sites)}; this site is '{site_file.site}'.",
            site=site_file.site,
            sites=request.sites,
        )
    entry = site_file.bundle(request.bundle)
    if "adopted" in bundle_values(entry.folder):
        raise RefusedError(
            "data_not_supported",
            f"The data of the adopted bundle '{request.bundle}' are files that its own transforms read; statistics "
            "and evaluations need data in the format of `medfl prep`.",
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


def _noise_settings(request: StatisticsRequest, site_file: SiteFile) -> Privacy | None:
    """Return the privacy setting of the noise, with the site's own ledger and total budget; None for exact numbers."""
    privacy = None if request.privacy is None else privacy_settings(request.privacy)
    floor = site_file.privacy
    if floor is not None and not is_at_least(floor, privacy):
        raise RefusedError(
            "insufficient_privacy",
            f"The request guarantees privacy: {guarantee_text(privacy)}; required at least: {guarantee_text(floor)}."
            + (" No noise of statistics hides a whole site." if mechanism_of(floor.unit).hides_sites else ""),
            unit=floor.unit,
            expected=guarantee_text(floor),
            found=guarantee_text(privacy),
        )
    if privacy is None or floor is None:
        return privacy
    account = {"ledger": floor.ledger, "total_epsilon": floor.total_epsilon}
    try:
        return read_settings(Privacy, privacy.model_dump() | account, "the privacy with the site's account")
    except SettingsError:
        raise RefusedError(
            "epsilon_above_total",
            f"The request has epsilon {privacy.epsilon:g}; '{site_file.site}' allows a total of "
            f"{floor.total_epsilon:g} over all runs.",
            site=site_file.site,
            found=privacy.epsilon,
            maximum=floor.total_epsilon,
        ) from None


def _open_account(site_file: SiteFile, measured: SiteMeasurements, privacy: Privacy, sigma: float, run: str) -> Account:
    """Return the privacy account of these data, in the site's ledger, or in its state folder if it has no ledger."""
    folder = privacy.ledger or site_file.state / "statistics"
    path = folder / f"{measured.data.digest}.json"
    return Account(path=path, site=site_file.site, run=run, privacy=privacy, step=NoisedReleases(sigma, 1), planned=1)
