"""Check of options and ids before anything is built, with all problems in one message."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from monai.bundle import ConfigParser
from refusals import refused

from medfl.bundle.option_checks import apply_options, check_options, check_passed_over
from medfl.bundle.stock_features import warn_of_handlers
from medfl.errors import SettingsError
from medfl.workflow import FederatedWorkflow

BUNDLE = Path(__file__).parents[2] / "bundles" / "medmnist_classification"


@pytest.fixture(scope="module")
def parser() -> ConfigParser:
    parser = ConfigParser()
    parser.read_config([str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")])
    return parser


@pytest.mark.parametrize(
    "name",
    [
        "rounds",
        "optimizer#lr",
        "optimizer::lr",
        "optimizer#nesterov",
        "method_args#anything",
        "fraction",
        "workers",
        "settings#fraction",
        "settings::fraction",
        "settings#rounds",
        "networks_by_site#site-01",
    ],
)
def test_known_options_pass(parser: ConfigParser, name: str) -> None:
    check_options(parser, {name: 1})


def test_a_replaced_component_has_the_arguments_of_the_new_target(parser: ConfigParser) -> None:
    replaced = {"optimizer#_target_": "torch.optim.AdamW"}
    check_options(parser, replaced | {"optimizer#betas": [0.8, 0.9]})
    with refused(SettingsError, "unknown_option", path="optimizer", part="centered"):
        check_options(parser, replaced | {"optimizer#centered": True})


@pytest.mark.parametrize("name", ["metrics", "allow_leaks", "allow_changes"])
def test_a_single_name_becomes_a_list(parser: ConfigParser, name: str) -> None:
    apply_options(parser, {name: "pixels"})
    assert parser[name] == ["pixels"]
    apply_options(parser, {name: ["subjects", "pixels"]})
    assert parser[name] == ["subjects", "pixels"]


@pytest.mark.parametrize(
    ("name", "fields", "hint"),
    [
        ("roundz", {}, "Did you mean '--rounds'?"),
        ("optimizer#lrr", {"path": "optimizer", "part": "lrr"}, "Did you mean 'lr'?"),
        ("optimizer#weight_decai", {"path": "optimizer", "part": "weight_decai"}, "Did you mean 'weight_decay'?"),
        ("rounds#deep", {"path": "rounds", "part": "deep"}, "it is 20."),
        ("networks#cnn4#in_channel", {"path": "networks#cnn4", "part": "in_channel"}, "Did you mean 'in_channels'?"),
        ("train#dataset#splitt", {"path": "train#dataset", "part": "splitt"}, "Did you mean 'split'?"),
        ("settings#fractoin", {"path": "settings", "part": "fractoin"}, "Did you mean 'fraction'?"),
        ("wokers", {}, "Did you mean '--workers'?"),
        ("privacy#epsilom", {"path": "privacy", "part": "epsilom"}, "Did you mean 'epsilon'?"),
        ("optimization#schedul", {"path": "optimization", "part": "schedul"}, "Did you mean 'schedule'?"),
        ("patience#deep", {"path": "patience", "part": "deep"}, "it is None."),
        ("train#handlers#9#name", {"path": "train#handlers", "part": "9"}, ""),
    ],
)
def test_unknown_options_are_refused_with_the_known_ones(
    parser: ConfigParser, name: str, fields: dict[str, str], hint: str
) -> None:
    with refused(SettingsError, "unknown_option", option=name, **fields) as caught:
        check_options(parser, {name: 1})
    assert hint in str(caught.value)


def test_parts_of_a_setting_that_is_off_turn_it_on(parser: ConfigParser) -> None:
    options = {"privacy#epsilon": 8, "privacy#clip": 1, "optimization#schedule": "cosine"}
    check_options(parser, options)
    apply_options(parser, options)
    assert parser["settings#privacy"] == {"epsilon": 8, "clip": 1}
    assert parser["settings#optimization"] == {"schedule": "cosine"}


@pytest.mark.parametrize("name", ["max_epochs", "site", "train#handlers#0#interval", "validate#dataset#split"])
def test_options_without_effect_in_a_federation_are_refused(parser: ConfigParser, name: str) -> None:
    with refused(SettingsError, "option_without_effect", options=[name]) as caught:
        check_options(parser, {name: 1})
    assert "rounds" in str(caught.value), "what a federation uses"
    check_options(parser, {name: 1}, [name.partition("#")[0]])


def test_all_unknown_options_come_in_one_message(parser: ConfigParser) -> None:
    with refused(SettingsError, "several_problems") as caught:
        check_options(parser, {"roundz": 1, "batch_size": 4, "optimizer#lrr": 0.1})
    problems = [(problem["code"], problem["option"]) for problem in caught.value.fields["problems"]]
    assert problems == [("unknown_option", "roundz"), ("unknown_option", "optimizer#lrr")]
    assert "--roundz" in str(caught.value)
    assert "--optimizer.lrr" in str(caught.value)


def test_all_missing_ids_come_in_one_message(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle", ignore=shutil.ignore_patterns("models", "runs")))
    for name, ids in (("train.json", ("optimizer", "loss", "val_interval")), ("federate.json", ("federation",))):
        path = bundle / "configs" / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in content.items() if key not in ids}))
    configs = [str(bundle / "configs" / name) for name in ("train.json", "federate.json")]
    with refused(SettingsError, "missing_ids") as caught:
        FederatedWorkflow(configs, logging_file=False)
    assert {"optimizer", "loss", "federation"} <= set(caught.value.fields["ids"])
    assert "\n  optimizer: " in str(caught.value), "a line for each"


@pytest.mark.parametrize(
    ("option", "expected"), [("auc", ["auc"]), (["auc", "f1"], ["auc", "f1"]), ("$['au' + 'c']", "$['au' + 'c']")]
)
def test_metrics_may_be_one_name(option: object, expected: object) -> None:
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    assert FederatedWorkflow(configs, logging_file=False, metrics=option).parser["metrics"] == expected


def test_handlers_that_a_federation_does_not_run_are_named(caplog: pytest.LogCaptureFixture) -> None:
    bundle = json.loads((BUNDLE / "configs" / "train.json").read_text())
    warn_of_handlers(bundle)
    assert not caplog.messages
    bundle["train"]["handlers"].append({"_target_": "EarlyStopHandler"})
    bundle["validate"]["handlers"].append({"_target_": "my_package.Alarm"})
    warn_of_handlers(bundle)
    assert "not run: EarlyStopHandler, my_package.Alarm." in caplog.text


STOCK = ["/somewhere/site-packages/monai/bundle/__main__.py", "run", "--rounds", "2"]


@pytest.mark.parametrize("words", [["--epochs", "5"], ["--epochs=5"], ["--privacy#epsilon", "1"]])
def test_a_bare_setting_is_not_passed_over_by_monais_command(words: list[str]) -> None:
    name = words[0].removeprefix("--").partition("=")[0]
    with refused(SettingsError, "misplaced_setting", settings=[name]):
        check_passed_over([*STOCK, *words], sorted(BUNDLE.glob("configs/*.json")))


def test_ids_of_the_bundle_and_other_programs_pass() -> None:
    configs = sorted(BUNDLE.glob("configs/*.json"))
    check_passed_over([*STOCK, "--settings#epochs", "5", "--optimizer#lr", "0.1"], configs)
    check_passed_over(["/somewhere/bin/medfl", "run", "--epochs", "5"], configs)
