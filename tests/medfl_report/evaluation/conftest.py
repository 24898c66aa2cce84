"""Fixtures of tests of evaluations: two runs on two of three sites."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from evaluated_runs import make_data, run_on_two_sites


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a cohort and two runs on two of its three sites."""
    folder = tmp_path_factory.mktemp("evaluate")
    make_data(folder / "data")
    for method in ("fedavg", "local"):
        run_on_two_sites(folder / "data", folder / method, method)
    return folder


@pytest.fixture
def place(made: Path, tmp_path: Path) -> Path:
    """Return a copy of the folder that a test may change."""
    shutil.copytree(made, tmp_path / "own")
    return tmp_path / "own"
