"""Tests of the memory limit for networks."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from medfl.networks.memory_limit import TooLargeError, network_bytes


def small() -> nn.Module:
    """Return a linear layer with batch norm, whose batch counter has 8 bytes."""
    return nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))


SIZE = 8 * 4 + 2 * 2 * 4 + 2 * 2 * 4 + 8


def test_parameters_buffers_and_counters_are_counted_in_bytes():
    before = torch.random.get_rng_state()
    assert network_bytes(small, 1000) == SIZE
    assert network_bytes(small, SIZE) == SIZE
    assert torch.equal(torch.random.get_rng_state(), before)


def test_a_byte_more_than_allowed_is_refused():
    with pytest.raises(TooLargeError):
        network_bytes(small, SIZE - 1)


def test_a_huge_network_is_refused_before_it_is_made():
    with pytest.raises(TooLargeError):
        network_bytes(lambda: nn.Linear(10**9, 10**6), 10**6)
