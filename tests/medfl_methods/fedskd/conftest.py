"""For all tests of losses: matrices of few rows make several tiles and chunks."""

import pytest

from medfl_methods.fedskd import similarity_kxk as columns
from medfl_methods.fedskd import similarity_nxn as small
from medfl_methods.fedskd import similarity_nxn as tiles


@pytest.fixture(autouse=True)
def _several_parts(monkeypatch):
    """The last part is smaller than the others."""
    monkeypatch.setattr(tiles, "TILE", 48)
    monkeypatch.setattr(columns, "CHUNK_ELEMENTS", 64 * 24)
    monkeypatch.setattr(small, "CHUNK", 10)
