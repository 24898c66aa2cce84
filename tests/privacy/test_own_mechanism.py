"""Test a privacy mechanism from a plugin file: a run finds it by its unit, uses it and accounts for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from own_plugins import load_block
from refusals import refused

from medfl.engine.checks import check_names
from medfl.engine.runs.records import read_run
from medfl.errors import PluginError, SettingsError
from medfl.plugins import load_plugins
from medfl.privacy.composition import NoisedReleases
from medfl.privacy.policy import mechanism_of, policy_of
from medfl.records.ledger import Ledger, LedgerEntry
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_task

PRIVACY = {"epsilon": 8.0, "clip": 0.5, "unit": "site_zcdp"}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(load_block("site_zcdp", tmp_path), "fedavg")


def test_a_mechanism_of_a_plugin_file_noises_and_accounts_a_run(case: Case, tmp_path: Path) -> None:
    result = case.run(tmp_path / "run", task=make_task("plain"), rounds=2, privacy=PRIVACY)
    assert result.outcome.status == "finished"
    settings = read_run(tmp_path / "run").run.settings
    assert settings.privacy is not None
    assert (settings.privacy.unit, settings.privacy.accountant) == ("site_zcdp", "zcdp")
    policy = policy_of(settings)
    exact = policy_of(case.settings_of(rounds=2, privacy=PRIVACY | {"unit": "site"}))
    assert (policy.update_noise(2) or 0) > (exact.update_noise(2) or 0) > 0
    (entry,) = Ledger.load(tmp_path / "run" / "state" / "site-1" / Ledger.NAME, "site-1").entries.values()
    assert (entry.unit, len(entry.releases)) == ("site_zcdp", 2)
    assert entry.sigma == policy.update_noise(2)


def test_other_mechanisms_count_its_releases_as_far_as_a_bound_is_known(case: Case) -> None:
    entry = LedgerEntry(
        unit="site_zcdp", mechanism="gaussian", adjacency="replace", sigma=4.0, rate=1.0, steps=1, delta=1e-5,
        epsilon=5.0, planned=3, releases=("a", "b"), threshold=None,
    )  # fmt: skip
    assert mechanism_of("sample").part_of(entry, "replace") == NoisedReleases(4.0, 2)
    assert mechanism_of("site").part_of(entry, "replace") is None
    of_images = entry.model_copy(update={"unit": "sample"})
    assert mechanism_of("site_zcdp").part_of(of_images, "replace") is None
    with refused(PluginError, "unknown_choice", what="privacy_mechanism", choice="ward"):
        mechanism_of("sample").part_of(entry.model_copy(update={"unit": "ward"}), "replace")


def test_it_refuses_what_it_can_not_keep(case: Case, tmp_path: Path) -> None:
    with refused(SettingsError, "incompatible_settings", settings=["privacy.unit", "secure_aggregation"]):
        case.run(tmp_path / "run", task=make_task("plain"), privacy=PRIVACY, secure_aggregation={})
    with refused(PluginError, "unknown_choice", what="privacy_mechanism", choice="site_zcdp") as caught:
        check_names(case.settings_of(privacy=PRIVACY), load_plugins())
    assert "Did you mean 'site'" in str(caught.value)


def test_a_mechanism_for_another_unit_than_its_record_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "wards.py"
    path.write_text(
        "from medfl.privacy.mechanisms.site_updates import SiteUpdates\n"
        "from medfl.plugins import PrivacyMechanismRecord, hookimpl\n"
        "class Wards(SiteUpdates):\n"
        "    unit = 'wards'\n"
        "@hookimpl\n"
        "def medfl_privacy_mechanisms():\n"
        "    return [PrivacyMechanismRecord(name, f'{__name__}:Wards') for name in ('wards', 'beds')]\n"
    )
    load_plugins([path])
    with refused(PluginError, "wrong_name", expected="beds", found="wards"):
        mechanism_of("beds")
    summed = Settings.model_validate(
        {"rounds": 1, "privacy": PRIVACY | {"unit": "wards"}, "secure_aggregation": {"threshold": 2}}
    )
    with refused(PluginError, "wrong_name", expected="wards", found="site"):
        policy_of(summed)
