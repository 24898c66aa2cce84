"""Test the translation between bare names of settings and ids of a configuration."""

from __future__ import annotations

import pytest
from monai.bundle import ConfigParser

from medfl.engine.runs.setting_ids import bare_name, default_values, find_clashes, options_to_ids, setting_values
from medfl.settings import run_fields

CONFIG = {
    "rounds": 3,
    "device": "cpu",
    "settings": {"rounds": "@rounds", "device": "@device", "epochs": 5, "disclose": ["size"]},
}


def test_a_configuration_says_what_differs_and_the_rest_is_default() -> None:
    values = setting_values(CONFIG)
    assert set(values) == set(run_fields()) - {"rounds", "device"}
    assert (values["epochs"], values["steps"], values["workers"]) == (5, None, 1)
    assert setting_values({"rounds": 3}) == {}


def test_an_id_that_no_setting_is_taken_from_is_not_the_setting() -> None:
    """Use an id such as `epochs` of a stock bundle, which only its trainer reads."""
    config = CONFIG | {"steps": 8, "epochs": 1}
    assert find_clashes(config) == {"epochs", "steps"}
    assert (setting_values(config)["epochs"], setting_values(config)["steps"]) == (5, None)
    assert options_to_ids({"epochs": 3, "rounds": 2}, config) == {"settings#epochs": 3, "rounds": 2}
    assert find_clashes({"steps": 8}) == find_clashes(CONFIG) == set()


def test_defaults_are_plain_values() -> None:
    assert set(default_values()) == set(run_fields()) - {"rounds"}
    assert (default_values()["moments"], default_values()["privacy"]) == (["aggregated"], None)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("epochs", "epochs"),
        ("settings#epochs", "epochs"),
        ("settings::privacy::epsilon", "privacy#epsilon"),
        ("optimizer::lr", "optimizer#lr"),
        ("settings#optimizer", "settings#optimizer"),
        ("settings", "settings"),
    ],
)
def test_a_setting_has_one_name(option: str, name: str) -> None:
    assert bare_name(option) == name


def test_options_go_where_the_configuration_has_them() -> None:
    options = {"rounds": 4, "settings#rounds": 5, "fraction": 0.5, "settings#steps": 2, "optimizer#lr": 0.1}
    expected = {"rounds": 5, "settings#fraction": 0.5, "settings#steps": 2, "optimizer#lr": 0.1}
    assert options_to_ids(options, CONFIG) == expected


def test_parts_of_a_setting_are_put_into_the_whole() -> None:
    options = {"networks_by_site#a": "wide", "networks_by_site#b": "deep", "disclose#0": "label_counts"}
    parser = ConfigParser(CONFIG)
    parser.update(pairs=options_to_ids(options, parser.get()))
    settings = parser.get_parsed_content("settings")
    assert settings["networks_by_site"] == {"a": "wide", "b": "deep"}
    assert (settings["disclose"], settings["rounds"], settings["epochs"]) == (["label_counts"], 3, 5)
    assert default_values()["networks_by_site"] == {}
