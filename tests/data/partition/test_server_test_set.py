"""Test the server's test set, and training images that are in it as well."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from pools import card_of, partition_of, rows_of, write_pool
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.leaks import find_leaks
from medfl.data.partition.class_skew import label_k
from medfl.data.partition.iid import iid
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_global, load_sites, site_names
from medfl.errors import DataError, SettingsError
from medfl.objectives import Multiclass


def test_images_of_each_class_for_the_server(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, server_test="per_class", per_class=6), iid)
    held = read_datalist(tmp_path / "D" / "global").splits["test"]
    assert np.bincount([record["label"] for record in held]).tolist() == [6, 6, 6]
    rows = {record["image"] for record in held}
    assert rows < set(range(100)), "they come from the training split"
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == sorted(set(range(100)) - rows)
    assert partition_of(tmp_path / "D").not_distributed == {"validation": 10, "test": 20}


def test_the_servers_images_do_not_depend_on_the_scheme(pool, tmp_path):
    plan = {"server_test": "per_class", "per_class": 4}
    for name, scheme in (("iid", iid), ("label_k", label_k)):
        partition(pool, tmp_path / name, PartitionPlan(name, 3, **plan), scheme)
    first, other = ((tmp_path / name / "global" / "datalist.json").read_bytes() for name in ("iid", "label_k"))
    assert first == other


def test_the_seed_decides_which_images_are_the_servers(pool, tmp_path):
    held = []
    for name, seed in (("first", 0), ("again", 0), ("other", 1)):
        plan = PartitionPlan("iid", 3, seed=seed, server_test="per_class", per_class=4)
        partition(pool, tmp_path / name, plan, iid)
        held.append({record["image"] for record in read_datalist(tmp_path / name / "global").splits["test"]})
    assert held[0] == held[1] != held[2]


def test_groups_may_keep_the_servers_test_set_small(tmp_path):
    def change(splits):
        for number, record in enumerate(splits["training"]):
            record["subject_id"] = f"p{number % 3}-{number // 12}"  # 4 images of each patient

    pool = write_pool(tmp_path / "P", change)
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, server_test="per_class", per_class=6), iid)
    held = read_datalist(tmp_path / "D" / "global").splits["test"]
    counts = np.bincount([record["label"] for record in held], minlength=3)
    assert (counts < 6).any()
    label = int(counts.argmin())
    expected = f"the server's test set has {counts[label]} of 6 images of class {label}, because"
    assert any(line.startswith(expected) for line in partition_of(tmp_path / "D").warnings)


def test_the_remainder_becomes_the_servers(pool, tmp_path):
    plan = PartitionPlan("label_k", 2, options={"k": 1}, server_test="remainder")
    partition(pool, tmp_path / "D", plan, label_k)
    held = read_datalist(tmp_path / "D" / "global").splits["test"]
    assert [record["image"] for record in held] == [row for row in range(100) if row % 3 == 2]
    assert partition_of(tmp_path / "D").unassigned == {}
    with refused(SettingsError, "no_images", scheme="iid", setting="server_test"):
        partition(pool, tmp_path / "E", PartitionPlan("iid", 2, server_test="remainder"), iid)


def test_a_server_without_test_set(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("iid", 2, test="none", server_test="none"), iid)
    assert load_global(tmp_path / "D", Multiclass(3)) is None
    assert all(not len(site.test) for site in load_sites(tmp_path / "D", Multiclass(3)).values())
    assert partition_of(tmp_path / "D").not_distributed == {"validation": 10, "test": 20}


def test_a_pool_without_test_split_is_noted(tmp_path):
    pool = write_pool(tmp_path / "P", lambda splits: splits.pop("test"))
    partition(pool, tmp_path / "D", PartitionPlan("iid", 2), iid)
    assert (
        "the pooled data set has no test images, so the server has no test set" in partition_of(tmp_path / "D").warnings
    )


# ---- training images in the server's test set


def test_training_images_in_the_test_split_are_refused_with_both_remedies(leaky, tmp_path):
    counts = {"subjects": 2, "pixels": 2}
    with refused(DataError, "data_leak", what="training", held="the server's test set", counts=counts) as error:
        partition(leaky, tmp_path / "D", PartitionPlan("iid", 4), iid)
    text = str(error.value)
    assert "--duplicates drop" in text
    assert "--allow-leak subjects --allow-leak pixels" in text
    assert "test-0" not in text, "no subject is named"


def test_they_are_dropped_on_request_and_counted(leaky, tmp_path):
    partition(leaky, tmp_path / "D", PartitionPlan("iid", 4, duplicates="drop"), iid)
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == sorted(set(range(100)) - {5, 6, 7, 8})
    exclusions = partition_of(tmp_path / "D").exclusions
    assert sum(entry.count for entry in exclusions) == 4
    for entry in exclusions:
        assert card_of(tmp_path / "D", entry.where).exclusions == (entry,)
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D")) == []


def test_a_dropped_image_takes_its_patient_along(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[115] = images[20]

    def change(splits):
        splits["training"][21]["subject_id"] = splits["training"][20]["subject_id"]

    partition(
        write_pool(tmp_path / "P", change, images), tmp_path / "D", PartitionPlan("iid", 4, duplicates="drop"), iid
    )
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == sorted(set(range(100)) - {20, 21})


def test_they_are_kept_if_allowed_by_name_and_recorded(leaky, tmp_path):
    plan = PartitionPlan("iid", 4, allow_leaks=("pixels", "subjects"))
    partition(leaky, tmp_path / "D", plan, iid)
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == list(range(100))
    made = partition_of(tmp_path / "D")
    assert [line.split(":")[0] for line in made.allowed_leaks] == ["subjects", "pixels"]
    assert made.settings.allow_leaks == ("pixels", "subjects")
    with refused(DataError, "data_leak", what="training", counts={"subjects": 2}):
        partition(leaky, tmp_path / "E", PartitionPlan("iid", 4, allow_leaks=("pixels",)), iid)


def test_what_is_allowed_is_counted_after_the_rest_is_dropped(tmp_path):
    """Image 5 is a copy, and its patient is in the test split; image 6 is only a copy."""
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[110], images[111] = images[5], images[6]

    def change(splits):
        splits["training"][5]["subject_id"] = splits["test"][0]["subject_id"]

    pool = write_pool(tmp_path / "P", change, images)
    partition(pool, tmp_path / "D", PartitionPlan("iid", 2, duplicates="drop", allow_leaks=("pixels",)), iid)
    made = partition_of(tmp_path / "D")
    assert made.allowed_leaks == ("pixels: 1 training image identical to images of the server's test set",)
    assert sum(entry.count for entry in made.exclusions) == 1


@pytest.mark.parametrize("policy", ["none", "per_class"])
def test_the_pooled_test_split_does_not_matter_if_the_server_does_not_hold_it(leaky, tmp_path, policy):
    partition(leaky, tmp_path / "D", PartitionPlan("iid", 4, server_test=policy, per_class=5), iid)
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D")) == []


@pytest.mark.skipif("MEDFL_DATA" not in os.environ, reason="MEDFL_DATA does not name a folder of real data")
@pytest.mark.parametrize(("flag", "copies"), [("bloodmnist", 6), ("breastmnist", 1)])
def test_real_data_have_copies(tmp_path, flag, copies):
    from medfl_datasets.medmnist.spec import prepare

    prepare(Path(os.environ["MEDFL_DATA"]) / "medmnist", flag, tmp_path / "P")
    with refused(DataError, "data_leak", what="training", counts={"pixels": copies}):
        partition(tmp_path / "P", tmp_path / "D", PartitionPlan("iid", 5), iid)
    partition(tmp_path / "P", tmp_path / "D", PartitionPlan("iid", 5, duplicates="drop", val_fraction=0.1), iid)
    assert sum(entry.count for entry in partition_of(tmp_path / "D").exclusions) == copies
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D")) == []
