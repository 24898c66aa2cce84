"""Privacy cost of a search: the combined privacy loss of all its trials.

The cost is computed like in the sites' privacy budget ledgers. Each trial has its own budget and is charged to the
ledgers. The composition is a guarantee about the updates or trainings of all trials. It does not cover the selection of
a trial by validation scores, because the scores are not private.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from medfl.engine.runs.provenance import bundle_values
from medfl.errors import SettingsError
from medfl.privacy.composition import NoisedReleases, epsilon
from medfl.privacy.policy import PrivacyPolicy, policy_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Settings, read_settings
from medfl.types import Meta
from medfl_studies.records.study_files import PrivacyCost
from medfl_studies.schema import DataSet, Study

LEDGER_FOLDER = "ledger"
"""Folder of the ledgers in the output folder of a search, if the study names no ledger."""


def describe_privacy_cost(cost: PrivacyCost) -> str:
    """Describe the privacy cost of tuning in a sentence."""
    together = "no bound" if cost.epsilon is None else f"epsilon {cost.epsilon:.4g}"
    return (
        f"Privacy cost of tuning: {cost.trials} trials, each with epsilon {cost.largest:.4g} at most, have together "
        f"{together} (unit {cost.unit}, adjacency '{cost.adjacency}', delta {cost.delta:g}; site '{cost.site}' "
        "with the largest loss)."
    )


def compute_privacy_costs(accounts: Sequence[Mapping[str, PrivacyAccount]]) -> list[PrivacyCost]:
    """Return the combined privacy cost of runs for each kind of guarantee; empty without privacy.

    Args:
        accounts: For each run, a mapping from site name to privacy account. No account is redacted.
    """
    parts_by_kind: dict[tuple[str, str, float], dict[str, list[NoisedReleases]]] = {}
    epsilons_by_kind: dict[tuple[str, str, float], list[float]] = {}
    for run in accounts:
        for kind in dict.fromkeys(map(_guarantee_kind, run.values())):
            account_by_site = {site: account for site, account in run.items() if _guarantee_kind(account) == kind}
            epsilons_by_kind.setdefault(kind, []).append(
                max(account.stated_epsilon for account in account_by_site.values())
            )
            for site, account in account_by_site.items():
                parts_by_kind.setdefault(kind, {}).setdefault(site, []).append(NoisedReleases.from_account(account))
    costs = []
    for (unit, adjacency, delta), by_site in parts_by_kind.items():
        spent = {site: epsilon(tuple(parts), delta, adjacency) for site, parts in sorted(by_site.items())}
        site = max(spent, key=lambda name: spent[name])
        each = epsilons_by_kind[unit, adjacency, delta]
        bound = None if math.isinf(spent[site]) else spent[site]
        costs.append(
            PrivacyCost(
                unit=unit,
                adjacency=adjacency,
                delta=delta,
                trials=len(each),
                largest=max(each),
                epsilon=bound,
                site=site,
            )
        )
    return costs


def _guarantee_kind(account: PrivacyAccount) -> tuple[str, str, float]:
    """Return the kind of guarantee of an account: unit, adjacency and delta."""
    return account.unit, account.adjacency, account.delta


def find_privacy(study: Study, data: DataSet, row: str) -> Meta | None:
    """Return the privacy setting of a row's runs in the study, or None."""
    privacy: Meta | None = _row_settings(study, data, row).get("privacy")
    return privacy


def _row_settings(study: Study, data: DataSet, row: str) -> Meta:
    """Return the settings of a row's runs in the study."""
    return study.settings | data.options | study.rows[row].settings


def with_privacy_ledgers(study: Study, out: Path) -> Study:
    """Return the study with a ledger for every row with privacy: the study's ledger, or one in the search's folder.

    Args:
        study: Study with one data set.
        out: Output folder of the search.
    """
    (data,) = study.data.values()
    rows = {}
    for name, row in study.rows.items():
        privacy = find_privacy(study, data, name)
        if privacy is not None:
            charged = privacy | {"ledger": privacy.get("ledger") or str((out / LEDGER_FOLDER).resolve())}
            row = row.model_copy(update={"settings": row.settings | {"privacy": charged}})
        rows[name] = row
    return study.model_copy(update={"rows": rows})


def check_privacy_budget(study: Study, trials: int, rounds: int, adopted: bool, bundle: Path) -> None:
    """Raise SettingsError if the privacy settings do not allow a search.

    Args:
        study: Study with one data set.
        trials: Number of trials of each row.
        rounds: Number of rounds of each trial.
        adopted: Whether the bundle is an adopted stock bundle, whose sites' fingerprints depend on their test cases.
        bundle: Folder of the bundle.

    Raises:
        SettingsError: If the bundle sets ``privacy``, if an adopted bundle is tuned with privacy, or if the trials
            exceed the total epsilon of a ledger.
    """
    (data,) = study.data.values()
    of_bundle: Meta = bundle_values(bundle).get("settings") or {}
    if of_bundle.get("privacy") is not None:
        raise SettingsError(
            "misplaced_setting",
            "The bundle sets 'privacy'. Move the setting into the study file, which names its ledger.",
            setting="privacy",
        )
    planned: dict[str, list[tuple[PrivacyPolicy, int]]] = {}
    for name in study.rows:
        epsilons_by_kind = find_privacy(study, data, name)
        if epsilons_by_kind is None:
            continue
        if adopted:
            raise SettingsError(
                "incompatible_settings",
                f"Row '{name}' uses 'privacy' with an adopted bundle. Its sites have another fingerprint without their "
                "test cases, so later runs would not find the ledger of the trials. Leave out the privacy or the "
                "adopted bundle.",
                row=name,
                settings=["privacy", "adopted"],
            )
        secure = (of_bundle | _row_settings(study, data, name)).get("secure_aggregation")
        values = {"rounds": rounds, "privacy": epsilons_by_kind, "secure_aggregation": secure}
        settings = read_settings(Settings, values, f"row '{name}'")
        privacy, policy = settings.privacy, policy_of(settings)
        assert privacy is not None
        depends_on_data = policy.release() is None
        if not depends_on_data and privacy.ledger is not None and privacy.total_epsilon is not None:
            planned.setdefault(str(privacy.ledger), []).append((policy, trials))
    for ledger, runs in planned.items():
        _check_total(ledger, runs)


def _check_total(ledger: str, runs: Sequence[tuple[PrivacyPolicy, int]]) -> None:
    """Raise SettingsError if trials together exceed the total epsilon of a ledger."""
    for policy, _ in runs:
        privacy, parts = policy.privacy, tuple(_planned_releases(other, count) for other, count in runs)
        assert privacy is not None
        spent = epsilon(parts, privacy.delta, privacy.adjacency)
        if privacy.total_epsilon is not None and spent > privacy.total_epsilon * (1 + 1e-9):
            count = sum(number for _, number in runs)
            raise SettingsError(
                "privacy_budget_exceeded",
                f"The {count} trials with privacy have together epsilon {spent:.4g} (unit site, '{privacy.adjacency}', "
                f"delta {privacy.delta:g}), but the ledger '{ledger}' allows a total of {privacy.total_epsilon:g}. "
                "Lower 'trials' or epsilon, or raise 'total_epsilon' if the sites agree.",
                count=count,
                epsilon=spent,
                total_epsilon=privacy.total_epsilon,
                ledger=ledger,
            )


def _planned_releases(policy: PrivacyPolicy, trials: int) -> NoisedReleases:
    """Return all releases that the trials plan together (a release is one noised value that leaves a site)."""
    release = policy.release()
    assert release is not None, "checked by the caller"
    return replace(release, count=release.count * policy.planned_releases * trials)
