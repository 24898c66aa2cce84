"""Test public data: the pooled validation split, or another data set, in a separate folder for the server only."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from pools import partition_of, rows_of, write_pool
from refusals import refused

from medfl.cli.main import main
from medfl.data.datalists import DATALIST_FILE, read_datalist
from medfl.data.leaks import find_leaks
from medfl.data.partition.iid import iid
from medfl.data.partition.overlap import find_overlap
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import site_names
from medfl.errors import DataError, SettingsError
from medfl.records.partition import LocatedExclusion
from medfl.types import PUBLIC

BUNDLE = Path(__file__).parents[3] / "bundles" / "mammography_classification"


def test_the_validation_split_becomes_public_and_nobodys(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation"), iid)
    public = read_datalist(tmp_path / "D" / PUBLIC)
    assert [len(public.splits[name]) for name in ("training", "validation", "test")] == [10, 0, 0]
    assert {record["image"] for record in public.splits["training"]} == set(range(100, 110))
    assert PUBLIC not in site_names(tmp_path / "D")
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == list(range(100))
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D"), PUBLIC) == []
    made = partition_of(tmp_path / "D")
    assert (made.settings.public, made.settings.sites, made.not_distributed) == ("validation", 3, {})


def test_a_share_of_it_becomes_public_test_images(pool, tmp_path):
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation", public_test_fraction=0.3), iid)
    splits = {
        name: {record["image"] for record in records}
        for name, records in read_datalist(tmp_path / "D" / PUBLIC).splits.items()
    }
    assert {name: len(rows) for name, rows in splits.items()} == {"training": 7, "validation": 0, "test": 3}
    assert splits["training"] | splits["test"] == set(range(100, 110))
    assert partition_of(tmp_path / "D").settings.public_test_fraction == 0.3
    with refused(SettingsError, "setting_out_of_range", setting="public_test_fraction", found=1.0):
        PartitionPlan("iid", 3, public="validation", public_test_fraction=1.0)


def test_without_it_the_sites_are_the_same(pool, tmp_path):
    for name, public in (("with", "validation"), ("without", "none")):
        partition(pool, tmp_path / name, PartitionPlan("iid", 3, public=public), iid)
    assert not (tmp_path / "without" / PUBLIC).exists()
    assert rows_of(tmp_path / "with") == rows_of(tmp_path / "without")


def test_there_must_be_a_validation_split(tmp_path):
    pool = write_pool(tmp_path / "P", lambda splits: splits.update(validation=[]))
    with refused(DataError, "no_images", dataset="toy", split="validation"):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation"), iid)
    assert not (tmp_path / "D").exists()


def test_what_is_neither_a_word_nor_a_folder_is_refused(pool, tmp_path):
    with refused(SettingsError, "unknown_choice", what="public", choice="test"):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="test"), iid)


def copies(folder: Path, rows: dict[int, int]) -> Path:
    """Write the pool with some images replaced by copies of others; `rows` maps each replaced row to its original."""
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    for row, of in rows.items():
        images[row] = images[of]
    return write_pool(folder, images=images)


def same_subject(splits: dict) -> None:
    splits["validation"][0]["subject_id"] = splits["training"][7]["subject_id"]


def test_public_images_that_are_private_too_are_refused_dropped_or_allowed(tmp_path):
    """Two of ten public images are also at a site and one is in the server's test set.

    Copies among the public images are allowed.
    """
    pool = copies(tmp_path / "P", {100: 3, 101: 4, 102: 115, 104: 103})
    with refused(DataError, "data_leak", what="public", held="the private sets", counts={"pixels": 3}) as caught:
        partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation"), iid)
    assert "(--duplicates drop), or keep them and record the leak (--allow-leak pixels)" in str(caught.value)
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation", duplicates="drop"), iid)
    kept = read_datalist(tmp_path / "D" / PUBLIC).splits["training"]
    assert {record["image"] for record in kept} == {*range(103, 110)}
    assert sorted(sum(rows_of(tmp_path / "D").values(), [])) == list(range(100)), "no site loses an image"
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D"), PUBLIC) == []
    reason = "the same image or patient is in the private sets"
    assert partition_of(tmp_path / "D").exclusions == (LocatedExclusion(reason=reason, count=3, where=PUBLIC),)
    partition(pool, tmp_path / "E", PartitionPlan("iid", 3, public="validation", allow_leaks=("pixels",)), iid)
    assert len(read_datalist(tmp_path / "E" / PUBLIC).splits["training"]) == 10
    sentences = ("pixels: 3 public images identical to images of the private sets",)
    assert partition_of(tmp_path / "E").allowed_leaks == sentences


def test_a_public_image_of_a_private_subject_is_one_too(tmp_path):
    pool = write_pool(tmp_path / "P", same_subject)
    with refused(DataError, "data_leak", what="public", held="the private sets", counts={"subjects": 1}):
        partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation"), iid)
    partition(pool, tmp_path / "D", PartitionPlan("iid", 3, public="validation", duplicates="drop"), iid)
    assert len(read_datalist(tmp_path / "D" / PUBLIC).splits["training"]) == 9


def test_public_data_of_another_data_set(pool, tmp_path):
    """Its images are compared; its subjects are not, although their identifiers are spelled alike."""
    other = write_pool(tmp_path / "Q", images=np.random.default_rng(1).integers(0, 256, (130, 4, 4), dtype=np.uint8))
    images, mine = np.load(other / "images.npy"), np.load(pool / "images.npy")
    images[[0, 105, 129]] = mine[[50, 60, 129]]
    np.save(other / "images.npy", images)
    plan = PartitionPlan("iid", 3, public=str(other))
    with refused(DataError, "data_leak", what="public", counts={"pixels": 3}):
        partition(pool, tmp_path / "D", plan, iid)
    partition(pool, tmp_path / "D", replace(plan, duplicates="drop"), iid)
    public = read_datalist(tmp_path / "D" / PUBLIC)
    assert [len(public.splits[name]) for name in ("training", "validation", "test")] == [99, 9, 19]
    made = partition_of(tmp_path / "D")
    assert (made.public_dataset, made.exclusions[0].count) == ("toy", 3)
    assert made.sha256_by_file.keys() >= {"../P/images.npy", "../Q/images.npy", "public/datalist.json"}
    assert find_leaks(tmp_path / "D", site_names(tmp_path / "D"), PUBLIC) == []


def test_nothing_public_is_left(tmp_path):
    pools = [write_pool(tmp_path / name, lambda splits: splits.update(validation=[])) for name in "PQ"]
    with refused(DataError, "no_images", split="public"):
        partition(pools[0], tmp_path / "D", PartitionPlan("iid", 3, public=str(pools[1]), duplicates="drop"), iid)
    assert not (tmp_path / "D").exists()


def test_public_data_with_other_classes_are_refused_before_a_run(tmp_path, capsys):
    """Labels with another meaning would train the server's classifier wrongly."""
    images = np.random.default_rng(0).integers(0, 256, (130, 10, 10), dtype=np.uint8)
    partition(write_pool(tmp_path / "P", images=images), tmp_path / "D", PartitionPlan("iid", 3), iid)
    partition(
        write_pool(tmp_path / "Q", images=images), tmp_path / "E", PartitionPlan("iid", 3, public="validation"), iid
    )
    path = tmp_path / "E" / PUBLIC / DATALIST_FILE
    lists = json.loads(path.read_text())
    path.write_text(json.dumps(lists | {"labels": {"0": "normal", "1": "benign", "2": "malignant"}}))
    words = ["run", BUNDLE, "--dataset-dir", tmp_path / "D", "--output-dir", tmp_path / "run", "--rounds", "1"]
    words += ["--method", "pfedcdp", "--public", path.parent]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 2
    error = capsys.readouterr().err
    assert "have the classes ['normal', 'benign', 'malignant'], the sites ['0', '1', '2']. Map each class" in error
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_network_that_can_not_be_made_is_reported_in_its_own_words(tmp_path, capsys):
    """MONAI wraps the error of a configuration entry in an error of another type."""
    partition(write_pool(tmp_path / "P"), tmp_path / "D", PartitionPlan("iid", 3), iid)
    words = ["run", BUNDLE, "--dataset-dir", tmp_path / "D", "--output-dir", tmp_path / "run", "--rounds", "1"]
    with pytest.raises(SystemExit) as ended:
        main([str(word) for word in words])
    assert ended.value.code == 2
    assert capsys.readouterr().err.startswith("error: ConvNet expected size >= 10, got 4")


def test_images_without_a_patient_share_no_patient():
    records = [{"image": row, "label": 0} for row in range(3)]
    others = [{"image": 3, "label": 0}, {"image": 4, "label": 0, "subject_id": "anna"}]
    known = [*records, {"image": 5, "label": 0, "subject_id": "anna"}]
    overlap = find_overlap(known, others, [b"%d" % row for row in range(6)])
    assert overlap["subjects"].tolist() == [False, False, False, True]
    assert not overlap["pixels"].any()
