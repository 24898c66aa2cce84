"""Test data lists and sites: loaded values, and the message for each kind of damage."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from refusals import refused

from medfl.data.datalists import Datalist, make_records, read_datalist, write_datalist
from medfl.data.readers.image_reading import make_image_reading
from medfl.data.sites import load_global, load_sites, load_split, site_names
from medfl.errors import DataError
from medfl.objectives import Multiclass
from medfl.records.datalist import Exclusion


def make_site(folder: Path, rows, labels, split: str = "training", **change) -> Path:
    folder.mkdir(parents=True)
    records = make_records(rows, labels, folder.name)
    values = {"name": "toy", "image_array": "../images.npy", "num_classes": 3, "splits": {split: records}}
    write_datalist(folder, Datalist(**{**values, **change}))
    return folder


@pytest.fixture
def cohort(tmp_path) -> Path:
    np.save(tmp_path / "images.npy", np.arange(20 * 4 * 4, dtype=np.uint8).reshape(20, 4, 4))
    make_site(tmp_path / "site-02", [3, 4], [0, 2])
    make_site(tmp_path / "site-01", [0, 1, 2], [0, 1, 2])
    return tmp_path


TRAINING = "site 'site-01', split 'training'"


def edit(folder: Path, **change) -> None:
    path = folder / "datalist.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_list_reads_back_as_it_was_written(tmp_path):
    splits = {"training": make_records([0, 5], [1, 0], "a"), "validation": [], "test": make_records([7], [2], "b")}
    written = Datalist("toy", "images.npy", 3, {"0": "ä"}, "camera", "CC0 1.0", splits, {"citation": "x"})
    written.exclusions, written.warnings = (Exclusion(reason="unreadable", count=4),), ("a note",)
    write_datalist(tmp_path, written)
    assert read_datalist(tmp_path) == written


def test_sites_come_sorted_and_missing_splits_are_empty(cohort):
    sites = load_sites(cohort, Multiclass(3))
    assert list(sites) == ["site-01", "site-02"]
    assert [len(part) for part in (sites["site-02"].train, sites["site-02"].val, sites["site-02"].test)] == [2, 0, 0]
    assert sites["site-02"].train.class_labels.tolist() == [0, 2]
    assert list(load_sites(cohort, Multiclass(3), names=["site-02"])) == ["site-02"]
    assert load_global(cohort, Multiclass(3)) is None
    make_site(cohort / "global", [9], [1], split="test")
    global_data = load_global(cohort, Multiclass(3))
    assert global_data is not None
    assert len(global_data.test) == 1
    assert site_names(cohort) == ["site-01", "site-02"], "the server's test set is no site"
    assert len(load_split(cohort, "site-01", "training", Multiclass(3))) == 3


def test_a_site_without_training_images_is_legal(cohort):
    make_site(cohort / "site-03", [], [])
    assert len(load_sites(cohort, Multiclass(3))["site-03"].train) == 0


def test_the_digest_follows_list_and_array_but_not_the_place(cohort, tmp_path_factory):
    before = {name: site.digest for name, site in load_sites(cohort, Multiclass(3)).items()}
    assert before["site-01"] != before["site-02"]
    moved = cohort.rename(tmp_path_factory.mktemp("moved") / "cohort")
    assert {name: site.digest for name, site in load_sites(moved, Multiclass(3)).items()} == before
    np.save(moved / "images.npy", np.zeros((20, 4, 4), np.uint8))
    after = {name: site.digest for name, site in load_sites(moved, Multiclass(3)).items()}
    assert after["site-01"] != before["site-01"], "another array is other data"


@pytest.mark.parametrize(
    ("change", "code", "fields"),
    [
        (
            {"training": [{"image": 0, "label": 3}, {"image": 1, "label": 7}, {"image": 2, "label": 0}]},
            "wrong_label",
            {"where": TRAINING, "found": 3, "maximum": 2, "count": 2},
        ),
        ({"test": [{"image": 0, "label": -1}]}, "wrong_label", {"where": "site 'site-01', split 'test'", "found": -1}),
        (
            {"training": [{"image": 20, "label": 0}]},
            "row_outside_array",
            {"where": TRAINING, "maximum": 19, "row": 20},
        ),
        ({"training": [{"image": 0}]}, "missing_value", {"where": TRAINING, "record": 0, "key": "label"}),
        ({"training": [{"label": 0}]}, "missing_value", {"where": TRAINING, "record": 0, "key": "image"}),
        ({"training": ["a"]}, "missing_value", {"where": TRAINING, "record": 0, "key": "image"}),
        ({"training": [{"image": 1.5, "label": 0}]}, "wrong_type", {"record": 0, "key": "image", "found": "float"}),
        ({"training": [{"image": 1, "label": True}]}, "wrong_type", {"record": 0, "key": "label", "found": "bool"}),
        ({"labels": ["a", "b"]}, "wrong_type", {"key": "labels", "expected": "dict", "found": "list"}),
        ({"training": [{"image": "p/a.png", "label": 0}]}, "image_file_in_list", {"where": TRAINING, "record": 0}),
        ({"training": {}}, "wrong_type", {"key": "training", "expected": "list", "found": "dict"}),
        ({"image_array": "../gone.npy"}, "missing_file", {"where": "site 'site-01'"}),
        ({"image_array": None}, "wrong_type", {"key": "image_array", "expected": "str", "found": "NoneType"}),
        ({"exclusions": "four"}, "wrong_type", {"key": "exclusions"}),
        ({"exclusions": [{"reason": "unreadable"}]}, "wrong_type", {"key": "exclusions"}),
        ({"exclusions": [{"reason": "unreadable", "count": "4"}]}, "wrong_type", {"key": "exclusions"}),
        ({"warnings": "a note"}, "wrong_type", {"key": "warnings"}),
        ({"warnings": [4]}, "wrong_type", {"key": "warnings"}),
        ({"num_classes": "3"}, "wrong_type", {"key": "num_classes", "expected": "int", "found": "str"}),
    ],
)
def test_a_wrong_list_says_what_and_where(cohort, change, code, fields):
    edit(cohort / "site-01", **change)
    with refused(DataError, code, **fields) as error:
        load_sites(cohort, Multiclass(3))
    if code == "missing_file":
        assert error.value.fields["path"].endswith("gone.npy")


def test_a_path_to_an_image_is_refused_without_repeating_it(cohort):
    edit(cohort / "site-01", training=[{"image": "Doe_Jane_1970.png", "label": 0}])
    with refused(DataError, "image_file_in_list") as error:
        load_sites(cohort, Multiclass(3))
    assert "`medfl prep folder` turns" in str(error.value)
    assert "Doe" not in f"{error.value}{error.value.fields}", "a file's name may hold a patient's name"


def test_files_that_are_missing_or_no_json_are_named(cohort):
    (cohort / "site-01" / "datalist.json").write_text("{")
    with refused(DataError, "invalid_json", path=str(cohort / "site-01" / "datalist.json")):
        load_sites(cohort, Multiclass(3))
    (cohort / "site-01" / "datalist.json").unlink()
    with refused(DataError, "missing_file", path=str(cohort / "site-01" / "datalist.json")):
        load_sites(cohort, Multiclass(3))


def test_names_and_folders_that_do_not_exist(cohort, tmp_path):
    with refused(DataError, "unknown_site", path=str(cohort), site="site-1") as error:
        load_sites(cohort, Multiclass(3), names=["site-1"])
    assert "Did you mean 'site-01'?" in str(error.value)
    with refused(DataError, "unknown_choice", what="split", choice="tset"):
        load_split(cohort, "site-01", "tset", Multiclass(3))
    with refused(DataError, "missing_folder", path=str(tmp_path / "nowhere")):
        load_sites(tmp_path / "nowhere", Multiclass(3))
    (tmp_path / "empty").mkdir()
    with refused(DataError, "missing_site", path=str(tmp_path / "empty")):
        load_sites(tmp_path / "empty", Multiclass(3))
    make_site(tmp_path / "pool", [], [])
    with refused(DataError, "missing_site", path=str(tmp_path / "pool")) as error:
        load_sites(tmp_path / "pool", Multiclass(3))
    assert "pooled data set: run `medfl partition" in str(error.value)
    make_site(cohort / "server", [], [])
    with refused(DataError, "invalid_site_name", path=str(cohort)) as error:
        load_sites(cohort, Multiclass(3))
    assert "A site can't be called 'server'" in str(error.value)


def test_the_array_of_many_sites_is_opened_and_hashed_once(tmp_path, monkeypatch):
    np.save(tmp_path / "images.npy", np.zeros((200, 8, 8, 3), np.uint8))
    for number in range(40):
        make_site(tmp_path / f"site-{number:02d}", range(number * 5, number * 5 + 5), [0, 1, 2, 0, 1])
    opened, hashed = Mock(wraps=np.load), Mock(wraps=hashlib.file_digest)
    monkeypatch.setattr(np, "load", opened)
    monkeypatch.setattr(hashlib, "file_digest", hashed)
    assert len(load_sites(tmp_path, Multiclass(3))) == 40
    assert (opened.call_count, hashed.call_count) == (1, 1)


def test_sites_whose_images_were_read_by_different_rules_do_not_train_together(cohort):
    rule = make_image_reading(window="lung").to_json()
    edit(cohort / "site-01", image_reading=rule)
    with refused(DataError, "different_image_readings", sites=["site-01", "site-02"]):
        load_sites(cohort, Multiclass(3))
    edit(cohort / "site-02", image_reading=rule)
    assert load_sites(cohort, Multiclass(3))["site-02"].image_reading == rule
