"""What is found before any run of a study starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from study_toys import PREPARED

from medfl.errors import DataError, MedflError, PluginError, SettingsError


@pytest.mark.parametrize(
    ("changes", "kind", "message"),
    [
        ({"rows__alone__method": "fedprx"}, SettingsError, "row 'alone': Unknown method 'fedprx'. Did you mean"),
        ({"rows__alone__method_args": {"muu": 1}}, SettingsError, "(?s)row 'alone': .*unknown option 'muu'"),
        ({"settings__rounds": 0}, SettingsError, "(?s)row 'alone': .*'rounds'"),
        ({"settings__roundz": 3}, SettingsError, r"unknown option '--roundz'\. Did you mean 'rounds'\?"),
        ({"rows__alone__settings": {"optimizer#lrr": 1}}, SettingsError, "unknown option '--optimizer#lrr'"),
        ({"metrics": ["acuracy"]}, SettingsError, "Did you mean 'accuracy'"),
        ({"data__demo__folder": "nowhere"}, DataError, "data set 'demo': expected a partitioned data set"),
        (
            {"data": PREPARED, "data__breast__partition__scheme": "dirichlet"},
            PluginError,
            "Unknown partition 'dirichlet'",
        ),
        (
            {"data": PREPARED, "data__breast__partition__alfa": 1},
            SettingsError,
            r"'data\.breast\.partition': unknown key 'alfa'\. Did you mean 'alpha'\?",
        ),
        ({"data": PREPARED, "data__breast__partition__duplicates": "dop"}, SettingsError, "Did you mean 'drop'"),
        ({"data": PREPARED, "data__breast__prep__flag": "bloodmnist"}, DataError, "bloodmnist.npz"),
    ],
)
def test_mistakes_are_found_before_any_run(load, tmp_path: Path, changes: dict, kind: type, message: str) -> None:
    with pytest.raises(kind, match=message):
        load(changes)
    assert not (tmp_path / "out").exists()


def test_a_bundle_that_is_not_there_is_refused(load) -> None:
    with pytest.raises(MedflError, match="medmnist_classificatio"):
        load({"bundle": "medmnist_classificatio"})


def test_the_source_may_come_from_the_environment(load, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="needs a folder of data: give it as --source, or name it .* MEDFL_DATA"):
        load(source=None)
    monkeypatch.setenv("MEDFL_DATA", str(source))
    assert load(source=None).source == source
    with pytest.raises(DataError, match="expected a folder of data at .*there is none"):
        load(source=source / "nowhere")
