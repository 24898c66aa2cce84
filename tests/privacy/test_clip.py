"""Test clipping: one joint norm of all tensors, and no change within the bound."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.errors import RefusedError
from medfl.privacy.gaussian import clip_by_norm, l2_norm


def test_within_the_bound_not_a_bit_changes():
    update = {"a": torch.randn(50), "n": torch.tensor(3)}
    clipped = clip_by_norm(update, l2_norm(update))
    assert all(torch.equal(clipped[name], update[name]) for name in update)


@settings(max_examples=50, deadline=None)
@given(seed=some.integers(0, 1000), bound=some.floats(1e-6, 1e3))
def test_norm_is_the_bound_and_direction_is_kept(seed, bound):
    g = torch.Generator().manual_seed(seed)
    update = {"a": torch.randn(3, 4, generator=g) * 1e4, "b": torch.randn((), generator=g)}
    clipped = clip_by_norm(update, bound)
    assert l2_norm(clipped) == pytest.approx(bound, rel=1e-6)
    torch.testing.assert_close(clipped["a"] * (l2_norm(update) / bound), update["a"])


def test_integers_pass_and_do_not_count():
    update = {"w": torch.tensor([3.0, 4.0]), "count": torch.tensor(1000), "flag": torch.tensor([True])}
    clipped = clip_by_norm(update, 2.5)
    torch.testing.assert_close(clipped["w"], torch.tensor([1.5, 2.0]))
    assert clipped["count"] == 1000
    assert clipped["flag"].dtype == torch.bool


def test_the_input_stays_as_it_is():
    update = {"w": torch.tensor([3.0, 4.0])}
    clip_by_norm(update, 1.0)
    assert update["w"].tolist() == [3.0, 4.0]


def test_many_small_numbers_are_summed_exactly():
    update = {"w": torch.full((4_000_000,), 1e-3)}
    assert l2_norm(update) == pytest.approx(2.0, rel=1e-7)


def test_float32_extremes_do_not_overflow():
    assert l2_norm({"w": torch.full((4,), 3e38)}) == pytest.approx(6e38)


def test_nothing_has_norm_zero():
    assert l2_norm({}) == 0.0
    assert clip_by_norm({}, 1.0) == {}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_is_refused(bad):
    with refused(RefusedError, "not_finite", found=str(bad)):
        clip_by_norm({"w": torch.tensor([1.0, bad])}, 1.0)
