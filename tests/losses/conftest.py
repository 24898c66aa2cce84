"""For all tests of losses: one thread, and matrices of few rows make several tiles and chunks."""

import pytest
import torch

from medfl.losses import columns, small, tiles


@pytest.fixture(autouse=True)
def _one_thread():
    """Two threads only wait for each other on small matrices where other processes compute, too."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _several_parts(monkeypatch):
    """The last part is smaller than the others."""
    monkeypatch.setattr(tiles, "TILE", 48)
    monkeypatch.setattr(columns, "CHUNK_ELEMENTS", 64 * 24)
    monkeypatch.setattr(small, "CHUNK", 10)
