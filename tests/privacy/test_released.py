"""Tests of `ReleasedImages`: the precision-weighted mean of noised copies, its variance, and copies without noise."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from medfl.privacy.release import ImageRelease
from medfl.privacy.released import ReleasedImages
from medfl.utils.rng import SecretStream


def released(variances: tuple[float, ...], values: tuple[float, ...], noise: str = "gaussian") -> ReleasedImages:
    copies = tuple(torch.full((2, 1, 2, 2), value).half() for value in values)
    releases = tuple(ImageRelease(noise, variance, None) for variance in variances)
    return ReleasedImages(copies, torch.zeros(2, dtype=torch.int64), ("a", "b"), nn.Identity(), releases)


@pytest.mark.parametrize(
    ("variances", "values", "mean", "variance"),
    [
        ((0.2,), (4.0,), 4.0, 0.2),
        ((0.1, 0.3), (0.0, 8.0), 2.0, 0.075),
        ((0.3, 0.1), (0.0, 8.0), 6.0, 0.075),
        ((0.3, 0.3, 0.3), (1.0, 2.0, 6.0), 3.0, 0.1),
    ],
)
def test_copies_are_averaged_by_the_precision_of_their_noise(variances, values, mean, variance) -> None:
    """Use the variances 0.1 and 0.3: the first copy has weight 3/4, and the mean has variance 0.075."""
    shared = released(variances, values)
    assert shared.variance == pytest.approx(variance)
    torch.testing.assert_close(shared.images, torch.full((2, 1, 2, 2), mean), atol=1e-5, rtol=0)


def test_what_an_attacker_simulates_has_the_variance_of_the_mean() -> None:
    shared = released((0.1, 0.3), (0.0, 0.0))
    sent = shared.sent(torch.zeros(500, 1, 4, 4), SecretStream(b"a secret of 16 b", "test"))
    assert float(sent.mean()) == pytest.approx(0.0, abs=0.02)
    assert float(sent.var()) == pytest.approx(0.075, rel=0.06)


def test_without_noise_there_is_one_copy_without_variance() -> None:
    shared = released((0.2,), (4.0,), "none")
    assert shared.variance == 0
    assert bool((shared.images == 4).all())


def test_one_copy_without_noise_among_others_reveals_all() -> None:
    releases = (ImageRelease("gaussian", 0.1, None), ImageRelease("none", 0.1, None))
    copies = (torch.zeros(1, 1, 2, 2), torch.ones(1, 1, 2, 2))
    assert ReleasedImages(copies, torch.zeros(1).long(), ("a",), nn.Identity(), releases).variance == 0
