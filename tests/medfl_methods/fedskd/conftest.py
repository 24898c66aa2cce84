"""Small tile and chunk sizes for all tests of the similarity loss, so that small matrices have several parts."""

import pytest

from medfl_methods.fedskd import similarity_kxk as columns
from medfl_methods.fedskd import similarity_nxn as small
from medfl_methods.fedskd import similarity_nxn as tiles


@pytest.fixture(autouse=True)
def _several_parts(monkeypatch):
    """Set sizes for which the last tile and chunk are smaller than the others."""
    monkeypatch.setattr(tiles, "CPU_TILE_ROWS", 48)
    monkeypatch.setattr(columns, "CPU_CHUNK_ELEMENTS", 64 * 24)
    monkeypatch.setattr(small, "MAX_PRODUCT_ELEMENTS", 10)
