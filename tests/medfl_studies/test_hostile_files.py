"""Study files with exploding YAML aliases are refused, and ordinary aliases stay allowed."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from yaml_bombs import EXPLOSIVE

from medfl.errors import SettingsError
from medfl_studies.study_reader import read_study


@pytest.mark.parametrize("text", EXPLOSIVE)
def test_yaml_that_is_made_to_explode_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with refused(SettingsError, "invalid_yaml", path=str(path)) as caught:
        read_study(path)
    assert len(str(caught.value)) < 1000


def test_aliases_of_shipped_studies_stay_allowed(tmp_path: Path) -> None:
    path = Path(__file__).parents[2] / "studies" / "fedskd_table2.yaml"
    assert "*unlike" in path.read_text()
    assert len(read_study(path).rows) > 1
