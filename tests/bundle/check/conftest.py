"""Fixture for the tests of ``medfl check-bundle``."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

SHIPPED = Path(__file__).parents[3] / "bundles" / "medmnist_classification"


@pytest.fixture
def bundle(tmp_path):
    """Copy a shipped bundle, so that a test can change it."""
    return Path(shutil.copytree(SHIPPED, tmp_path / "copy"))
