"""Tests of settings: accepted values, and messages with the most similar option."""

import json

import pytest

from medfl.errors import SettingsError
from medfl.settings import Execution, Settings, read_settings


def refusal(kind=Settings, **values):
    """Return the error that refuses the values."""
    with pytest.raises(SettingsError) as caught:
        read_settings(kind, values, "the run")
    assert caught.value.fields["where"] == "the run"
    return caught.value


def test_defaults():
    settings = read_settings(Settings, {"rounds": 3}, "the run")
    assert (settings.seed, settings.epochs, settings.batch_size, settings.fraction) == (0, 1, 32, 1.0)
    assert settings.norm_sync == "all"
    assert settings.privacy is None


@pytest.mark.parametrize(
    ("typo", "meant"),
    [("batchsize", "batch_size"), ("round", "rounds"), ("normsync", "norm_sync"), ("privcy", "privacy")],
)
def test_an_unknown_option_names_the_nearest(typo, meant):
    error = refusal(rounds=1, **{typo: 1})
    assert (error.code, error.fields["settings"]) == ("unknown_setting", [typo])
    message = str(error)
    assert f"unknown option '{typo}'. Did you mean '{meant}'? " in message


def test_an_unknown_option_inside_another_names_the_nearest_there():
    error = refusal(rounds=1, privacy={"epsilon": 1, "clipp": 2})
    assert error.code == "invalid_settings", "of several kinds"
    assert error.fields["codes"] == {"privacy.clip": "missing_setting", "privacy.clipp": "unknown_setting"}
    assert "'privacy.clipp'. Did you mean 'clip'? Known: accountant, adjacency, clip, delta" in str(error)
    error = refusal(rounds=1, compression={"bits": 4, "bit": 4})
    assert (error.code, error.fields["settings"]) == ("unknown_setting", ["compression.bit"])
    assert "'compression.bit'. Did you mean 'bits'" in str(error)


def test_all_problems_come_at_once():
    error = refusal(seed=-1, fraction=2, epocs=3)
    assert error.code == "invalid_settings"
    assert error.fields["codes"] == {
        "rounds": "missing_setting",
        "seed": "setting_out_of_range",
        "fraction": "setting_out_of_range",
        "epocs": "unknown_setting",
    }
    assert all(f"'{name}'" in str(error) for name in error.fields["settings"])


@pytest.mark.parametrize(
    ("name", "value", "setting", "code"),
    [
        ("rounds", 0, "rounds", "setting_out_of_range"),
        ("seed", 2**31, "seed", "setting_out_of_range"),
        ("epochs", -1, "epochs", "setting_out_of_range"),
        ("steps", 0, "steps", "setting_out_of_range"),
        ("batch_size", 0, "batch_size", "setting_out_of_range"),
        ("fraction", 0.0, "fraction", "setting_out_of_range"),
        ("fraction", 1.1, "fraction", "setting_out_of_range"),
        ("fraction", float("nan"), "fraction", "setting_out_of_range"),
        ("norm_sync", "some", "norm_sync", "unknown_choice"),
        ("min_replies", 0, "min_replies", "setting_out_of_range"),
        ("evaluate_every", 0, "evaluate_every", "setting_out_of_range"),
        ("keep_rounds", [0], "keep_rounds.0", "setting_out_of_range"),
        ("moments", ["before"], "moments.0", "unknown_choice"),
        ("precision", "fp16", "precision", "unknown_choice"),
        ("norm_bound", 0.0, "norm_bound", "setting_out_of_range"),
        ("privacy", {"epsilon": 0, "clip": 1}, "privacy.epsilon", "setting_out_of_range"),
        ("privacy", {"epsilon": 1, "clip": 1, "delta": 1}, "privacy.delta", "setting_out_of_range"),
        ("compression", {"bits": 5}, "compression.bits", "unknown_choice"),
    ],
)
def test_a_value_out_of_range_is_named_with_what_came(name, value, setting, code):
    error = refusal(**({"rounds": 1} | {name: value}))
    assert (error.code, error.fields["settings"]) == (code, [setting])
    assert "; got " in str(error)


def test_settings_cannot_be_changed_and_survive_json():
    settings = Settings(
        rounds=2, networks_by_site={"a": "wide"}, privacy={"epsilon": 1, "clip": 0.5}, moments=("trained",)
    )
    with pytest.raises(ValueError, match="frozen"):
        settings.rounds = 3
    assert Settings.model_validate(json.loads(json.dumps(settings.model_dump(mode="json")))) == settings


@pytest.mark.parametrize(
    ("device", "fine"), [("auto", True), ("cpu", True), ("cuda:1", True), ("gpu", False), ("cuda:", False)]
)
def test_devices(device, fine):
    if fine:
        assert read_settings(Execution, {"device": device}, "the run").device == device
    else:
        error = refusal(Execution, device=device)
        assert (error.code, error.fields["settings"]) == ("invalid_setting", ["device"])
