"""What judges share beside `judging`."""

import pytest
import torch


@pytest.fixture
def float64():
    """New layers are in float64, also those that a method makes itself."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)
