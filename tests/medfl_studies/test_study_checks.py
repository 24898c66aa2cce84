"""Errors that are found before any run of a study starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from study_toys import PREPARED

from medfl.errors import DataError, MedflError, PluginError, SettingsError


@pytest.mark.parametrize(
    ("changes", "kind", "code", "fields", "hint"),
    [
        (
            {"rows__alone__method": "fedprx"},
            SettingsError,
            "unknown_choice",
            {"row": "alone", "what": "method", "choice": "fedprx"},
            "row 'alone': Unknown method 'fedprx'. Did you mean",
        ),
        (
            {"rows__alone__method_args": {"muu": 1}},
            SettingsError,
            "unknown_setting",
            {"row": "alone", "settings": ["muu"]},
            "row 'alone': ",
        ),
        (
            {"settings__rounds": 0},
            SettingsError,
            "setting_out_of_range",
            {"row": "alone", "settings": ["rounds"]},
            "row 'alone': ",
        ),
        (
            {"settings__roundz": 3},
            SettingsError,
            "unknown_option",
            {"option": "roundz"},
            "Did you mean '--rounds'?",
        ),
        (
            {"rows__alone__settings": {"optimizer#lrr": 1}},
            SettingsError,
            "unknown_option",
            {"option": "optimizer#lrr"},
            "",
        ),
        (
            {"metrics": ["acuracy"]},
            SettingsError,
            "unknown_choice",
            {"what": "metric", "choice": "acuracy"},
            "Did you mean 'accuracy'",
        ),
        (
            {"data__demo__folder": "nowhere"},
            DataError,
            "missing_dataset",
            {"dataset": "demo", "expected": "*/datalist.json"},
            "expected a partitioned data set",
        ),
        (
            {"data": PREPARED, "data__breast__partition__scheme": "dirichlet"},
            PluginError,
            "unknown_choice",
            {"what": "partition", "choice": "dirichlet"},
            "",
        ),
        (
            {"data": PREPARED, "data__breast__partition__alfa": 1},
            SettingsError,
            "unknown_setting",
            {"name": "alfa", "place": "data.breast.partition"},
            "Did you mean 'alpha'?",
        ),
        (
            {"data": PREPARED, "data__breast__partition__duplicates": "dop"},
            SettingsError,
            "unknown_choice",
            {"what": "duplicates", "choice": "dop"},
            "Did you mean 'drop'",
        ),
        ({"data": PREPARED, "data__breast__prep__flag": "bloodmnist"}, DataError, "missing_file", {}, "bloodmnist.npz"),
    ],
)
def test_mistakes_are_found_before_any_run(
    load, tmp_path: Path, changes: dict, kind: type, code: str, fields: dict, hint: str
) -> None:
    with refused(kind, code, **fields) as caught:
        load(changes)
    assert hint in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_a_bundle_that_is_not_there_is_refused(load) -> None:
    with refused(MedflError, "unknown_bundle", name="medmnist_classificatio"):
        load({"bundle": "medmnist_classificatio"})


def test_the_source_may_come_from_the_environment(load, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with refused(DataError, "missing_setting", setting="source", dataset="demo"):
        load(source=None)
    monkeypatch.setenv("MEDFL_DATA", str(source))
    assert load(source=None).source == source
    with refused(DataError, "missing_folder", path=str(source / "nowhere")):
        load(source=source / "nowhere")
