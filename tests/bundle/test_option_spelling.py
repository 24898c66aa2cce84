"""Spelling of options on the command line of medfl and in bundles' configurations."""

from __future__ import annotations

import pytest
from refusals import refused

from medfl.bundle.option_spelling import id_of_option, option_of_id
from medfl.errors import SettingsError

SPELLINGS = {
    "rounds": "--rounds",
    "lr_decay": "--lr-decay",
    "optimizer#weight_decay": "--optimizer.weight-decay",
    "optimizer#_target_": "--optimizer._target_",
    "train#handlers#0#interval": "--train.handlers.0.interval",
    "settings#fraction": "--settings.fraction",
    "networks_by_site#site-01": "--networks-by-site.site-01",
    "settings#networks_by_site#ward_1.north": "--settings.networks-by-site.ward_1.north",
    "label_map#melanocytic_nevus": "--label-map.melanocytic_nevus",
}
"""Maps ids to options."""


@pytest.mark.parametrize(("id_", "option"), SPELLINGS.items())
def test_ids_and_options_are_translated_both_ways(id_: str, option: str) -> None:
    assert option_of_id(id_) == option
    assert id_of_option(option) == id_


@pytest.mark.parametrize(
    ("option", "expected"),
    [
        ("--lr_decay", "--lr-decay"),
        ("--optimizer#lr", "--optimizer.lr"),
        ("--optimizer::weight_decay", "--optimizer.weight-decay"),
        ("--networks_by_site#ward_1", "--networks-by-site.ward_1"),
        ("--plugin", "--plugins"),
    ],
)
def test_another_spelling_is_refused(option: str, expected: str) -> None:
    with refused(SettingsError, "wrong_spelling", option=option, expected=expected):
        id_of_option(option)
