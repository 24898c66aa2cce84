"""Test the guarantees of all partition schemes and the specifics of each; the closed forms are oracle O-B21."""

from __future__ import annotations

import doctest
import math
from functools import partial

import numpy as np
import pytest
from refusals import refused

import medfl.data.partition
import medfl.data.partition.by_column
import medfl.data.partition.units
from medfl.data.partition.class_skew import dirichlet_class, dirichlet_class_balanced, label_k, limited_classes, subset
from medfl.data.partition.iid import iid
from medfl.data.partition.shares import class_shares
from medfl.errors import SettingsError

SIZES = (852, 2181, 1085, 2026, 849, 993, 2330, 1643)  # BloodMNIST's training split
LIMITED = partial(limited_classes, classes=[0, 3, 4], at=["site-01", "site-04"])
EIGHT_CLASSES = np.arange(8).repeat(9)
SCHEMES = [iid, dirichlet_class, dirichlet_class_balanced, label_k, subset]


def blood_labels() -> np.ndarray:
    return np.random.default_rng(0).permutation(np.repeat(np.arange(8), SIZES))


def histograms(parts, labels) -> np.ndarray:
    return np.array([np.bincount(labels[part], minlength=8) for part in parts])


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


# ---- what all promise


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("sites", [8, 24])
@pytest.mark.parametrize("scheme", [*SCHEMES, LIMITED])
def test_every_image_is_at_exactly_one_site(scheme, sites, seed):
    labels = blood_labels()
    parts = scheme(labels, sites, rng=rng(seed))
    assert len(parts) == sites
    assert all(np.array_equal(part, np.sort(part)) for part in parts)
    np.testing.assert_array_equal(np.sort(np.concatenate(parts)), np.arange(len(labels)))


@pytest.mark.parametrize("scheme", [iid, dirichlet_class, dirichlet_class_balanced])
def test_a_single_site_gets_everything(scheme):
    (part,) = scheme(blood_labels(), 1, rng=rng())
    np.testing.assert_array_equal(part, np.arange(sum(SIZES)))


@pytest.mark.parametrize("scheme", [*SCHEMES, LIMITED])
def test_a_seed_decides(scheme):
    labels = blood_labels()
    first, same, other = (scheme(labels, 8, rng=rng(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, same, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_numbers_of_the_classes_do_not_matter(scheme):
    labels = blood_labels()
    plain = scheme(labels, 8, rng=rng())
    spread = scheme(labels * 10 + 3, 8, rng=rng())
    assert all(np.array_equal(a, b) for a, b in zip(plain, spread, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_impossible_numbers_of_sites_are_refused(scheme):
    with refused(SettingsError, "setting_out_of_range", setting="sites", minimum=1, found=0):
        scheme(blood_labels(), 0, rng=rng())


def test_the_documented_examples_run():
    for module in (medfl.data.partition, medfl.data.partition.units, medfl.data.partition.by_column):
        result = doctest.testmod(module)
        assert result.attempted > 0
        assert result.failed == 0, module.__name__


# ---- iid


@pytest.mark.parametrize("sites", [1, 3, 7, 20])
def test_iid_histograms_differ_by_one_image_at_most(sites):
    labels = blood_labels()
    table = histograms(iid(labels, sites, rng=rng()), labels)
    assert np.ptp(table, axis=0).max() <= 1, f"images of a class at a site:\n{table}"
    assert np.ptp(table.sum(axis=1)) <= 1


def test_iid_without_strata_has_equal_sizes_and_histograms_by_chance():
    labels = blood_labels()
    table = histograms(iid(labels, 20, stratified=False, rng=rng()), labels)
    assert np.ptp(table.sum(axis=1)) <= 1
    expected = np.outer(table.sum(axis=1), SIZES) / sum(SIZES)
    statistic = ((table - expected) ** 2 / expected).sum()
    assert 85 < statistic < 190, f"chi-squared with 133 degrees of freedom: {statistic:.0f}"


def test_more_sites_than_images_are_refused():
    with refused(SettingsError, "too_few_images", sites=4, min_size=1, expected=4, found=3):
        iid(np.zeros(3), 4, rng=rng())


# ---- Dirichlet


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
    generator = rng()
    shares = np.array([class_shares(sites, alpha, generator) for _ in range(20_000)])
    assert np.allclose(shares.sum(axis=1), 1)
    assert shares.mean(axis=0) == pytest.approx(np.full(sites, 1 / sites), abs=5 * np.sqrt(variance / 20_000))
    assert shares.var(axis=0).mean() == pytest.approx(variance, rel=0.03)


@pytest.mark.parametrize(("sites", "alpha", "variance"), [(10, 0.5, 0.015), (3, 1, 0.0555556)])
def test_what_sites_get_of_a_class_has_that_variance_too(sites, alpha, variance):
    labels, generator = np.repeat([0, 1], 1000), rng()
    tables = [
        histograms(dirichlet_class(labels, sites, alpha=alpha, rng=generator), labels)[:, :2] / 1000
        for _ in range(1500)
    ]
    assert np.var(tables, axis=0).mean() == pytest.approx(variance, rel=0.05)
    halves = np.array(tables)
    together = np.mean(halves[:, :, 0] * halves[:, :, 1]) - 1 / sites**2
    assert abs(together) < 0.1 * variance, "classes are drawn apart from each other"


def test_draws_again_make_sites_more_alike():
    labels = np.repeat([0, 1], 1000)

    def variance(min_size: int) -> float:
        generator = rng()
        options = {"alpha": 0.5, "min_size": min_size}
        parts = [dirichlet_class(labels, 10, rng=generator, **options) for _ in range(150)]
        return float(np.var([[len(part) for part in sites] for sites in parts]))

    assert variance(50) < 0.8 * variance(0)


@pytest.mark.parametrize("scheme", [dirichlet_class, dirichlet_class_balanced])
def test_the_smallest_size_is_kept(scheme):
    labels = blood_labels()
    for seed in range(5):
        parts = scheme(labels, 20, alpha=0.1, min_size=10, rng=rng(seed))
        assert min(map(len, parts)) >= 10


def test_without_a_smallest_size_a_site_may_be_empty():
    assert min(map(len, dirichlet_class(np.zeros(50), 20, alpha=0.01, rng=rng()))) == 0


def test_a_full_site_gets_no_image_of_a_later_class():
    labels = blood_labels()
    for seed in range(20):
        table = histograms(dirichlet_class_balanced(labels, 10, alpha=0.1, rng=rng(seed)), labels)
        full = (table.cumsum(axis=1) >= len(labels) / 10)[:, :-1]
        assert table[:, 1:][full].sum() == 0, f"a full site grew with seed {seed}:\n{table}"


@pytest.mark.parametrize("scheme", [dirichlet_class, dirichlet_class_balanced])
def test_a_large_alpha_makes_sites_alike(scheme):
    labels = blood_labels()
    table = histograms(scheme(labels, 4, alpha=1e6, rng=rng()), labels)
    assert table == pytest.approx(np.tile(np.array(SIZES) / 4, (4, 1)), rel=0.02)


@pytest.mark.parametrize("scheme", [dirichlet_class, dirichlet_class_balanced])
@pytest.mark.parametrize(
    ("sites", "options", "code", "fields"),
    [
        (20, {"min_size": 1000}, "too_few_images", {"sites": 20, "min_size": 1000, "expected": 20000, "found": 11959}),
        (
            20,
            {"min_size": 596, "alpha": 0.1},
            "unreachable_min_size",
            {"tries": 20, "sites": 20, "min_size": 596, "alpha": 0.1},
        ),
        (20, {"alpha": 0.0}, "setting_out_of_range", {"setting": "alpha", "found": 0.0}),
        (20, {"alpha": math.nan}, "setting_out_of_range", {"setting": "alpha", "found": math.nan}),
        (20, {"min_size": -1}, "setting_out_of_range", {"setting": "min_size", "minimum": 0, "found": -1}),
    ],
)
def test_impossible_draws_end_with_a_reason(scheme, sites, options, code, fields, monkeypatch):
    monkeypatch.setattr("medfl.data.partition.shares.MAX_TRIES", 20)
    with refused(SettingsError, code, **fields):
        scheme(blood_labels(), sites, rng=rng(), **options)


# ---- k classes


@pytest.mark.parametrize(("sites", "k"), [(8, 1), (8, 2), (20, 2), (20, 3), (24, 8)])
def test_each_site_has_exactly_k_classes_and_classes_are_split_evenly(sites, k):
    labels = blood_labels()
    for seed in range(3):
        table = histograms(label_k(labels, sites, k=k, rng=rng(seed)), labels)
        assert ((table > 0).sum(axis=1) == k).all()
        assert (table[np.arange(sites), np.arange(sites) % 8] > 0).all(), "site i owns class i mod C"
        for column in table.T:
            assert np.ptp(column[column > 0]) <= 1, "owners share a class evenly"


def test_other_classes_are_drawn_alike():
    labels = np.repeat(np.arange(8), 40)
    generator = rng()
    tables = [histograms(label_k(labels, 8, k=3, rng=generator), labels)[0, 1:] > 0 for _ in range(1400)]
    expected = 2 / 7  # two more of seven others
    assert np.mean(tables, axis=0) == pytest.approx(np.full(7, expected), abs=4.5 * np.sqrt(expected / 1400))


def test_a_class_without_an_owner_stays_unassigned():
    labels = blood_labels()
    table = histograms(label_k(labels, 5, k=1, rng=rng()), labels)
    assert table.sum(axis=0).tolist() == [*SIZES[:5], 0, 0, 0]


@pytest.mark.parametrize("k", [0, 9])
def test_impossible_numbers_of_classes_are_refused(k):
    with refused(SettingsError, "setting_out_of_range", setting="k", minimum=1, maximum=8, found=k):
        label_k(blood_labels(), 8, k=k, rng=rng())


# ---- subset


@pytest.mark.parametrize(("sites", "share"), [(8, 0.9), (24, 0.95), (16, 1.0), (8, 0.0)])
def test_the_main_sites_of_a_class_get_their_share_of_it(sites, share):
    labels = blood_labels()
    table = histograms(subset(labels, sites, share=share, rng=rng()), labels)
    for label, size in enumerate(SIZES):
        main = np.arange(sites) % 8 == label
        kept = int(np.floor(share * size + 0.5))
        assert table[main, label].sum() == kept
        for owners in (main, ~main):
            assert np.ptp(table[owners, label]) <= 1, "evenly"


def test_at_one_share_in_c_all_sites_are_alike():
    labels = np.repeat(np.arange(8), 800)
    table = histograms(subset(labels, 16, share=1 / 8, rng=rng()), labels)
    assert np.ptp(table) <= 1
    assert table.mean() == 50


@pytest.mark.parametrize(
    ("labels", "sites", "share", "code", "fields"),
    [
        (EIGHT_CLASSES, 12, 0.9, "setting_out_of_range", {"setting": "sites", "multiple_of": 8, "found": 12}),
        (EIGHT_CLASSES, 4, 0.9, "setting_out_of_range", {"setting": "sites", "multiple_of": 8, "found": 4}),
        (EIGHT_CLASSES, 8, 1.1, "setting_out_of_range", {"setting": "share", "minimum": 0, "maximum": 1, "found": 1.1}),
        (EIGHT_CLASSES, 8, math.nan, "setting_out_of_range", {"setting": "share", "found": math.nan}),
        (np.zeros(9), 2, 0.9, "too_few_classes", {"minimum": 2, "found": 1}),
    ],
)
def test_impossible_subsets_are_refused(labels, sites, share, code, fields):
    with refused(SettingsError, code, **fields):
        subset(labels, sites, share=share, rng=rng())


# ---- limited classes


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 1.0])
def test_limited_sites_keep_their_share_and_the_others_get_the_rest(share):
    labels, sites = blood_labels(), 5
    plain = histograms(iid(labels, sites, rng=rng()), labels)
    table = histograms(LIMITED(labels, sites, share=share, rng=rng()), labels)
    few, rest = [0, 3], [1, 2, 4]  # site-01 and site-04, and the others
    for label in range(8):
        if label not in (0, 3, 4):
            assert table[:, label].tolist() == plain[:, label].tolist()
            continue
        assert table[few, label].tolist() == np.floor(share * plain[few, label] + 0.5).tolist()
        gains = table[rest, label] - plain[rest, label]
        assert gains.sum() == (plain[few, label] - table[few, label]).sum()
        assert np.ptp(gains) <= 1
    assert table.sum(axis=0).tolist() == list(SIZES)
    assert np.array_equal(table, plain) == (share == 1)


def test_what_is_limited_at_all_sites_stays_unassigned():
    labels = blood_labels()
    table = histograms(
        limited_classes(labels, 2, classes=[1], at=["site-02", "site-01"], share=0.25, rng=rng()), labels
    )
    assert table.sum(axis=0).tolist() == [852, 273 + 273, *SIZES[2:]]


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        (
            {"classes": [8], "at": ["site-01"]},
            "unknown_choice",
            {"what": "classes", "choice": [8], "expected": [*range(8)]},
        ),
        ({"classes": [], "at": ["site-01"]}, "unknown_choice", {"what": "classes", "choice": []}),
        (
            {"classes": [1], "at": ["site-1"]},
            "unknown_choice",
            {"what": "at", "choice": ["site-1"], "expected": ["site-01", "site-02"]},
        ),
        (
            {"classes": [1], "at": ["site-01"], "share": 1.5},
            "setting_out_of_range",
            {"setting": "share", "minimum": 0, "maximum": 1, "found": 1.5},
        ),
    ],
)
def test_limits_on_nothing_are_refused(options, code, fields):
    with refused(SettingsError, code, **fields):
        limited_classes(blood_labels(), 2, rng=rng(), **options)
