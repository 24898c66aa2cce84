"""Fixtures of the reference implementations."""

import pytest
import torch


@pytest.fixture
def float64():
    """Create new layers in float64 during a test, including layers that a method creates."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
