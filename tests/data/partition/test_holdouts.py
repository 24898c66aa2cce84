"""Test local test and validation sets: fractions, folds and images of each class; units stay together."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from medfl.data.datalists import make_records
from medfl.data.partition.holdouts import choose_class_balanced, choose_fold, choose_per_class, split_site_records
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.shares import holdout
from medfl.errors import SettingsError
from medfl.records.datalist import CaseRecord


def grouped(patients: int, seed: int = 0) -> list[CaseRecord]:
    """Return one to four images for each patient; the patient decides the class."""
    sizes = np.random.default_rng(seed).integers(1, 5, patients)
    subjects = np.repeat(np.arange(patients), sizes)
    return [{"image": row, "label": int(who % 3), "subject_id": f"p{who}"} for row, who in enumerate(subjects)]


def subjects(records: list[CaseRecord]) -> set[str]:
    return {record["subject_id"] for record in records}


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 0.5, 0.9])
def test_a_holdout_has_the_right_size_in_total_and_in_each_class(fraction):
    labels = np.repeat([0, 1, 2], [50, 7, 23])
    chosen = holdout(labels, fraction, np.random.default_rng(0))
    assert chosen.sum() == np.floor(80 * fraction + 0.5)
    for label, size in ((0, 50), (1, 7), (2, 23)):
        assert abs(chosen[labels == label].sum() - size * fraction) <= 1, f"class {label}"


@pytest.mark.parametrize(("size", "kept"), [(0, 0), (1, 1), (2, 1), (3, 1), (10, 1)])
def test_a_holdout_leaves_an_image_to_train_with(size, kept):
    chosen = holdout(np.zeros(size, int), 0.99, np.random.default_rng(0))
    assert (~chosen).sum() == kept


@pytest.mark.parametrize(
    ("sizes", "counts"),
    [
        ([100, 20, 3], [8, 8, 0]),  # 24 // 3 of each; a fifth of 3 is none
        ([100, 20, 7], [8, 8, 1]),  # 25 // 3; a fifth of 7
        ([90, 8], [9, 1]),
        ([12], [2]),
        ([40, 4], [4, 4]),  # the quota takes the whole of a small class
        ([], []),
    ],
)
def test_a_class_balanced_holdout_has_as_many_of_each_class_as_the_released_code_draws(sizes, counts):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    chosen = choose_class_balanced(labels, 0.2, np.random.default_rng(0))
    assert np.bincount(labels[chosen], minlength=len(sizes)).tolist() == counts


def test_where_no_class_has_a_quota_a_class_balanced_holdout_is_a_share_of_all():
    chosen = choose_class_balanced(np.arange(13), 0.2, np.random.default_rng(0))
    assert chosen.sum() == 2


def test_guessing_the_commonest_class_is_right_less_often_where_test_classes_are_alike():
    records = make_records(range(100), [0] * 80 + [1] * 20, "x")
    shares = {}
    for test in ("fraction", "class_balanced"):
        held = split_site_records(records, PartitionPlan("iid", 1, test=test, test_fraction=0.2), "site-01")["test"]
        assert len(held) == 20
        shares[test] = sum(record["label"] == 0 for record in held) / 20
    assert shares == {"fraction": 0.8, "class_balanced": 0.5}


@pytest.mark.parametrize("policy", ["fraction", "class_balanced", "k_fold"])
def test_another_seed_tests_on_other_images(policy):
    records = [{"image": row, "label": row % 2} for row in range(60)]
    tests = [
        split_site_records(records, PartitionPlan("iid", 1, seed, test=policy), "site-01")["test"] for seed in (0, 0, 1)
    ]
    assert tests[0] == tests[1] != tests[2]


def test_local_splits_depend_on_seed_and_site_only():
    records = make_records(range(50), [row % 2 for row in range(50)], "x")
    plan = PartitionPlan("iid", 2, seed=3, test_fraction=0.2, val_fraction=0.1)
    splits = split_site_records(records, plan, "site-01")
    assert {split: len(part) for split, part in splits.items()} == {"training": 35, "validation": 5, "test": 10}
    assert splits == split_site_records(records, plan, "site-01")
    assert splits != split_site_records(records, plan, "site-02")
    together = sorted(record["image"] for part in splits.values() for record in part)
    assert together == list(range(50)), "every image is in exactly one split"


@pytest.mark.parametrize(
    "policy",
    [
        {"test_fraction": 0.3},
        {"test": "class_balanced", "test_fraction": 0.3},
        {"test": "k_fold", "folds": 4, "fold": 2},
        {"test": "none"},
    ],
)
def test_a_patient_is_on_one_side_only(policy):
    records = grouped(120)
    splits = split_site_records(records, PartitionPlan("iid", 1, val_fraction=0.2, **policy), "site-01")
    assert sum(map(len, splits.values())) == len(records)
    together = [subjects(part) for part in splits.values()]
    assert sum(map(len, together)) == len(set.union(*together)) == 120
    share = {"fraction": 0.3, "class_balanced": 0.3, "k_fold": 0.25, "none": 0.0}[policy.get("test", "fraction")]
    assert [len(part) for part in together] == [120 - 24 - round(120 * share), 24, round(120 * share)], "by patient"


def test_given_units_count_instead_of_subjects():
    records = make_records(range(8), [0] * 8, "x")
    units = np.array([40, 40, 7, 7, 7, 7, 9, 9])
    splits = split_site_records(records, PartitionPlan("iid", 1, test_fraction=0.34), "site-01", units)
    held = [record["image"] for record in splits["test"]]
    assert held in ([0, 1], [2, 3, 4, 5], [6, 7])


def test_each_unit_is_tested_in_exactly_one_fold():
    records = grouped(57)
    sides = [
        split_site_records(
            records, PartitionPlan("iid", 1, test="k_fold", folds=5, fold=fold, val_fraction=0.1), "site-01"
        )
        for fold in range(5)
    ]
    tested = sorted(record["image"] for splits in sides for record in splits["test"])
    assert tested == list(range(len(records)))
    for splits in sides:
        assert not subjects(splits["test"]) & (subjects(splits["training"]) | subjects(splits["validation"]))
        assert splits["validation"]
    assert {len(subjects(splits["test"])) for splits in sides} == {11, 12}


def test_folds_are_stratified_and_keyed_by_seed_and_site():
    labels = np.repeat([0, 1, 2], [50, 7, 23])
    table = [
        np.bincount(labels[choose_fold(labels, 5, fold, np.random.default_rng(0))], minlength=3) for fold in range(5)
    ]
    assert np.ptp(table, axis=0).max() <= 1
    records = make_records(range(40), [row % 2 for row in range(40)], "x")
    tests = [
        split_site_records(records, PartitionPlan("iid", 2, seed, test="k_fold"), site)["test"]
        for seed, site in ((0, "site-01"), (0, "site-01"), (1, "site-01"), (0, "site-02"))
    ]
    assert tests[0] == tests[1]
    assert tests[0] != tests[2]
    assert tests[0] != tests[3]


def test_a_site_without_images_has_empty_splits_and_a_small_one_is_refused():
    plan = PartitionPlan("iid", 1, test="k_fold", folds=5)
    assert split_site_records([], plan, "site-01") == {"training": [], "validation": [], "test": []}
    with refused(SettingsError, "too_few_images", site="site-07", folds=5, found=4):
        split_site_records(make_records(range(4), [0] * 4, "x"), plan, "site-07")


def test_images_of_each_class_are_chosen_exactly_without_groups():
    labels = np.random.default_rng(0).integers(0, 4, 300)
    chosen = choose_per_class(np.arange(300), labels, 30, np.random.default_rng(0))
    assert np.bincount(labels[chosen]).tolist() == [30] * 4


def test_images_of_each_class_come_in_whole_groups():
    records = grouped(200)
    labels = np.array([record["label"] for record in records])
    units = np.array([int(record["subject_id"][1:]) for record in records])
    chosen = choose_per_class(units, labels, 25, np.random.default_rng(0))
    counts = np.bincount(labels[chosen[units]], minlength=3)
    assert (counts <= 25).all()
    assert (counts >= 25 - 3).all(), "a group has four images at most"
    mixed = choose_per_class(np.arange(40) // 2, np.arange(40) % 2, 7, np.random.default_rng(0))
    assert mixed.sum() == 7, "a group of two classes counts for both"


def test_too_many_images_of_each_class_are_refused():
    with refused(SettingsError, "too_few_images", label=7, count=30, found=30):
        choose_per_class(np.arange(130), np.repeat([4, 7], [100, 30]), 30, np.random.default_rng(0))
