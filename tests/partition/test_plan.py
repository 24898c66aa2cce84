"""From positions to folders: local splits, what is written, and that nothing is lost."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from medfl.data.datalists import Datalist, make_records, read_datalist, write_datalist
from medfl.data.sites import load_global, load_sites
from medfl.errors import DataError, SettingsError
from medfl.partition.iid import iid
from medfl.partition.plan import Plan, holdout, local_splits, partition


@pytest.fixture
def pool(tmp_path) -> Path:
    folder = tmp_path / "P"
    folder.mkdir()
    np.save(folder / "images.npy", np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8))
    splits = {
        "training": make_records(range(100), [row % 3 for row in range(100)], "train"),
        "validation": make_records(range(100, 110), [0] * 10, "val"),
        "test": make_records(range(110, 130), [row % 3 for row in range(20)], "test"),
    }
    write_datalist(folder, Datalist("toy", "images.npy", 3, licence="CC0 1.0", splits=splits))
    return folder


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


def test_local_splits_depend_on_seed_and_site_only():
    records = make_records(range(50), [row % 2 for row in range(50)], "x")
    plan = Plan("iid", 2, seed=3, test_fraction=0.2, val_fraction=0.1)
    one = local_splits(records, plan, "site-01")
    assert {split: len(part) for split, part in one.items()} == {"training": 35, "validation": 5, "test": 10}
    assert one == local_splits(records, plan, "site-01")
    assert one != local_splits(records, plan, "site-02")
    together = sorted(record["image"] for part in one.values() for record in part)
    assert together == list(range(50)), "every image is in exactly one split"


def test_a_partition_reads_back_with_every_image_once(pool, tmp_path):
    partition(pool, tmp_path / "D", Plan("iid", 7, val_fraction=0.1), iid)
    sites = load_sites(tmp_path / "D", 3)
    assert list(sites) == [f"site-{number:02d}" for number in range(1, 8)]
    rows = []
    for name in sites:
        datalist = read_datalist(tmp_path / "D" / name)
        rows += [record["image"] for part in datalist.splits.values() for record in part]
    assert sorted(rows) == list(range(100))
    pooled = load_global(tmp_path / "D", 3)
    assert pooled is not None
    assert len(pooled.test) == 20
    facts = json.loads((tmp_path / "D" / "partition.json").read_text())
    assert facts["not_distributed"] == {"validation": 10}, "what stays out is written down"
    assert (facts["scheme"], facts["seed"], facts["sites"]) == ("iid", 0, 7)
    site_card = json.loads((tmp_path / "D" / "site-03" / "site_card.json").read_text())
    assert sum(site_card["counts"]["training"].values()) == len(sites["site-03"].train)
    assert {"class_balance", "versions", "exclusions", "scheme", "licence"} <= set(site_card)


def test_no_image_is_copied_and_the_two_folders_may_move_together(pool, tmp_path):
    partition(pool, tmp_path / "deep" / "D", Plan("iid", 2), iid)
    assert not list((tmp_path / "deep").rglob("*.npy"))
    before = load_sites(tmp_path / "deep" / "D", 3)["site-01"].digest
    target = tmp_path / "elsewhere"
    target.mkdir()
    for name in ("P", "deep"):
        (tmp_path / name).rename(target / name)
    assert load_sites(target / "deep" / "D", 3)["site-01"].digest == before


def test_a_seed_decides_every_byte(pool, tmp_path):
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        partition(pool, tmp_path / name, Plan("iid", 3, seed), iid)
    one, same, other = ((tmp_path / name / "site-01" / "datalist.json").read_bytes() for name in "abc")
    assert one == same
    assert one != other


def test_a_hundred_sites_sort_as_numbers():
    names = Plan("iid", 100).names()
    assert (names[0], names[-1]) == ("site-001", "site-100")
    assert names == sorted(names)


def test_a_scheme_that_loses_or_doubles_images_is_caught(pool, tmp_path):
    def loses(labels, sites, *, rng):
        return [np.arange(10), np.arange(5, 20)]

    with pytest.raises(
        DataError, match="each of 100 images at exactly one of 2 sites; it made 2 sites with 25 images, 20"
    ):
        partition(pool, tmp_path / "D", Plan("loses", 2), loses)
    assert not (tmp_path / "D").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"options": {"alhpa": 1}}, "partition 'iid' has no option 'alhpa'"),
        ({"test_fraction": 0.6, "val_fraction": 0.4}, "sum below 1, got 0.6 and 0.4"),
        ({"test_fraction": -0.1}, "got -0.1"),
        ({"seed": -1}, "expected a seed >= 0"),
        ({"sites": 101}, "there are 100"),
    ],
)
def test_wrong_plans_are_refused(pool, tmp_path, change, message):
    with pytest.raises(SettingsError, match=message):
        partition(pool, tmp_path / "D", Plan(**{"scheme": "iid", "sites": 2, **change}), iid)


def test_the_pooled_data_set_is_never_replaced(pool, tmp_path):
    for out in (pool, tmp_path):
        with pytest.raises((SettingsError, DataError)):
            partition(pool, out, Plan("iid", 2), iid, force=True)
    assert (pool / "images.npy").exists()
