"""Help of ``medfl run``: it lists every option of a run once, in groups, with its default."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys

import pytest
from monai.bundle import ConfigParser

from medfl.bundle.bundle_folders import shipped_bundles
from medfl.bundle.federated_run import FederatedRun
from medfl.bundle.option_checks import RUN_IDS, used_ids
from medfl.bundle.option_spelling import option_of_id
from medfl.cli import run_help
from medfl.cli.run_help import NO_OPTIONS, SHARED_IDS, bundle_ids, first_sentence, option_groups
from medfl.plugins import load_plugins
from medfl.settings import Compression, Execution, Privacy, Robust, SecureAggregation, Settings, run_fields
from medfl.utils.field_descriptions import value_of
from medfl.workflow import STOCK_OPTIONS

PARTS = {"privacy": Privacy, "secure_aggregation": SecureAggregation, "robust": Robust, "compression": Compression}


def options_of(bundle=None):
    """Map each option's name to it."""
    options = [option for group in option_groups(bundle).values() for option in group]
    names = [option.name for option in options]
    assert sorted(names) == sorted(set(names)), "an option is listed twice"
    return dict(zip(names, options, strict=True))


def test_every_setting_and_part_of_a_setting_is_listed_with_its_default():
    options = options_of()
    for name, info in (Settings.model_fields | Execution.model_fields).items():
        if not info.is_required():
            assert options[name].default == value_of(info.default)
    for setting, model in PARTS.items():
        for part, info in model.model_fields.items():
            option = options[f"{setting}#{part}"]
            assert option.default == (
                f"none, required with {option_of_id(setting)}" if info.is_required() else value_of(info.default)
            )
    assert options["rounds"].default is None
    assert options["rounds"].describe().endswith("[default: the bundle's]")


def test_every_other_option_of_a_run_is_listed():
    """Check the options of the run object, of runs on other machines, and of MONAI's workflow."""
    arguments = set(inspect.signature(FederatedRun.__init__).parameters) - {"self"}
    inner = {
        "task",
        "mean",
        "std",
        "network_assignment",
        "tracked_config",
        "site_values",
        "source",
    }  # built by the bundle
    of_backends = {name for record in load_plugins().backends.values() for name in record.options}
    names = {*(arguments - inner - NO_OPTIONS), *of_backends, *STOCK_OPTIONS}
    assert names <= set(options_of())


def test_the_first_group_has_what_most_runs_set():
    title, options = next(iter(option_groups().items()))
    assert title == "Common options"
    assert {"method", "rounds", "epochs", "batch_size", "seed", "output_dir"} <= {option.name for option in options}
    assert not option_groups()["Other settings"], "a setting has no group: add it to GROUPS"


@pytest.mark.parametrize("name", shipped_bundles())
def test_a_named_bundle_gives_defaults_and_its_own_ids(name):
    values, options = bundle_ids(name), options_of(name)
    assert options["rounds"].default == str(values["rounds"]) or str(values["rounds"]).startswith("$")
    assert options["method"].default == values["method"]
    assert options["method"].text == SHARED_IDS["method"]
    parser = ConfigParser()
    parser.update(values)
    used = used_ids(parser, RUN_IDS) - NO_OPTIONS - set(run_fields())
    plain = {key for key in used if not isinstance(values[key], dict) and not str(values[key]).startswith("@")}
    listed = {option.partition("#")[0] for option in options}
    assert plain <= listed
    own = {option.name.partition("#")[0] for option in option_groups(name)["More ids of this bundle"]}
    assert own <= used, "an id that no federation builds is refused as an option"


def test_an_adopted_bundle_lists_the_ids_that_its_sites_build(tmp_path):
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "train.json").write_text(
        '{"imports": [], "depth": "$@base + 1", "base": 2, "unused": 5, "network_def": {"_target_": "N", "out": 3}}'
    )
    (configs / "federate.json").write_text(
        '{"adopted": {"used": ["network_def#out", "depth"], "replaced": []}, "method": "fedavg", "run": []}'
    )
    options = option_groups(str(tmp_path))["More ids of this bundle"]
    assert {option.name: option.default for option in options} == {
        "base": "2",
        "depth": "computed: base + 1",
        "network_def#out": "3",
    }


def test_the_command_prints_all_groups_and_imports_no_torch():
    code = "import sys; from medfl.cli.main import main\ntry: main(sys.argv[1:])\nexcept SystemExit: pass\n"
    code += "print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "run", "tabular", "--help"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    titles = re.findall(r"^(\S.*):$", printed, re.MULTILINE)
    groups = [title for title, options in option_groups("tabular").items() if options]
    assert titles[: 2 + len(groups)] == ["Arguments", "Options", *groups]
    assert re.search(r"--standardise +\[default: True\]", printed)
    assert re.search(r"--rounds +Number of rounds\. \[default: 20\]", printed)
    assert printed.endswith("False\n")


def test_a_bundle_that_is_not_there_is_named(medfl):
    status, _, errors = medfl("run", "tabula", "--help")
    assert status == 2
    assert "'tabula'" in errors
    assert "tabular" in errors


def test_a_broken_bundle_is_named(tmp_path, medfl):
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "federate.json").write_text("[")
    status, _, errors = medfl("run", str(tmp_path), "--help")
    assert status == 2
    assert str(tmp_path / "configs" / "federate.json") in errors


def test_a_setting_without_a_group_is_listed_as_another_one(monkeypatch):
    monkeypatch.setitem(run_help.GROUPS, "Computing", ())
    assert [option.name for option in option_groups()["Other settings"]][:2] == ["threads", "cache"]


def test_the_first_sentence_ends_at_its_full_stop():
    assert first_sentence("Bits of a number. 32 are as many.") == "Bits of a number. 32 are as many."
    assert first_sentence("Number of ``rounds``. It may\nbe raised.") == "Number of rounds."
    assert first_sentence("Where (Abadi et al., CCS 2016) apply. Then") == "Where (Abadi et al., CCS 2016) apply."
