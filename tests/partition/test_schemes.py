"""Partitions against closed forms (oracle O-B21), and what every partition promises."""

from __future__ import annotations

import numpy as np
import pytest

from medfl.errors import SettingsError
from medfl.partition.dirichlet_class_balanced import class_shares, dirichlet_class_balanced
from medfl.partition.iid import iid

SIZES = (852, 2181, 1085, 2026, 849, 993, 2330, 1643)  # BloodMNIST's training split


def blood_labels() -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(8), SIZES))


def histograms(parts, labels) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=8) for part in parts])


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sites", [1, 3, 20])
@pytest.mark.parametrize("scheme", [iid, dirichlet_class_balanced])
def test_every_image_is_at_exactly_one_site(scheme, sites, seed):
    labels = blood_labels()
    parts = scheme(labels, sites, rng=np.random.default_rng(seed))
    assert len(parts) == sites
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("scheme", [iid, dirichlet_class_balanced])
def test_a_seed_decides(scheme):
    labels = blood_labels()
    one, same, other = (scheme(labels, 5, rng=np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("sites", [3, 7, 20])
def test_iid_histograms_differ_by_one_image_at_most(sites):
    labels = blood_labels()
    table = histograms(iid(labels, sites, rng=np.random.default_rng(0)), labels)
    assert np.ptp(table, axis=0).max() <= 1, f"images of a class at a site:\n{table}"
    assert np.ptp(table.sum(axis=1)) <= 1


def test_iid_without_strata_has_equal_sizes_and_histograms_by_chance():
    labels = blood_labels()
    table = histograms(iid(labels, 20, stratified=False, rng=np.random.default_rng(0)), labels)
    assert np.ptp(table.sum(axis=1)) <= 1
    expected = np.outer(table.sum(axis=1), SIZES) / sum(SIZES)
    statistic = ((table - expected) ** 2 / expected).sum()
    assert 85 < statistic < 190, f"chi-squared with 133 degrees of freedom: {statistic:.0f}"


@pytest.mark.parametrize(
    ("sites", "alpha", "variance"),
    [
        (10, 0.1, 0.045),
        (10, 0.5, 0.015),
        (10, 1, 0.0081818),
        (3, 0.5, 0.0888889),
        (3, 1, 0.0555556),
        (20, 0.1, 0.0158333),
    ],
)
def test_shares_have_the_mean_and_variance_of_the_dirichlet_distribution(sites, alpha, variance):
    rng = np.random.default_rng(0)
    shares = np.array([class_shares(sites, alpha, rng) for _ in range(20_000)])
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(sites, 1 / sites), abs=5 * np.sqrt(variance / 20_000))
    assert shares.var(axis=0).mean() == pytest.approx(variance, rel=0.03)


def test_the_smallest_size_is_kept():
    labels = blood_labels()
    for seed in range(5):
        parts = dirichlet_class_balanced(labels, 20, alpha=0.1, min_size=10, rng=np.random.default_rng(seed))
        assert min(map(len, parts)) >= 10


def test_a_full_site_gets_no_image_of_a_later_class():
    labels = blood_labels()
    for seed in range(20):
        table = histograms(dirichlet_class_balanced(labels, 10, alpha=0.1, rng=np.random.default_rng(seed)), labels)
        full = (table.cumsum(axis=1) >= len(labels) / 10)[:, :-1]
        assert table[:, 1:][full].sum() == 0, f"a full site grew with seed {seed}:\n{table}"


def test_a_large_alpha_makes_sites_alike():
    labels = blood_labels()
    table = histograms(dirichlet_class_balanced(labels, 4, alpha=1e6, rng=np.random.default_rng(0)), labels)
    assert table == pytest.approx(np.tile(np.array(SIZES) / 4, (4, 1)), rel=0.02)


@pytest.mark.parametrize(
    ("sites", "options", "message"),
    [
        (20, {"min_size": 1000}, "20 sites of at least 1000 images need 20000 images, there are 11959"),
        (20, {"min_size": 590, "alpha": 0.1}, "no draw of 5000 gave each of 20 sites at least 590"),
        (20, {"alpha": 0.0}, r"expected alpha > 0, got 0\.0"),
        (20, {"alpha": float("nan")}, "expected alpha > 0, got nan"),
        (20, {"min_size": -1}, "expected min_size >= 0, got -1"),
        (0, {}, "expected at least 1 site, got 0"),
    ],
)
def test_the_impossible_ends_with_a_reason(sites, options, message, monkeypatch):
    with pytest.raises(SettingsError, match=message):
        dirichlet_class_balanced(blood_labels(), sites, rng=np.random.default_rng(0), **options)


def test_more_sites_than_images_are_refused():
    with pytest.raises(SettingsError, match="4 sites of at least 1 images need 4 images, there are 3"):
        iid(np.zeros(3), 4, rng=np.random.default_rng(0))
