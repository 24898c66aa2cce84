"""Privacy cost of a search: the combined privacy loss of all its trials under differential privacy.

A trial is a run of one row of a study; a row is a method with settings. A site's privacy account lists the noised
releases of one run. A site's privacy budget ledger is a file that adds up the releases of several runs; the setting
``privacy`` names the folder of the ledgers. Each trial is charged to the ledgers, and the cost of a search is computed
in the same way as the total of a ledger. A kind of guarantee is a combination of unit (``site`` or ``sample``),
adjacency and delta; only privacy losses of the same kind can be combined.

The cost covers the noised releases of all trials. It does not cover the selection of a trial by validation scores,
because the scores are not noised.
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
"""Name of the folder, in the output folder of a search, that holds the sites' ledgers if the study names no ledger."""


def describe_privacy_cost(cost: PrivacyCost) -> str:
    """Describe the privacy cost of a search in a sentence: number of trials, largest and combined epsilon, and site."""
    together = "no bound" if cost.epsilon is None else f"epsilon {cost.epsilon:.4g}"
    return (
        f"Privacy cost of tuning: {cost.trials} trials, each with epsilon {cost.largest:.4g} at most, have together "
        f"{together} (unit {cost.unit}, adjacency '{cost.adjacency}', delta {cost.delta:g}; site '{cost.site}' "
        "with the largest loss)."
    )


def compute_privacy_costs(accounts: Sequence[Mapping[str, PrivacyAccount]]) -> list[PrivacyCost]:
    """Compute the combined privacy cost of several runs.

    Args:
        accounts: For each run, a mapping from site name to privacy account. No account may be redacted: a redacted
            account lacks the numbers that a site withholds, which the computation needs.

    Returns:
        One cost for each kind of guarantee, at the site with the largest combined epsilon; empty without privacy.
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
    """Return the value of the setting ``privacy`` for the runs of a row on a data set; None if they have no privacy.

    The setting may come from the study, the data set or the row; the row takes precedence.
    """
    privacy: Meta | None = _row_settings(study, data, row).get("privacy")
    return privacy


def _row_settings(study: Study, data: DataSet, row: str) -> Meta:
    """Return the settings of a row's runs in the study."""
    return study.settings | data.options | study.rows[row].settings


def with_privacy_ledgers(study: Study, out: Path) -> Study:
    """Return a copy of the study in which every row with privacy names a folder of ledgers, to charge each trial.

    A row without such a folder gets the folder `LEDGER_FOLDER` in the output folder of the search.

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
    """Check that the privacy settings of the study allow a search; raise SettingsError if not.

    The total epsilon is checked for rows with a ledger whose number of releases is known in advance. Earlier charges of
    the ledgers are at the sites and not counted here; each trial checks them.

    Args:
        study: Study with one data set.
        trials: Number of trials of each row.
        rounds: Number of rounds of each trial.
        adopted: Whether the bundle is adopted: a stock MONAI bundle for which ``medfl adopt`` wrote a federation file.
            Trials leave out test cases, which changes the fingerprint of the data of such a bundle, so later runs would
            not find the ledgers of the trials.
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
        requested = find_privacy(study, data, name)
        if requested is None:
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
        values = {"rounds": rounds, "privacy": requested, "secure_aggregation": secure}
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
