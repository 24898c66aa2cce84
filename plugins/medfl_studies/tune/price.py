"""What a search costs under privacy: what all its trials released together, by the ledgers' own reckoning.

Each trial keeps its own budget and is charged to the sites' ledgers. Their composition is a promise about the updates
or trainings of all trials; that one of them was chosen by validation scores is not in it, as these are no private
answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from medfl.engine.runs.provenance import bundle_values
from medfl.errors import SettingsError
from medfl.privacy.composition import Part, epsilon
from medfl.privacy.policy import PrivacyPolicy, policy_of
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Settings, read_settings
from medfl.types import Meta
from medfl_studies.records.study_files import Price
from medfl_studies.schema import DataSet, Study

LEDGER = "ledger"
"""Folder of the ledgers in that of a search, where the study names none."""


def price_sentence(price: Price) -> str:
    """Return a sentence about the privacy that tuning spent."""
    together = "no bound" if price.epsilon is None else f"epsilon {price.epsilon:.4g}"
    return (
        f"The price of tuning: {price.trials} trials of epsilon {price.largest:.4g} at most are together {together} "
        f"(unit {price.unit}, adjacency '{price.adjacency}', delta {price.delta:g}; site '{price.site}', which paid "
        "most)."
    )


def prices(accounts: Sequence[Mapping[str, PrivacyAccount]]) -> list[Price]:
    """Return the price of runs together for each kind of promise. Without privacy there is none.

    Args:
        accounts: For each run, a mapping from each site to its account. No account is redacted.
    """
    kinds: dict[tuple[str, str, float], dict[str, list[Part]]] = {}
    stated: dict[tuple[str, str, float], list[float]] = {}
    for run in accounts:
        for kind in dict.fromkeys(map(_kind, run.values())):
            account_by_site = {site: account for site, account in run.items() if _kind(account) == kind}
            stated.setdefault(kind, []).append(max(account.stated_epsilon for account in account_by_site.values()))
            for site, account in account_by_site.items():
                kinds.setdefault(kind, {}).setdefault(site, []).append(Part.from_account(account))
    priced = []
    for (unit, adjacency, delta), by_site in kinds.items():
        spent = {site: epsilon(tuple(parts), delta, adjacency) for site, parts in sorted(by_site.items())}
        site = max(spent, key=lambda name: spent[name])
        each = stated[unit, adjacency, delta]
        bound = None if math.isinf(spent[site]) else spent[site]
        priced.append(
            Price(
                unit=unit,
                adjacency=adjacency,
                delta=delta,
                trials=len(each),
                largest=max(each),
                epsilon=bound,
                site=site,
            )
        )
    return priced


def _kind(account: PrivacyAccount) -> tuple[str, str, float]:
    return account.unit, account.adjacency, account.delta


def privacy_of(study: Study, data: DataSet, row: str) -> Meta | None:
    """The privacy setting of a row's runs, as the study gives it; None without one."""
    privacy: Meta | None = _options_of(study, data, row).get("privacy")
    return privacy


def _options_of(study: Study, data: DataSet, row: str) -> Meta:
    """Return the settings of a row's runs, as the study file has them."""
    return study.settings | data.options | study.rows[row].settings


def with_ledger(study: Study, out: Path) -> Study:
    """The study with a ledger for every row under privacy: that of the study, or one in the folder of the search.

    Args:
        study: With one data set.
        out: Folder of the search.
    """
    (data,) = study.data.values()
    rows = {}
    for name, row in study.rows.items():
        privacy = privacy_of(study, data, name)
        if privacy is not None:
            charged = privacy | {"ledger": privacy.get("ledger") or str((out / LEDGER).resolve())}
            row = row.model_copy(update={"settings": row.settings | {"privacy": charged}})
        rows[name] = row
    return study.model_copy(update={"rows": rows})


def check_price(study: Study, trials: int, rounds: int, adopted: bool, bundle: Path) -> None:
    """Refuse a search that privacy does not allow.

    Args:
        study: With one data set.
        trials: Of each row.
        rounds: Of each trial.
        adopted: Whether the bundle is a stock one, whose sites' fingerprints hang on their test cases.
        bundle: The bundle.

    Raises:
        SettingsError: With the reason.
    """
    (data,) = study.data.values()
    of_bundle: Meta = bundle_values(bundle).get("settings") or {}
    if of_bundle.get("privacy") is not None:
        raise SettingsError(
            "misplaced_setting",
            "the bundle itself sets 'privacy': give it in the study file, where its ledger is named.",
            setting="privacy",
        )
    planned: dict[str, list[tuple[PrivacyPolicy, int]]] = {}
    for name in study.rows:
        stated = privacy_of(study, data, name)
        if stated is None:
            continue
        if adopted:
            raise SettingsError(
                "incompatible_settings",
                f"row '{name}' has 'privacy' on an adopted bundle, whose sites have another fingerprint without their "
                "test cases: the trials would stand in no ledger that later runs find. Leave one of them out.",
                row=name,
                settings=["privacy", "adopted"],
            )
        secure = (of_bundle | _options_of(study, data, name)).get("secure_aggregation")
        values = {"rounds": rounds, "privacy": stated, "secure_aggregation": secure}
        settings = read_settings(Settings, values, f"row '{name}'")
        privacy, policy = settings.privacy, policy_of(settings)
        assert privacy is not None
        depends_on_data = policy.release() is None
        if not depends_on_data and privacy.ledger is not None and privacy.total_epsilon is not None:
            planned.setdefault(str(privacy.ledger), []).append((policy, trials))
    for ledger, runs in planned.items():
        _check_total(ledger, runs)


def _check_total(ledger: str, runs: Sequence[tuple[PrivacyPolicy, int]]) -> None:
    """Refuse trials that exceed the total of a ledger together."""
    for policy, _ in runs:
        privacy, parts = policy.privacy, tuple(_planned(other, count) for other, count in runs)
        assert privacy is not None
        spent = epsilon(parts, privacy.delta, privacy.adjacency)
        if privacy.total_epsilon is not None and spent > privacy.total_epsilon * (1 + 1e-9):
            count = sum(number for _, number in runs)
            raise SettingsError(
                "privacy_budget_exceeded",
                f"the {count} trials under privacy are together epsilon {spent:.4g} (unit site, '{privacy.adjacency}', "
                f"delta {privacy.delta:g}), and the ledger '{ledger}' allows a total of {privacy.total_epsilon:g}. "
                "Lower 'trials' or epsilon, or raise 'total_epsilon' if the sites agree.",
                count=count,
                epsilon=spent,
                total_epsilon=privacy.total_epsilon,
                ledger=ledger,
            )


def _planned(policy: PrivacyPolicy, trials: int) -> Part:
    """Return all releases that trials plan together."""
    release = policy.release()
    assert release is not None, "checked by the caller"
    return replace(release, count=release.count * policy.planned_releases * trials)
