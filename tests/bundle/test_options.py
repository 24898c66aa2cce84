"""Options and ids are checked before anything is built, all at once."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from monai.bundle import ConfigParser

from medfl.bundle.handlers import warn_of_handlers
from medfl.bundle.option_checks import check_options, check_passed_over
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


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("roundz", "unknown option '--roundz'. Did you mean 'rounds'?"),
        ("optimizer#lrr", "'optimizer' has no part 'lrr'. Did you mean 'lr'?"),
        ("optimizer#weight_decai", "Did you mean 'weight_decay'?"),
        ("rounds#deep", "'rounds' has no part 'deep'; it is 20."),
        ("networks#cnn4#in_channel", "'networks#cnn4' has no part 'in_channel'. Did you mean 'in_channels'?"),
        ("train#dataset#splitt", "'train#dataset' has no part 'splitt'. Did you mean 'split'?"),
        ("settings#fractoin", "'settings' has no part 'fractoin'. Did you mean 'fraction'?"),
        ("wokers", "unknown option '--wokers'. Did you mean 'workers'?"),
        ("privacy#epsilon", "'privacy' has no part 'epsilon'; it is None."),
        ("train#handlers#9#name", "'train#handlers' has no part '9'"),
    ],
)
def test_unknown_options_are_refused_with_the_known_ones(parser: ConfigParser, name: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        check_options(parser, {name: 1})
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["max_epochs", "site", "train#handlers#0#interval", "validate#dataset#split"])
def test_options_without_effect_in_a_federation_are_refused(parser: ConfigParser, name: str) -> None:
    with pytest.raises(SettingsError, match=f"'--{name}' has no effect in a federation, which uses: .*rounds"):
        check_options(parser, {name: 1})
    check_options(parser, {name: 1}, [name.partition("#")[0]])


def test_all_unknown_options_come_in_one_message(parser: ConfigParser) -> None:
    with pytest.raises(SettingsError) as caught:
        check_options(parser, {"roundz": 1, "batch_size": 4, "optimizer#lrr": 0.1})
    assert "--roundz" in str(caught.value)
    assert "--optimizer#lrr" in str(caught.value)
    assert "'--batch_size'" not in str(caught.value)


def test_all_missing_ids_come_in_one_message(tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(BUNDLE, tmp_path / "bundle", ignore=shutil.ignore_patterns("models", "runs")))
    for name, ids in (("train.json", ("optimizer", "loss", "val_interval")), ("federate.json", ("federation",))):
        path = bundle / "configs" / name
        content = json.loads(path.read_text())
        path.write_text(json.dumps({key: value for key, value in content.items() if key not in ids}))
    configs = [str(bundle / "configs" / name) for name in ("train.json", "federate.json")]
    with pytest.raises(SettingsError) as refused:
        FederatedWorkflow(configs, logging_file=False)
    error = str(refused.value)
    for name in ("optimizer", "loss", "federation"):
        assert f"\n  {name}: " in error


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
    with pytest.raises(SettingsError, match=f"--settings#{name} in place of --{name};"):
        check_passed_over([*STOCK, *words], sorted(BUNDLE.glob("configs/*.json")))


def test_ids_of_the_bundle_and_other_programs_pass() -> None:
    configs = sorted(BUNDLE.glob("configs/*.json"))
    check_passed_over([*STOCK, "--settings#epochs", "5", "--optimizer#lr", "0.1"], configs)
    check_passed_over(["/somewhere/bin/medfl", "run", "--epochs", "5"], configs)
