"""Fixtures: stock bundles to adopt."""

from __future__ import annotations

import pytest
import zoo_shapes


@pytest.fixture
def spleen(tmp_path):
    """Make a stock bundle for the segmentation of volumes."""
    return zoo_shapes.spleen(tmp_path / "spleen")


@pytest.fixture
def in_body(tmp_path):
    """Make a stock bundle for the classification of images."""
    return zoo_shapes.in_body(tmp_path / "in_body")
