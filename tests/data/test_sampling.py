"""Test the choice of rows of the shared set: balanced over the classes, and a fraction of each class."""

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from refusals import refused

from medfl.data.sampling import balanced_rows, class_rows, stratified_share
from medfl.errors import SettingsError
from medfl.utils.rng import make_generator

LABELS = some.lists(some.sampled_from([0, 1, 2, 5, 9]), min_size=1, max_size=40).map(torch.tensor)


@settings(max_examples=100, deadline=None)
@given(labels=LABELS, count=some.integers(0, 120), seed=some.integers(0, 2**30))
def test_every_class_counts_the_same_and_within_it_every_image(labels, count, seed):
    rows = balanced_rows(labels, count, make_generator(seed))
    assert (rows.shape, rows.dtype) == ((count,), torch.int64)
    used = torch.bincount(rows, minlength=len(labels))
    assert len(used) == len(labels), "no row outside of the set"
    per_class = [int(used[labels == label].sum()) for label in labels.unique()]
    assert sum(per_class) == count
    assert max(per_class) - min(per_class) <= 1
    for label in labels.unique():
        assert int(used[labels == label].max() - used[labels == label].min()) <= 1
    assert torch.equal(rows, balanced_rows(labels, count, make_generator(seed)))


def test_a_set_that_is_balanced_already_is_gone_through_once():
    labels = torch.tensor([3, 1, 2]).repeat(7)
    assert torch.equal(balanced_rows(labels, 21, make_generator(0)).sort().values, torch.arange(21))


def test_what_is_left_over_goes_to_each_class_equally_often():
    labels = torch.tensor([0] * 8 + [1] * 3 + [2] * 5)
    draws = 600
    more = Counter()
    for seed in range(draws):
        counts = torch.bincount(labels[balanced_rows(labels, 7, make_generator(seed))])
        assert sorted(counts.tolist()) == [2, 2, 3]
        more[int(counts.argmax())] += 1
    bound = 4 * math.sqrt(draws * (1 / 3) * (2 / 3))
    assert all(abs(more[label] - draws / 3) < bound for label in range(3))


def test_every_image_of_a_class_is_drawn_equally_often():
    labels, draws = torch.tensor([0, 0, 0, 0, 0, 1]), 600
    used = sum(torch.bincount(balanced_rows(labels, 4, make_generator(seed)), minlength=6) for seed in range(draws))
    assert int(used[5]) == 2 * draws
    bound = 4 * math.sqrt(draws * 0.4 * 0.6)
    assert bool(((used[:5] - 0.4 * draws).abs() < bound).all())


def test_classes_are_mixed_within_an_epoch():
    labels = torch.tensor([0] * 300 + [1] * 300)
    half = labels[balanced_rows(labels, 400, make_generator(1))][:200].sum()
    assert abs(int(half) - 100) < 4 * math.sqrt(50 / 2), "hypergeometric: variance 200 * 1/4 * 200/399"


def test_an_empty_shared_set_gives_nothing_and_is_asked_for_nothing():
    nothing = torch.empty(0, dtype=torch.int64)
    rows = balanced_rows(nothing, 0, make_generator(0))
    assert (rows.shape, rows.dtype) == ((0,), torch.int64)
    with refused(SettingsError, "empty_shared_set", count=5):
        balanced_rows(nothing, 5, make_generator(0))
    with refused(SettingsError, "setting_out_of_range", setting="count", minimum=0, found=-1):
        balanced_rows(torch.tensor([0, 1]), -1, make_generator(0))


@settings(max_examples=100, deadline=None)
@given(labels=LABELS, percent=some.integers(0, 100), seed=some.integers(0, 2**30))
def test_a_share_takes_from_each_class_its_part_rounded_up(labels, percent, seed):
    rows = stratified_share(labels, percent / 100, make_generator(seed))
    assert rows.dtype == torch.int64
    assert torch.equal(rows, rows.unique()), "sorted, no doubles"
    for label in labels.unique():
        size = int((labels == label).sum())
        assert int((labels[rows] == label).sum()) == -(-percent * size // 100)  # exact, in integers


def test_a_share_of_nothing_of_a_little_and_of_all():
    labels = torch.tensor([4, 4, 4, 6, 6, 8])
    assert stratified_share(labels, 0.0, make_generator(0)).shape == (0,)
    assert labels[stratified_share(labels, 1e-12, make_generator(0))].tolist() == [4, 6, 8]
    assert torch.equal(stratified_share(labels, 1.0, make_generator(0)), torch.arange(6))
    assert len(stratified_share(torch.zeros(100), 0.55, make_generator(0))) == 55
    assert stratified_share(torch.empty(0, dtype=torch.int64), 0.5, make_generator(0)).shape == (0,)


def test_which_images_are_shared_is_chance():
    labels = torch.zeros(10)
    used = sum(torch.bincount(stratified_share(labels, 0.3, make_generator(seed)), minlength=10) for seed in range(500))
    assert bool(((used - 150).abs() < 4 * math.sqrt(500 * 0.3 * 0.7)).all())


@pytest.mark.parametrize("fraction", [-0.1, 1.01, math.nan])
def test_an_impossible_share_is_refused(fraction):
    with refused(SettingsError, "setting_out_of_range", setting="fraction", minimum=0, maximum=1, found=fraction):
        stratified_share(torch.tensor([0, 1]), fraction, make_generator(0))


def test_rows_of_the_classes():
    assert [rows.tolist() for rows in class_rows(torch.tensor([7, 2, 7]))] == [[1], [0, 2]]
