"""A store of plain files, and a folder for a run."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _file_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of plain files is quick to make; newer MLflow wants to be asked."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")


@pytest.fixture
def run_folder(tmp_path: Path) -> Path:
    return tmp_path / "run"
