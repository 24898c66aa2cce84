"""What a search costs under privacy: what all its trials released together, by the ledgers' own reckoning.

Each trial keeps its own budget and is charged to the sites' ledgers. Their composition is a promise about the updates
or trainings of all trials; that one of them was chosen by validation scores is not in it, as these are no private
answers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from medfl.errors import SettingsError
from medfl.privacy.composition import Part, epsilon
from medfl.privacy.gaussian import noise_multiplier
from medfl.records.privacy_account import PrivacyAccount
from medfl.records.search import Price
from medfl.runs.provenance import bundle_values
from medfl.settings import Privacy, Settings, read_settings
from medfl.studies.schema import DataSet, Study
from medfl.types import Meta

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
                kinds.setdefault(kind, {}).setdefault(site, []).append(_part_of(account))
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


def _part_of(account: PrivacyAccount) -> Part:
    """Return the noised steps of a run's releases."""
    assert account.sigma is not None
    assert account.rate is not None
    assert account.steps is not None
    return Part(account.sigma, account.steps * account.releases, account.rate)


def privacy_of(study: Study, data: DataSet, row: str) -> Meta | None:
    """The privacy setting of a row's runs, as the study gives it; None without one."""
    options = study.settings | data.options | study.rows[row].settings
    privacy: Meta | None = options.get("privacy")
    return privacy


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


def check_price(study: Study, trials: int, rounds: int, halving: bool, adopted: bool, bundle: Path) -> None:
    """Refuse a search that privacy does not allow.

    Args:
        study: With one data set.
        trials: Of each row.
        rounds: Of each trial.
        halving: Whether runs are continued.
        adopted: Whether the bundle is a stock one, whose sites' fingerprints hang on their test cases.
        bundle: The bundle.

    Raises:
        SettingsError: With the reason.
    """
    (data,) = study.data.values()
    if (bundle_values(bundle).get("settings") or {}).get("privacy") is not None:
        raise SettingsError(
            "misplaced_setting",
            "the bundle itself sets 'privacy': give it in the study file, where its ledger is named.",
            setting="privacy",
        )
    planned: dict[str, list[tuple[Privacy, int]]] = {}
    for name in study.rows:
        stated = privacy_of(study, data, name)
        if stated is None:
            continue
        if halving:
            raise SettingsError(
                "incompatible_settings",
                f"row '{name}' has 'privacy', and halving continues runs with more rounds: a run under privacy has "
                "spread its budget over the rounds it began with, so more of them can't be accounted for. Choose the "
                "sampler random, grid or tpe.",
                row=name,
                settings=["privacy", "halving"],
            )
        if adopted:
            raise SettingsError(
                "incompatible_settings",
                f"row '{name}' has 'privacy' on an adopted bundle, whose sites have another fingerprint without their "
                "test cases: the trials would stand in no ledger that later runs find. Leave one of them out.",
                row=name,
                settings=["privacy", "adopted"],
            )
        privacy = read_settings(Settings, {"rounds": rounds, "privacy": stated}, f"row '{name}'").privacy
        assert privacy is not None
        if privacy.unit == "site" and privacy.ledger is not None and privacy.total_epsilon is not None:
            planned.setdefault(str(privacy.ledger), []).append((privacy, trials))
    for ledger, runs in planned.items():
        _check_total(ledger, runs, rounds)


def _check_total(ledger: str, runs: Sequence[tuple[Privacy, int]], rounds: int) -> None:
    """Refuse trials that exceed the total of a ledger together."""
    for privacy, _ in runs:
        parts = tuple(Part(noise_multiplier(other, rounds), rounds * count) for other, count in runs)
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
