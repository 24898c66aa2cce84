"""The section of a report about differential privacy: what runs promise and spent, and what the ledgers hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from medfl.privacy.composition import epsilon, site_release
from medfl.privacy.gaussian import SENSITIVITY
from medfl.privacy.statements import WHAT, describe, describe_accounts, other_bound
from medfl.report.formats import MISSING, count, listed
from medfl.report.groups import Group
from medfl.report.notices import Named
from medfl.report.scores import named_runs
from medfl.report.section import ReportData, TemplateSection
from medfl.runs.records import RunRecord
from medfl.settings import Privacy, SecureAggregation
from medfl.types import Meta

Accounts = Mapping[str, Mapping[str, Any]]
"""Site to `medfl.privacy.ledger.Account.facts`."""

UNBOUNDED = "no bound"


class PrivacySection(TemplateSection):
    """What runs with differential privacy promise and spent."""

    template = "privacy.html"

    def content(self, data: ReportData) -> Meta | None:
        """A row for each private run."""
        return {"privacy": privacy} if (privacy := privacy_section(data.groups)) else None


def privacy_section(groups: Sequence[Group]) -> Meta | None:
    """The section; None where no run is private."""
    rows: list[Meta] = []
    for group in groups:
        named = [(name, run) for name, run in named_runs([group]) if promised(run) is not None]
        rows += _merged(group.label, named, len(group.runs))
    if not rows:
        return None
    return {"rows": rows, "ledgers": any(row["ledger"] for row in rows), "accounts": any(row["sites"] for row in rows)}


def promised(run: RunRecord) -> Privacy | None:
    """The privacy settings of a run."""
    return run.settings.privacy


def secure_of(run: RunRecord) -> SecureAggregation | None:
    """The secure aggregation of a run."""
    return run.settings.secure_aggregation


def _merged(label: str, named: Sequence[Named], runs: int) -> list[Meta]:
    """A row for each run of a group; one with the group's name if all promise and spent the same."""
    rows = [_row(run) for _, run in named]
    if len(rows) == runs and all(row == rows[0] for row in rows):
        return [{"name": label, **row} for row in rows[:1]]
    return [{"name": name, **row} for (name, _), row in zip(named, rows, strict=True)]


def _row(run: RunRecord) -> Meta:
    privacy, rounds = promised(run), int(run.run.rounds)
    assert privacy is not None
    accounts: Accounts = {} if run.summary is None else run.summary.privacy
    other = next(name for name in SENSITIVITY if name != privacy.adjacency)
    secure = secure_of(run)
    far, widened = _other(privacy, rounds, other, secure)
    words = describe(privacy, rounds, secure)
    ledger = any(facts["ledger"] for facts in accounts.values())
    return {
        "unit": {"site": "site", "sample": "image"}[privacy.unit],
        "adjacency": WHAT[privacy.adjacency],
        "delta": f"{privacy.delta:g}",
        "sigma": _sigma(privacy, rounds, accounts, secure),
        "clip": f"{privacy.clip:g}",
        "releases": _range([facts["releases"] for facts in accounts.values()]) if accounts else MISSING,
        "planned": rounds,
        "stated": f"{privacy.epsilon:.4g}",
        "other": far,
        "other_adjacency": WHAT[other],
        "other_delta": widened,
        "spent": _largest(accounts, "epsilon"),
        "ledger": _largest(accounts, "composed") if ledger else "",
        "ledger_runs": count(max(facts["runs"] for facts in accounts.values()), "run") if ledger else "",
        "total": _range([facts["total_epsilon"] for facts in accounts.values()]) if ledger else "",
        "words": f"{words} {describe_accounts(accounts)}" if accounts else words,
        "sites": _sites(accounts),
    }


def _other(privacy: Privacy, rounds: int, other: str, secure: SecureAggregation | None) -> tuple[str, str]:
    """Epsilon of the same noise for the other adjacency, and its delta where that is another one."""
    if privacy.unit == "site":
        releases = replace(site_release(privacy, rounds, secure), count=rounds)
        return f"{epsilon((releases,), privacy.delta, other):.4g}", ""
    bound, delta = other_bound(privacy)
    return f"at most {bound:.4g}", "" if delta == privacy.delta else f"{delta:.3g}"


def _sigma(privacy: Privacy, rounds: int, accounts: Accounts, secure: SecureAggregation | None) -> str:
    """The noise multipliers of the sites, as far as they are known."""
    known = [facts["sigma"] for facts in accounts.values() if facts["sigma"] is not None]
    if not known and privacy.unit == "site":
        known = [site_release(privacy, rounds, secure).sigma]
    return _range(known) if known else MISSING


def _range(values: Sequence[float | None]) -> str:
    """The smallest and the largest of some numbers, or the one that all are; empty where there are none."""
    known = sorted({f"{value:.5g}" for value in values if value is not None}, key=float)
    return known[0] if len(known) == 1 else f"{known[0]} to {known[-1]}" if known else ""


def _largest(accounts: Accounts, key: str) -> str:
    """The largest epsilon of the sites; None among them stands for no bound, or for what stays at a site."""
    if not accounts or any(facts["sigma"] is None and facts[key] is None for facts in accounts.values()):
        return MISSING
    value = max(_or_infinite(facts[key]) for facts in accounts.values())
    return UNBOUNDED if math.isinf(value) else f"{value:.4g}"


def _or_infinite(value: float | None) -> float:
    return math.inf if value is None else value


def _sites(accounts: Accounts) -> list[Meta]:
    """Site by site, where the sites' accounts differ; sites with the same account share a line."""
    sites_by_cells: dict[tuple[str, ...], list[str]] = {}
    for site, facts in sorted(accounts.items()):
        total = facts["total_epsilon"]
        cells = (
            _range([facts["sigma"]]) or MISSING,
            f"{facts['releases']} of {facts['planned']}",
            _largest({site: facts}, "epsilon"),
            *((_largest({site: facts}, "composed"), str(facts["runs"])) if facts["ledger"] else (MISSING, MISSING)),
            MISSING if total is None else f"{total:g}",
        )
        sites_by_cells.setdefault(cells, []).append(site)
    if len(sites_by_cells) < 2:
        return []
    return [{"sites": listed(sites), "cells": cells} for cells, sites in sites_by_cells.items()]
