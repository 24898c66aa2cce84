"""Privacy cost of tuning: charges of every trial, their composition in closed form, and refusals."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from tune_toys import launch_here

from medfl.errors import SettingsError
from medfl.privacy import composition
from medfl.privacy.composition import NoisedReleases
from medfl.privacy.gaussian import calibrate, epsilon
from medfl.privacy.policy import policy_of
from medfl.records.ledger import Ledger, LedgerEntry
from medfl.records.privacy_account import PrivacyAccount
from medfl.settings import Settings
from medfl_studies.tune.privacy_cost import compute_privacy_costs, describe_privacy_cost
from medfl_studies.tune.search import run_search
from medfl_studies.tune.search_report import write_search_reports

PRIVACY = {"epsilon": 4.0, "clip": 1.0, "delta": 1e-5, "adjacency": "add_remove"}
CHANGES = {"settings__rounds": 2, "tune__trials": 2, "settings__privacy": PRIVACY}


def account(sigma: float, releases: int, **fields: object) -> PrivacyAccount:
    """Return the account of a run with Gaussian noise. The privacy cost depends only on its stated epsilon."""
    plain = {"unit": "site", "adjacency": "add_remove", "delta": 1e-5, "rate": 1.0, "steps": 1, "threshold": None}
    plain |= {"planned": 9, "stated_epsilon": 4.0, "epsilon": 4.0, "composed": 4.0, "runs": 1, "ledger": False}
    return PrivacyAccount(**(plain | {"sigma": sigma, "releases": releases, "total_epsilon": None} | fields))


def test_every_trial_is_charged_and_the_price_is_their_composition(load, tmp_path: Path) -> None:
    """Two rows with two trials of two rounds: eight Gaussian releases of one noise, which compose exactly."""
    search = load(CHANGES)
    tuned = run_search(search, launch_here)
    sigma = calibrate(4.0, 2, 1e-5)
    (cost,) = tuned.privacy_costs
    assert cost.epsilon == pytest.approx(epsilon(sigma, 8, 1e-5), rel=1e-9)
    assert (cost.unit, cost.adjacency, cost.delta) == ("site", "add_remove", 1e-5)
    assert (cost.trials, cost.largest) == (4, 4.0)
    assert 4.0 < cost.epsilon < 4 * 4.0, "together more than one, and less than their sum"
    ledgers = sorted((tmp_path / "out" / "ledger").glob("*.json"))
    assert len(ledgers) == 2, "one for each site's data"
    for ledger in ledgers:
        parts = [NoisedReleases.from_entry(entry) for entry in Ledger.read(ledger).entries.values()]
        assert [(part.sigma, part.count) for part in parts] == [(sigma, 2)] * 4
        assert composition.epsilon(tuple(parts), 1e-5) == cost.epsilon
    page = write_search_reports([search], [tuned])[1].read_text()
    assert f"4 trials, each with epsilon 4 at most, have together epsilon {cost.epsilon:.4g} (unit site" in page
    assert "adjacency 'add_remove', delta 1e-05" in page
    assert "does not cover the selection of the best trial" in page
    text = (search.out / "small-tuned.yaml").read_text()
    assert f"ledger: {search.out / 'ledger'}" in text, "the runs of the winners are charged on top"


def test_prices_are_those_of_the_site_that_paid_most_for_each_kind_of_promise() -> None:
    first = {"a": account(2.0, 3), "b": account(2.0, 1)}
    second = {"b": account(1.0, 4, stated_epsilon=9.0)}
    other = {"a": account(2.0, 3, adjacency="replace")}
    (cost, replaced) = compute_privacy_costs([first, second, other, {}])
    assert (cost.site, cost.trials, cost.largest) == ("b", 2, 9.0)
    assert cost.epsilon == composition.epsilon((NoisedReleases(2.0, 1), NoisedReleases(1.0, 4)), 1e-5)
    assert (replaced.adjacency, replaced.trials) == ("replace", 1)
    assert compute_privacy_costs([{}, {}]) == []
    (nothing,) = compute_privacy_costs([{"a": account(0.0, 1)}])
    assert nothing.epsilon is None
    assert "together no bound" in describe_privacy_cost(nothing)


@pytest.mark.parametrize(
    ("changes", "code", "fields", "place"),
    [
        (
            {"settings__privacy": PRIVACY | {"ledger": "l", "total_epsilon": 8.0}},
            "privacy_budget_exceeded",
            {"count": 4, "total_epsilon": 8.0},
            "",
        ),
        (
            {"tune__settings": {"privacy#epsilon": [1.0, 2.0]}},
            "setting_not_tunable",
            {"setting": "privacy"},
            "only 'privacy#clip' can be tuned",
        ),
        (
            {"tune__settings": {"privacy#clip": [1.0, -2.0]}},
            "setting_out_of_range",
            {"settings": ["privacy.clip"]},
            "privacy#clip: ",
        ),
    ],
)
def test_what_privacy_does_not_allow_is_refused(
    load, tmp_path: Path, monkeypatch, changes, code, fields, place
) -> None:
    monkeypatch.chdir(tmp_path)
    with refused(SettingsError, code, **fields) as caught:
        load(CHANGES | changes)
    assert place in str(caught.value)


def test_a_ledger_of_the_study_is_kept_and_a_clip_may_be_tuned(load, tmp_path: Path) -> None:
    mine = str(tmp_path / "mine")
    changes = {"settings__privacy": PRIVACY | {"ledger": mine}, "tune__settings": {"privacy#clip": [0.5, 1.0]}}
    changes |= {"rows": {"mean": {"method": "fedavg"}}, "tune__rows": {}, "tune__sampler": "grid", "tune__trials": None}
    search = load(CHANGES | changes)
    tuned = run_search(search, launch_here)
    assert {result.trial.parameters["privacy#clip"] for result in tuned.results} == {0.5, 1.0}
    tried = [search.job("mean", result.trial).options["privacy"] for result in tuned.results]
    assert [privacy | {"clip": 0} for privacy in tried] == [PRIVACY | {"ledger": mine, "clip": 0}] * 2
    assert len(list(Path(mine).glob("*.json"))) == 2
    assert not (search.out / "ledger").exists()


def rounds_of(trials: int) -> float:
    """Return the exact epsilon of some trials of two rounds. Gaussian releases with equal noise compose exactly."""
    return float(epsilon(calibrate(4.0, 2, 1e-5), 2 * trials, 1e-5))


@pytest.mark.parametrize(("factor", "allowed"), [(1.0, True), (0.999, False), (10.0, True)])
def test_a_total_is_compared_with_all_trials_of_all_rows(load, tmp_path: Path, factor: float, allowed: bool) -> None:
    """Two rows of two trials may use exactly the total. A total that is a thousandth smaller is refused."""
    privacy = PRIVACY | {"ledger": str(tmp_path / "ledger"), "total_epsilon": factor * rounds_of(4)}
    if allowed:
        load(CHANGES | {"settings__privacy": privacy})
    else:
        with refused(SettingsError, "privacy_budget_exceeded", count=4, total_epsilon=privacy["total_epsilon"]):
            load(CHANGES | {"settings__privacy": privacy})


def test_a_ledger_without_a_total_allows_any_number_of_trials(load, tmp_path: Path) -> None:
    load(CHANGES | {"tune__trials": 8, "settings__privacy": PRIVACY | {"ledger": str(tmp_path / "ledger")}})


def test_the_price_counts_every_step_of_every_release() -> None:
    (cost,) = compute_privacy_costs([{"a": account(2.0, 3, steps=5)}])
    assert cost.epsilon == pytest.approx(epsilon(2.0, 15, 1e-5), rel=1e-9)


@pytest.mark.parametrize(("adjacency", "far"), [("add_remove", 1.0), ("replace", 2.0)])
def test_noise_of_several_sites_is_composed_as_the_ledger_composes_it(adjacency: str, far: float) -> None:
    """Sums have discrete noise, so concentrated privacy gives the bound; exact Gaussian composition is too small."""
    shares = account(2.0, 3, threshold=3, adjacency=adjacency)
    (cost,) = compute_privacy_costs([{"a": shares}, {"a": shares}])
    rho = 6 * (far / 2.0) ** 2 / 2
    assert cost.epsilon == pytest.approx(composition.concentrated_epsilon(rho, 1e-5), rel=1e-12)
    entry = LedgerEntry(
        unit="site",
        mechanism="distributed discrete gaussian",
        adjacency=adjacency,
        sigma=2.0,
        rate=1.0,
        steps=1,
        delta=1e-5,
        epsilon=4.0,
        planned=9,
        releases=("1", "2", "3"),
        threshold=3,
    )
    parts = (NoisedReleases.from_entry(entry),) * 2
    assert cost.epsilon == composition.epsilon(parts, 1e-5, adjacency)
    assert cost.epsilon > epsilon(2.0, 6, 1e-5, far)


@pytest.mark.parametrize(("factor", "allowed"), [(1.0, True), (0.999, False)])
def test_a_total_is_compared_with_the_sums_of_all_trials(load, tmp_path: Path, factor: float, allowed: bool) -> None:
    run = Settings.model_validate({"rounds": 2, "privacy": PRIVACY, "secure_aggregation": {"threshold": 2}})
    rho = 2 * 4 / (2 * policy_of(run).sum_noise() ** 2)
    together = composition.concentrated_epsilon(rho, 1e-5)
    assert together != pytest.approx(rounds_of(4), rel=0.01)
    privacy = PRIVACY | {"ledger": str(tmp_path / "ledger"), "total_epsilon": factor * together}
    changes = CHANGES | {"settings__privacy": privacy, "settings__secure_aggregation": {"threshold": 2}}
    if allowed:
        load(changes)
    else:
        with refused(SettingsError, "privacy_budget_exceeded", count=4, total_epsilon=privacy["total_epsilon"]):
            load(changes)
