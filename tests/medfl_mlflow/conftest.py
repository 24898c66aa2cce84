"""Fixtures: an MLflow store of plain files, and a run folder."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow stores of plain files, which are quick to make; newer MLflow versions require permission."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
