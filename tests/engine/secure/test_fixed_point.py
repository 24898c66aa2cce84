"""Test the fixed-point format: no sum wraps, rounding is unbiased, sums are exact, and noise has room."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.engine.secure.fixed_point import FixedPoint
from medfl.errors import SettingsError


@pytest.mark.parametrize("bits", [32, 40])
@pytest.mark.parametrize("sites", [3, 10, 64])
def test_the_largest_sum_does_not_wrap(bits: int, sites: int) -> None:
    point = FixedPoint(bits, sites, clip=5.0, numbers=2)
    total = np.zeros(2, dtype=np.uint32 if bits == 32 else np.uint64)
    for seed in range(sites):
        generator = torch.Generator().manual_seed(seed)
        total += point.words(point.rounded(torch.tensor([5.0, -5.0]).double(), generator))
    assert point.values(total).tolist() == [5.0 * sites, -5.0 * sites]
    assert point.scale * 5.0 * sites > 2 ** (bits - 3), "as fine as there is room for"


def test_rounding_is_even_and_by_less_than_a_step() -> None:
    point = FixedPoint(32, 10, clip=2.0**20, numbers=100_000)
    value = 0.3 / point.scale
    steps = point.rounded(torch.full((100_000,), value).double(), torch.Generator().manual_seed(1))
    assert set(steps.tolist()) == {0, 1}
    assert float(steps.double().mean()) == pytest.approx(0.3, abs=0.006)


def test_rounding_repeats() -> None:
    point, values = FixedPoint(40, 3, 1.0, 50), torch.linspace(-0.1, 0.1, 50).double()
    first, second = (point.rounded(values, torch.Generator().manual_seed(4)) for _ in range(2))
    assert torch.equal(first, second)


def test_noise_is_shared_by_the_threshold_and_has_room() -> None:
    point = FixedPoint(40, sites=10, clip=0.5, numbers=1000, noise=8.0, threshold=4)
    assert point.site_noise * 4**0.5 == pytest.approx(8.0 * point.reach)
    assert point.reach == pytest.approx(0.5 * point.scale, rel=1e-3)
    assert 10 * 0.5 * point.scale + 12 * point.site_noise * 10**0.5 < 2**39


@pytest.mark.parametrize("threshold", [1, 6])
def test_noise_covers_what_rounding_adds_to_the_norm(threshold: int) -> None:
    """Use a format in which rounding up everywhere exceeds the clip by a sixth, as noise leaves few bits to updates."""
    numbers, noise = 10_000, 5e5
    point = FixedPoint(32, sites=threshold, clip=1.0, numbers=numbers, noise=noise, threshold=threshold)
    value = torch.full((numbers,), numbers**-0.5).double()  # of norm 1
    rounded = torch.floor(value * point.scale) + 1  # the longest vector that `rounded` can return
    assert float(rounded.norm()) > 1.1 * point.scale
    assert point.site_noise * threshold**0.5 >= noise * float(rounded.norm())


def test_noise_has_room_where_rounding_is_most_of_the_norm() -> None:
    point = FixedPoint(32, sites=1, clip=1.0, numbers=100_000, noise=5e5)
    assert point.reach > 5 * point.scale
    assert point.reach + 12 * point.site_noise < 2**31


def test_noise_that_rounding_would_swallow_is_refused() -> None:
    with refused(SettingsError, "noise_too_small", minimum=10.0, found=pytest.approx(2.05e-3, rel=1e-2)):
        FixedPoint(32, sites=10**6, clip=1.0, numbers=10, noise=1e-3, threshold=10**6)
