"""Test network assignments: a plugin's rule chooses the network of each site, and ``run.json`` records it."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from refusals import refused

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.federation import read_federation
from medfl.engine.runs.network_assignment import NetworkAssignment, read_assignment
from medfl.errors import PluginError, SettingsError
from medfl.plugins import Registry, load_plugins
from medfl.records.run_file import AssignedNetwork, RunFile
from medfl.testing.synthetic import make_cohort

PLUGIN = """
from medfl.engine.runs.network_assignment import NetworkAssignment
from medfl.plugins import NetworkAssignmentRecord, hookimpl
from medfl.records.run_file import AssignedNetwork

@hookimpl
def medfl_networks_by_site():
    return [
        NetworkAssignmentRecord("alternate", f"{__name__}:Alternate", "networks in turn"),
        NetworkAssignmentRecord("no_rule", "builtins:dict"),
    ]

class Alternate(NetworkAssignment):
    networks: tuple[str, ...]

    def assign(self, sites, seed):
        places = {site: (number + seed) % len(self.networks) for number, site in enumerate(sites)}
        return {
            site: AssignedNetwork(network=self.networks[place], facts={"place": place, "by": "turn"})
            for site, place in places.items()
            if site != "site-03"
        }
"""


@pytest.fixture
def plugin(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "turns.py"
    path.write_text(PLUGIN)
    yield path
    sys.modules.pop("medfl_plugin_turns", None)


@pytest.fixture
def registry(plugin: Path) -> Registry:
    return load_plugins([plugin])


def test_a_rule_is_read_by_name_with_its_options(registry: Registry) -> None:
    rule = read_assignment({"name": "alternate", "networks": ["a", "b"]}, registry)
    assert isinstance(rule, NetworkAssignment)
    assert {site: entry.network for site, entry in rule.assign(["x", "y", "z"], seed=1).items()} == {
        "x": "b",
        "y": "a",
        "z": "b",
    }
    assert not rule.asks_sites
    rule.check_between_machines()
    assert read_assignment(None, registry) is None


def test_what_names_no_rule_is_refused(registry: Registry) -> None:
    with refused(SettingsError, "missing_setting", setting="network_assignment.name"):
        read_assignment({"networks": ["a"]}, registry)
    with refused(PluginError, "unknown_choice", what="network_assignment", choice="alternat"):
        read_assignment({"name": "alternat"}, registry)
    with refused(PluginError, "wrong_type", name="no_rule"):
        read_assignment({"name": "no_rule"}, registry)
    with refused(SettingsError, "unknown_setting", settings=["network"]):
        read_assignment({"name": "alternate", "networks": ["a"], "network": "b"}, registry)


def test_a_run_trains_the_assigned_networks_and_settings_take_precedence(plugin: Path, tmp_path: Path) -> None:
    make_cohort(tmp_path / "data", sites=3, images_per_site=12, classes=3, size=12, seed=2)
    bundle = shutil.copytree(shipped_bundles()["medmnist_classification"], tmp_path / "bundle")
    content = json.loads((bundle / "configs" / "train.json").read_text())
    content["networks"]["other"] = content["networks"]["cnn4"]
    (bundle / "configs" / "train.json").write_text(json.dumps(content))
    values = {"dataset_dir": str(tmp_path / "data"), "output_dir": str(tmp_path / "run"), "device": "cpu"}
    values |= {"plugins": [str(plugin)], "method": "local", "rounds": 1, "steps": 1, "seed": 1}
    values |= {"allow_leaks": ["subjects", "pixels"], "networks_by_site": {"site-02": "other"}}
    run = read_federation(bundle, values)
    run.network_assignment = {"name": "alternate", "networks": ["cnn4", "other"]}
    run.simulate()
    record = RunFile.read(tmp_path / "run" / "run.json")
    assert record.settings.networks_by_site == {"site-01": "other", "site-02": "other"}
    assert record.provenance.assigned_networks == {
        "site-01": AssignedNetwork(network="other", facts={"place": 1, "by": "turn"}),
        "site-02": AssignedNetwork(network="cnn4", facts={"place": 0, "by": "turn"}),
    }
    assert set(record.identity.task.networks) == {"cnn4", "other"}
