"""Tests of a robust rule in a plugin file: lookup, use in a run, and refusal without the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from own_plugins import load_block
from refusals import refused

from medfl.engine.checks import check_names
from medfl.engine.store import Store
from medfl.errors import PluginError, SettingsError
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import Case, make_task
from medfl.toolkit.robust.rule import make_rule
from medfl.utils.wire import select


def test_a_rule_of_a_plugin_file_aggregates_a_run(tmp_path: Path) -> None:
    """The model moves by the update that is closest to the two others."""
    registry, task = load_block("medoid", tmp_path), make_task("plain")
    result = Case(registry, "fedavg").run(tmp_path / "run", task=task, rounds=1, robust={"rule": "medoid"})
    begun, model = task.initial(7), result.outcome.models["global"].tensors
    updates = {}
    for site in ("site-1", "site-2", "site-3"):
        record = Store(tmp_path / "run" / "state" / site).load(1)
        assert record is not None
        sent = select(record.tensors, "reply/model/")
        updates[site] = torch.cat([sent[name].double().flatten() for name in begun])
    sums = {site: sum(float((update - other).norm()) for other in updates.values()) for site, update in updates.items()}
    moved = torch.cat([(model[name].double() - begun[name].double()).flatten() for name in begun])
    torch.testing.assert_close(moved, updates[min(sums, key=lambda site: sums[site])], atol=1e-6, rtol=1e-4)


def test_a_run_with_too_few_sites_or_an_option_of_another_rule_is_refused(tmp_path: Path) -> None:
    case = Case(load_block("medoid", tmp_path), "fedavg")
    with refused(SettingsError, "too_few_replies", rule="medoid", minimum=5, found=3):
        case.run(tmp_path / "few", robust={"rule": "medoid", "f": 2})
    with refused(SettingsError, "unsupported_setting", setting="robust.radius", rule="medoid", options=[]):
        case.run(tmp_path / "other", robust={"rule": "medoid", "radius": 1.0})


@pytest.mark.parametrize(
    ("name", "near"), [("medain", "median"), ("centered_clip", "centred_clip"), ("medoid", "median")]
)
def test_a_rule_that_no_plugin_of_a_run_has_is_refused_with_the_nearest(tmp_path: Path, name: str, near: str) -> None:
    """Plugins that another run of this process loaded don't count."""
    load_block("medoid", tmp_path)
    with refused(PluginError, "unknown_choice", what="robust_rule", choice=name) as caught:
        check_names(Settings.model_validate({"rounds": 1, "robust": {"rule": name}}), load_plugins())
    assert f"Did you mean '{near}'" in str(caught.value)


def test_what_is_no_rule_and_a_name_of_another_form_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd_rules.py"
    path.write_text(
        "from medfl.plugins import RobustRuleRecord, hookimpl\n\n"
        "@hookimpl\n"
        "def medfl_robust_rules():\n"
        "    return [RobustRuleRecord('root', 'math:sqrt')]\n"
    )
    load_plugins([path])
    settings = Settings.model_validate({"rounds": 1, "robust": {"rule": "root"}})
    assert settings.robust is not None
    with refused(PluginError, "wrong_type", what="robust_rule", name="root"):
        make_rule(settings.robust)
    with pytest.raises(ValueError, match="rule"):
        Settings.model_validate({"rounds": 1, "robust": {"rule": "../median"}})
