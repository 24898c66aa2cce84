"""Test iterative stratification of images with several labels, and its use in partitions."""

from __future__ import annotations

import numpy as np
import pytest

from medfl.data.datalists import Datalist
from medfl.data.partition.assign import distribute
from medfl.data.partition.holdouts import choose_fold, split_site_records
from medfl.data.partition.iid import iid
from medfl.data.partition.plan import PartitionPlan
from medfl.data.partition.shares import holdout, iterative
from medfl.records.datalist import CaseRecord

SHARES = (0.5, 0.2, 0.08, 0.03)


def findings(n: int, seed: int = 0) -> np.ndarray:
    """Return correlated findings: the second mostly occurs with the first, the last mostly with the third."""
    rng = np.random.default_rng(seed)
    sets = rng.random((n, len(SHARES))) < SHARES
    sets[:, 1] |= sets[:, 0] & (rng.random(n) < 0.3)
    sets[:, 3] |= sets[:, 2] & (rng.random(n) < 0.3)
    return sets


def error(sets: np.ndarray, parts: np.ndarray, sizes: np.ndarray) -> float:
    """Return the mean absolute difference between the parts' label counts and their proportional shares, in units."""
    counts = np.stack([sets[parts == part].sum(axis=0) for part in range(len(sizes))])
    return float(np.abs(counts - sets.sum(axis=0) * sizes[:, None] / len(sets)).mean())


@pytest.mark.parametrize("sizes", [[100, 100, 100], [240, 60], [150, 0, 149, 1]])
@pytest.mark.parametrize("seed", range(3))
def test_each_unit_is_dealt_once_and_labels_are_nearer_to_their_share_than_by_chance(sizes, seed):
    sets, counts = findings(300, seed), np.array(sizes)
    parts = iterative(sets, counts, np.random.default_rng(seed))
    assert np.bincount(parts, minlength=len(sizes)).tolist() == sizes
    by_chance = np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    assert error(sets, parts, counts) <= min(1.0, 0.5 * error(sets, by_chance, counts) + 0.1)


@pytest.mark.parametrize("positive", [0, 1, 7, 50, 199, 200])
@pytest.mark.parametrize("sizes", [[67, 67, 66], [160, 40]])
def test_a_single_label_is_stratified_as_a_class_is(positive, sizes):
    sets = (np.arange(200) < positive)[:, None]
    parts = iterative(sets, np.array(sizes), np.random.default_rng(1))
    for part, size in enumerate(sizes):
        assert abs(sets[parts == part].sum() - positive * size / 200) < 1


def test_classes_as_labels_are_dealt_as_evenly_as_classes():
    labels = np.random.default_rng(0).choice(4, 103, p=(0.5, 0.3, 0.15, 0.05))
    parts = iid(labels, 5, sets=labels[:, None] == np.arange(4), rng=np.random.default_rng(0))
    counts = np.stack([np.bincount(labels[part], minlength=4) for part in parts])
    assert (counts.max(axis=0) - counts.min(axis=0) <= 1).all()
    assert np.ptp([len(part) for part in parts]) <= 1


def test_the_same_generator_deals_alike_and_another_does_not():
    sets, sizes = findings(100), np.array([60, 40])
    first, second, other = (iterative(sets, sizes, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(first, second)
    assert not np.array_equal(first, other)


def test_rare_labels_are_dealt_first():
    """Two images have the rare finding, and the common one as well: each part gets one of them."""
    sets = np.zeros((20, 2), dtype=bool)
    sets[:, 0], sets[[3, 11], 1] = True, True
    for seed in range(10):
        parts = iterative(sets, np.array([10, 10]), np.random.default_rng(seed))
        assert parts[3] != parts[11]


def test_no_units_and_no_labels():
    assert len(iterative(np.zeros((0, 3), dtype=bool), np.array([0, 0]), np.random.default_rng(0))) == 0
    parts = iterative(np.zeros((5, 2), dtype=bool), np.array([2, 3]), np.random.default_rng(0))
    assert np.bincount(parts).tolist() == [2, 3]


def test_a_holdout_and_folds_keep_each_label():
    sets = findings(200)
    held = holdout(np.zeros(200, int), 0.25, np.random.default_rng(0), sets=sets)
    assert held.sum() == 50
    assert np.abs(sets[held].sum(axis=0) - sets.sum(axis=0) / 4).max() <= 1
    folds = np.stack([choose_fold(np.zeros(200, int), 5, k, np.random.default_rng(0), sets=sets) for k in range(5)])
    assert (folds.sum(axis=0) == 1).all()
    assert max(np.ptp([sets[fold].sum(axis=0)[label] for fold in folds]) for label in range(4)) <= 2


def pool(sets: np.ndarray, images_of_patient: int = 1) -> Datalist:
    records: list[CaseRecord] = [
        {
            "image": row,
            "target": [float(there) for there in own],
            "subject_id": f"p{row // images_of_patient}",
            "sex": "fm"[row % 3 > 0],
        }
        for row, own in enumerate(sets)
    ]
    return Datalist(
        "findings",
        "images.npy",
        sets.shape[1] + 1,
        objective={"name": "multilabel", "num_labels": sets.shape[1]},
        splits={"training": records, "validation": [], "test": []},
    )


def shares(records: list[CaseRecord]) -> np.ndarray:
    return np.array([record["target"] for record in records]).sum(axis=0)


def test_sites_and_their_tests_keep_each_finding():
    sets = findings(400)
    hashes = [bytes([row // 256, row % 256]) for row in range(400)]
    plan = PartitionPlan("iid", 4, server_test="none", test_fraction=0.25, val_fraction=0.25)
    by_site, _ = distribute(pool(sets), hashes, plan, iid)
    rows = sorted(record["image"] for splits in by_site.values() for part in splits.values() for record in part)
    assert rows == list(range(400))
    for splits in by_site.values():
        mine = sum(shares(part) for part in splits.values())
        assert np.abs(mine - sets.sum(axis=0) / 4).max() <= 1
        for part in ("test", "validation"):
            assert np.abs(shares(splits[part]) - mine / 4).max() <= 1.5


def test_patients_stay_together_and_columns_count_as_labels():
    sets = findings(300)
    datalist = pool(sets, images_of_patient=3)
    records = datalist.splits["training"]
    plan = PartitionPlan("iid", 1, test_fraction=0.2, stratify=["sex"])
    strata = np.array([record["sex"] == "m" for record in records], dtype=np.int64)
    units = np.arange(300) // 3
    labels = np.zeros(300, dtype=np.int64)
    splits = split_site_records(records, plan, "site-01", units, np.repeat(strata[::3], 3), labels, sets)
    patients = [{record["subject_id"] for record in part} for part in splits.values()]
    assert not set.intersection(patients[0], patients[2])
    assert len(splits["test"]) == 60
    held = {record["image"] // 3 for record in splits["test"]}
    united = sets.reshape(100, 3, -1).any(axis=1)
    assert np.abs(united[sorted(held)].sum(axis=0) - united.sum(axis=0) / 5).max() <= 1.5
