"""Answers files with YAML that expands exponentially are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from refusals import refused
from yaml_bombs import EXPLOSIVE

from medfl.errors import SettingsError
from medfl_report.cards.checklist_answers import read_answers


@pytest.mark.parametrize("text", EXPLOSIVE)
def test_yaml_that_is_made_to_explode_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with refused(SettingsError, "unreadable_file", path=str(path)) as caught:
        read_answers(path)
    assert len(str(caught.value)) < 1000
