"""Settings: what is accepted, and messages that name the nearest known option."""

import json

import pytest

from medfl.errors import SettingsError
from medfl.settings import Execution, Settings, read_settings


def refusal(kind=Settings, **values):
    with pytest.raises(SettingsError) as error:
        read_settings(kind, values, "the run")
    return str(error.value)


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
    message = refusal(rounds=1, **{typo: 1})
    assert f"unknown option '{typo}'. Did you mean '{meant}'? Known: balance, batch_size," in message


def test_an_unknown_option_inside_another_names_the_nearest_there():
    message = refusal(rounds=1, privacy={"epsilon": 1, "clipp": 2})
    assert "unknown option 'privacy.clipp'. Did you mean 'clip'? Known: accountant, adjacency, clip, delta" in message
    assert "'privacy.clip' is required and was not given" in message
    assert "unknown option 'compression.bit'. Did you mean 'bits'" in refusal(
        rounds=1, compression={"bits": 4, "bit": 4}
    )


def test_all_problems_come_at_once():
    message = refusal(seed=-1, fraction=2, epocs=3)
    assert message.startswith("Settings of the run are not valid:")
    for part in ("'rounds' is required and was not given", "'seed': ", "'fraction': ", "unknown option 'epocs'"):
        assert part in message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rounds", 0),
        ("seed", 2**31),
        ("epochs", -1),
        ("steps", 0),
        ("batch_size", 0),
        ("fraction", 0.0),
        ("fraction", 1.1),
        ("fraction", float("nan")),
        ("norm_sync", "some"),
        ("min_replies", 0),
        ("evaluate_every", 0),
        ("keep_rounds", [0]),
        ("moments", ["before"]),
        ("precision", "fp16"),
        ("norm_bound", 0.0),
        ("privacy", {"epsilon": 0, "clip": 1}),
        ("privacy", {"epsilon": 1, "clip": 1, "delta": 1}),
        ("compression", {"bits": 5}),
    ],
)
def test_a_value_out_of_range_is_named_with_what_came(name, value):
    message = refusal(**({"rounds": 1} | {name: value}))
    assert f"'{name}" in message
    assert "; got " in message


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
        assert "'device'" in refusal(Execution, device=device)
