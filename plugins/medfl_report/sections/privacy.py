"""Section on differential privacy: guarantees, budget spent, and privacy budget ledgers.

A release is one noised value that leaves a site. A ledger is a site's privacy budget ledger over several runs.

A group is a set of runs of one method that differ only in seed and fold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from medfl.engine.runs.records import RunRecord
from medfl.privacy.policy import PrivacyPolicy, policy_of
from medfl.privacy.statements import ADJACENCY_WORDS
from medfl.records.privacy_account import PrivacyAccount
from medfl.types import Meta
from medfl.utils.formats import MISSING, count, join_words
from medfl_report.groups import Group
from medfl_report.notices import NamedRun
from medfl_report.scores import named_runs
from medfl_report.section import ReportData, TemplateSection

Accounts = Mapping[str, PrivacyAccount]
"""Mapping from each site to the site's privacy account: the releases of one run and the privacy that they spent.

A redacted account lacks the numbers that the site withholds, because they tell the number of its images.
"""

UNBOUNDED = "no bound"
"""Text that the page shows for an infinite epsilon."""


class PrivacySection(TemplateSection):
    """Section of a report: guarantees and spent budgets of runs with differential privacy."""

    template = "privacy.html"
    """File name of the section's Jinja template."""

    def content(self, data: ReportData) -> Meta | None:
        """Return the variables of the template: a row for each private run; None without any."""
        return {"privacy": privacy} if (privacy := privacy_section(data.groups)) else None


def privacy_section(groups: Sequence[Group]) -> Meta | None:
    """Return the variables of the template; None if no run is private."""
    rows: list[Meta] = []
    for group in groups:
        named = [(name, run) for name, run in named_runs([group]) if policy_of(run.settings).is_private]
        rows += _merged(group.label, named, len(group.runs))
    if not rows:
        return None
    return {"rows": rows, "ledgers": any(row["ledger"] for row in rows), "accounts": any(row["sites"] for row in rows)}


def _merged(label: str, named: Sequence[NamedRun], runs: int) -> list[Meta]:
    """Return a row for each run of a group; a single row with the group's name if all rows are equal."""
    rows = [_row(run) for _, run in named]
    if len(rows) == runs and all(row == rows[0] for row in rows):
        return [{"name": label, **row} for row in rows[:1]]
    return [{"name": name, **row} for (name, _), row in zip(named, rows, strict=True)]


def _row(run: RunRecord) -> Meta:
    """Return the cells of a run: guarantee, noise, releases, spent budget, ledger, full statement, rows of sites."""
    policy = policy_of(run.settings)
    privacy, other = policy.privacy, policy.other_guarantee()
    assert privacy is not None
    assert other is not None
    accounts = {} if run.summary is None else run.summary.privacy
    words = policy.statement()
    ledger = any(account.ledger for account in accounts.values())
    return {
        "unit": policy.unit_noun,
        "unit_phrase": policy.unit_phrase,
        "adjacency": ADJACENCY_WORDS[privacy.adjacency],
        "delta": f"{privacy.delta:g}",
        "sigma": _sigma(policy, accounts),
        "clip": f"{privacy.clip:g}",
        "releases": _range([account.releases for account in accounts.values()]) if accounts else MISSING,
        "planned": policy.planned_releases,
        "stated": f"{privacy.epsilon:.4g}",
        "other": f"{'at most ' if other.is_upper_bound else ''}{other.epsilon:.4g}",
        "other_adjacency": ADJACENCY_WORDS[other.adjacency],
        "other_delta": "" if other.delta == privacy.delta else f"{other.delta:.3g}",
        "spent": _largest(accounts, _spent_epsilon),
        "ledger": _largest(accounts, _composed_epsilon) if ledger else "",
        "ledger_runs": count(max(account.runs for account in accounts.values()), "run") if ledger else "",
        "total": _range([account.total_epsilon for account in accounts.values()]) if ledger else "",
        "words": f"{words} {policy.describe_accounts(accounts)}" if accounts else words,
        "sites": _sites(accounts),
    }


def _sigma(policy: PrivacyPolicy, accounts: Accounts) -> str:
    """Return the range of the noise multipliers of the sites, or the planned one if no account has one."""
    sigmas = [account.sigma for account in accounts.values() if account.sigma is not None]
    if not sigmas and (release := policy.release()) is not None:
        sigmas = [release.sigma]
    return _range(sigmas) if sigmas else MISSING


def _range(values: Sequence[float | None]) -> str:
    """Return the smallest and the largest number as text, or the only one; empty without numbers."""
    texts = sorted({f"{value:.5g}" for value in values if value is not None}, key=float)
    if len(texts) < 2:
        return "".join(texts)
    return f"{texts[0]} to {texts[-1]}"


def _spent_epsilon(account: PrivacyAccount) -> float | None:
    return account.epsilon


def _composed_epsilon(account: PrivacyAccount) -> float | None:
    return account.composed


def _largest(accounts: Accounts, epsilon_of: Callable[[PrivacyAccount], float | None]) -> str:
    """Return the largest epsilon of the sites as text; a dash if a site withholds its own."""
    if not accounts or any(account.withholds_noise and epsilon_of(account) is None for account in accounts.values()):
        return MISSING
    value = max(_or_infinite(epsilon_of(account)) for account in accounts.values())
    return UNBOUNDED if math.isinf(value) else f"{value:.4g}"


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _sites(accounts: Accounts) -> list[Meta]:
    """Return a row for each group of sites with equal accounts; empty if all sites have equal accounts."""
    sites_by_cells: dict[tuple[str, ...], list[str]] = {}
    for site, account in sorted(accounts.items()):
        total, single = account.total_epsilon, {site: account}
        cells = (
            _range([account.sigma]) or MISSING,
            f"{account.releases} of {account.planned}",
            _largest(single, _spent_epsilon),
            *((_largest(single, _composed_epsilon), str(account.runs)) if account.ledger else (MISSING, MISSING)),
            MISSING if total is None else f"{total:g}",
        )
        sites_by_cells.setdefault(cells, []).append(site)
    if len(sites_by_cells) < 2:
        return []
    return [{"sites": join_words(sites), "cells": cells} for cells, sites in sites_by_cells.items()]
