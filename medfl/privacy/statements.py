"""What a run promises, in words: unit, adjacency, delta, releases, epsilon, accountant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from medfl.errors import SettingsError
from medfl.privacy.composition import epsilon as composed
from medfl.privacy.composition import site_release
from medfl.privacy.gaussian import SENSITIVITY, epsilon, noise_multiplier
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Privacy, SecureAggregation

WHAT = {"add_remove": "added or removed", "replace": "replaced by any other"}
"""Adjacency to what happens to a unit."""


def describe(privacy: Privacy, releases: int, secure: SecureAggregation | None = None) -> str:
    """One sentence for the report: what is promised to whom, and by which reckoning.

    Args:
        privacy: The privacy settings of the run.
        releases: How many updates a site sends at most.
        secure: Whether updates leave in a sum only; then the noise is in the sum.

    Returns:
        Names the unit, both adjacencies with their epsilon, delta, the number of releases and the accountant.
    """
    if secure is not None:
        return _sum(privacy, releases, secure)
    return _samples(privacy, releases) if privacy.unit == "sample" else _site(privacy, releases)


def describe_secure(secure: SecureAggregation, simulated: bool = False) -> str:
    """Return a sentence for log and report: what the server learns of the updates, and who has to be trusted for that.

    Args:
        secure: The run's setting.
        simulated: Whether all sites are on one machine.
    """
    if simulated:
        return (
            "Secure aggregation in a simulation protects no one: one machine has all data, and there are no "
            "certificates. It shows the numbers of a run between machines, in which the server learns sums of the "
            f"updates of at least {secure.resolved_threshold} sites."
        )
    return (
        "Secure aggregation: the server learns only the sum of the updates of at least "
        f"{secure.resolved_threshold} sites in a round, and no single update and no site's number of images. This "
        f"holds while at least {secure.resolved_threshold} of a round's participants follow the protocol and the "
        "project's root certifies sites only; the model that comes out is no secret, nor are the scores, training "
        "losses and numbers of images in this report."
    )


def _sum(privacy: Privacy, releases: int, secure: SecureAggregation) -> str:
    release, threshold = site_release(privacy, releases, secure), secure.resolved_threshold
    together = (replace(release, count=releases),)
    budgets = {name: composed(together, privacy.delta, name) for name in SENSITIVITY}
    chosen = privacy.adjacency
    other = next(name for name in SENSITIVITY if name != chosen)
    return (
        f"Unit {privacy.unit}, noise of all sites together: each update is clipped to L2 norm {privacy.clip:g}, each "
        f"site adds a share of discrete Gaussian noise, and {threshold} shares make up a standard deviation of "
        f"{release.sigma * privacy.clip:.4g} ({release.sigma:.4g} times the bound) in the sum, so that {releases} sums "
        f"together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon {budgets[chosen]:.4g} for a "
        f"{privacy.unit} that is {WHAT[chosen]} ('{chosen}', the adjacency of this run), or epsilon "
        f"{budgets[other]:.4g} for one that is {WHAT[other]} ('{other}'), by concentrated differential privacy. This "
        f"holds while at least {threshold} of a round's participants follow the protocol: they add their share "
        "of noise and keep it to themselves, and the server sees the sum only. A site that is alone among others that "
        "do not has no noise of its own to rely on; this covers the updates, not the scores, training losses and "
        "numbers of images in this report, nor whether a site replies."
    )


def _site(privacy: Privacy, releases: int) -> str:
    sigma = noise_multiplier(privacy, releases)
    budgets = {name: epsilon(sigma, releases, privacy.delta, far) for name, far in SENSITIVITY.items()}
    chosen = privacy.adjacency
    other = next(name for name in SENSITIVITY if name != chosen)
    return (
        f"Unit {privacy.unit}: each update is clipped to L2 norm {privacy.clip:g} and carries Gaussian noise of "
        f"standard deviation {sigma * privacy.clip:.4g} ({sigma:.4g} times the bound), so that {releases} releases "
        f"together are (epsilon, delta)-private with delta {privacy.delta:g} and epsilon {budgets[chosen]:.4g} for a "
        f"{privacy.unit} that is {WHAT[chosen]} ('{chosen}', the adjacency of this run), or epsilon "
        f"{budgets[other]:.4g} for one that is {WHAT[other]} ('{other}'), by exact Gaussian composition (accountant "
        f"'{privacy.accountant}'); this covers the updates, not the scores, training "
        "losses and numbers of images in this report, nor whether a site replies."
    )


def _samples(privacy: Privacy, releases: int) -> str:
    chosen = privacy.adjacency
    bound, delta = other_bound(privacy)
    other = f"at most epsilon {bound:.4g} with delta {delta:.3g}"
    name = next(name for name in SENSITIVITY if name != chosen)
    return (
        f"Unit sample: sites train by DP-SGD, which draws the images of each step at random, clips the gradient of "
        f"each to L2 norm {privacy.clip:g} and adds Gaussian noise to their sum, so much at each site that its "
        f"trainings in {releases} rounds together are (epsilon, delta)-private with delta {privacy.delta:g} and "
        f"epsilon at most {privacy.epsilon:.4g} for an image that is {WHAT[chosen]} ('{chosen}', the adjacency of this "
        f"run), or {other} for one that is {WHAT[name]} ('{name}'), by numerical composition (accountant "
        f"'{privacy.accountant}'); a patient with m images is protected like m images at once, and how many images a "
        "site has is not hidden; this covers the trained models, not the scores, training losses and numbers "
        "of images in this report."
    )


def other_bound(privacy: Privacy) -> tuple[float, float]:
    """What a promise for single images implies for the adjacency that it does not name: epsilon and delta, at most.

    A replacement is a removal and an addition, so (epsilon, delta) becomes (2 epsilon, (1 + e^epsilon) delta). The
    other way the same numbers hold: an image that is removed moves a training by no more than one that is replaced.
    """
    if privacy.adjacency == "replace":
        return privacy.epsilon, privacy.delta
    return 2 * privacy.epsilon, min(1.0, privacy.delta * (1 + math.exp(min(privacy.epsilon, 700))))


def redact_account(account: PrivacyAccount) -> PrivacyAccount:
    """Return a site's account without the numbers from which its images could be counted.

    Under the unit ``sample`` the sampling rate, the number of steps and the noise follow from the number of images, and
    so do the last digits of the composed epsilon. The rate, the steps and the noise become None. Bounds that are public
    replace the epsilons: the budget of the run, and the site's total budget for several runs. The site's own files keep
    the numbers. Under the unit ``site`` the account stays as it is.

    Args:
        account: The account as `medfl.privacy.ledger.Account.report` returns it.
    """
    if account.unit == "site":
        return account
    spent = account.stated_epsilon if account.releases else 0.0
    composed = spent if account.runs <= 1 else account.total_epsilon
    changes = {"sigma": None, "rate": None, "steps": None, "epsilon": spent, "composed": composed}
    return account.model_copy(update=changes)


def describe_accounts(accounts: Mapping[str, PrivacyAccount]) -> str:
    """Return one or two sentences for the report: what was released, and what it costs with the runs before.

    Args:
        accounts: Maps each site to its account, which may be redacted. At least one.
    """
    most = max(accounts.values(), key=lambda account: (account.releases, account.planned))
    unit = "updates" if most.unit == "site" else "trainings"
    text = f"Released were at most {most.releases} of {most.planned} planned {unit} of a site"
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


def check_delta(privacy: Privacy, units: int, where: str) -> None:
    """Refuse a delta that permits what privacy forbids.

    A mechanism that publishes one unit in n, drawn at random, is (0, 1/n)-private: from there on delta means nothing.

    Args:
        privacy: The privacy settings.
        units: How many units there are, >= 1.
        where: Whose they are, for the message.

    Raises:
        SettingsError: If delta is 1 / units or more.
    """
    if privacy.delta * units >= 1:
        kind = "sites" if privacy.unit == "site" else "training images"
        raise SettingsError(
            "delta_too_large",
            f"A privacy delta of {privacy.delta:g} is too large for {where} with {units} {kind}: expected less than "
            f"1/{units} = {1 / units:.3g}, for a delta that large permits to publish one of them outright. Choose "
            "1e-5, or less.",
            delta=privacy.delta,
            where=where,
            count=units,
            unit=privacy.unit,
        )
