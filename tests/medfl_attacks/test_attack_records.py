"""The records of the attacks on finished runs agree with their classes and with the command."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import get_args

import pytest
import typer
import yaml

from medfl.plugins import load_plugins
from medfl_attacks.attack_files import ATTACK_FILES
from medfl_attacks.commands.attack import app

REGISTRY = load_plugins()
STUDIES = sorted((Path(__file__).parents[2] / "studies").glob("*.yaml"))


def test_every_kind_of_attack_is_listed() -> None:
    assert {
        name for name in REGISTRY.attacks if REGISTRY.plugins_listing("attack", name) == ["medfl_attacks"]
    } == ATTACK_FILES.keys()


@pytest.mark.parametrize("name", ATTACK_FILES)
def test_a_record_names_the_file_and_its_measures(name: str) -> None:
    record = REGISTRY.attacks[name]
    assert REGISTRY.attack_results(name) is ATTACK_FILES[name]
    assert f"{name}.json" == ATTACK_FILES[name].NAME
    (result, _) = get_args(ATTACK_FILES[name].model_fields["results"].annotation)
    assert record.measures.keys() <= result.model_fields.keys()
    assert record.digits.keys() <= record.measures.keys()


@pytest.mark.parametrize("name", ATTACK_FILES)
def test_every_option_is_one_of_the_command(name: str) -> None:
    command = typer.main.get_command(app).commands[name]  # type: ignore[attr-defined]
    options = {option.removeprefix("--") for parameter in command.params for option in parameter.opts}
    fields = {field.name.replace("_", "-") for field in dataclasses.fields(REGISTRY.attack_options(name))}
    assert fields <= options


def test_the_studies_that_come_with_medfl_name_attacks_and_options_that_there_are() -> None:
    names = set()
    for path in STUDIES:
        for name, attack in yaml.safe_load(path.read_text()).get("attacks", {}).items():
            options = {option.replace("-", "_"): value for option, value in attack.get("options", {}).items()}
            REGISTRY.attack_options(name)(**{key: value for key, value in options.items() if key != "device"})
            names.add(name)
    assert names == ATTACK_FILES.keys()
