"""Data lists and sites: what is read back, and what every kind of damage says."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from medfl.data.datalists import Datalist, make_records, read_datalist, write_datalist
from medfl.data.sites import load_global, load_sites, load_split, site_names
from medfl.errors import DataError
from medfl.objectives import Multiclass


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


def edit(folder: Path, **change) -> None:
    path = folder / "datalist.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))


def test_a_list_reads_back_as_it_was_written(tmp_path):
    splits = {"training": make_records([0, 5], [1, 0], "a"), "validation": [], "test": make_records([7], [2], "b")}
    written = Datalist("toy", "images.npy", 3, {"0": "ä"}, "camera", "CC0 1.0", splits, {"citation": "x"})
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
    ("change", "message"),
    [
        (
            {"training": [{"image": 0, "label": 3}, {"image": 1, "label": 7}, {"image": 2, "label": 0}]},
            r"expected labels in 0\.\.2 at site 'site-01', split 'training', got 3 \(2 of 3 labels",
        ),
        ({"test": [{"image": 0, "label": -1}]}, r"site 'site-01', split 'test', got -1"),
        (
            {"training": [{"image": 20, "label": 0}]},
            r"site 'site-01', split 'training': expected rows in 0\.\.19, got row 20",
        ),
        ({"training": [{"image": 0}]}, "record 0 of site 'site-01', split 'training' has no 'label'"),
        ({"training": [{"label": 0}]}, "record 0 of site 'site-01', split 'training' has no 'image'"),
        ({"training": ["a"]}, "record 0 of site 'site-01', split 'training' has no 'image'"),
        ({"training": [{"image": 1.5, "label": 0}]}, "expected an integer in 'image' of record 0 .* got float"),
        ({"training": [{"image": 1, "label": True}]}, "expected an integer in 'label' of record 0 .* got bool"),
        ({"labels": ["a", "b"]}, r"expected a JSON object in 'labels' of .*, such as .*, got list"),
        ({"training": [{"image": "p/a.png", "label": 0}]}, "got the path of a file.*`medfl prep folder` turns"),
        ({"training": {}}, "expected a list of records in 'training'"),
        ({"image_array": "../gone.npy"}, r"site 'site-01': the image array .*gone\.npy is missing"),
        ({"image_array": None}, "expected 'image_array' of type str"),
        ({"num_classes": "3"}, "expected 'num_classes' of type int .*got str"),
    ],
)
def test_a_wrong_list_says_what_and_where(cohort, change, message):
    edit(cohort / "site-01", **change)
    with pytest.raises(DataError, match=message):
        load_sites(cohort, Multiclass(3))


def test_a_path_to_an_image_is_refused_without_repeating_it(cohort):
    edit(cohort / "site-01", training=[{"image": "Doe_Jane_1970.png", "label": 0}])
    with pytest.raises(DataError) as error:
        load_sites(cohort, Multiclass(3))
    assert "Doe" not in str(error.value), "a file's name may hold a patient's name"


def test_files_that_are_missing_or_no_json_are_named(cohort):
    (cohort / "site-01" / "datalist.json").write_text("{")
    with pytest.raises(DataError, match=r"site-01/datalist\.json is no valid JSON"):
        load_sites(cohort, Multiclass(3))
    (cohort / "site-01" / "datalist.json").unlink()
    with pytest.raises(DataError, match=r"expected a data list .*site-01/datalist\.json, there is none"):
        load_sites(cohort, Multiclass(3))


def test_names_and_folders_that_do_not_exist(cohort, tmp_path):
    with pytest.raises(DataError, match=r"no site 'site-1' .* Did you mean 'site-01'\?"):
        load_sites(cohort, Multiclass(3), names=["site-1"])
    with pytest.raises(DataError, match="unknown split 'tset'. Did you mean 'test'"):
        load_split(cohort, "site-01", "tset", Multiclass(3))
    with pytest.raises(DataError, match="there is none at"):
        load_sites(tmp_path / "nowhere", Multiclass(3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="expected a folder with folders of sites"):
        load_sites(tmp_path / "empty", Multiclass(3))
    make_site(tmp_path / "pool", [], [])
    with pytest.raises(DataError, match="pooled data set: run `medfl partition"):
        load_sites(tmp_path / "pool", Multiclass(3))
    make_site(cohort / "server", [], [])
    with pytest.raises(DataError, match="A site can't be called 'server'"):
        load_sites(cohort, Multiclass(3))


def test_the_array_of_many_sites_is_opened_and_hashed_once(tmp_path, monkeypatch):
    np.save(tmp_path / "images.npy", np.zeros((200, 8, 8, 3), np.uint8))
    for number in range(40):
        make_site(tmp_path / f"site-{number:02d}", range(number * 5, number * 5 + 5), [0, 1, 2, 0, 1])
    opened, hashed = Mock(wraps=np.load), Mock(wraps=hashlib.file_digest)
    monkeypatch.setattr(np, "load", opened)
    monkeypatch.setattr(hashlib, "file_digest", hashed)
    assert len(load_sites(tmp_path, Multiclass(3))) == 40
    assert (opened.call_count, hashed.call_count) == (1, 1)
