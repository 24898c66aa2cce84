"""MedMNIST files: supported layouts, and errors of others."""

from __future__ import annotations

import hashlib
import os
import re
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from npz_makers import write_npz
from refusals import refused

from medfl.data.datalists import read_datalist
from medfl.data.ingest import array_file as new_array
from medfl.errors import DataError, SettingsError
from medfl_datasets.medmnist import files as npz
from medfl_datasets.medmnist.files import NPZ_SPLITS, read_npz
from medfl_datasets.medmnist.releases import RELEASES, find_release, split_flag
from medfl_datasets.medmnist.spec import deviations, prepare

POSITIVES = {
    "breastmnist": [(147, 399), (21, 57), (42, 114)],
    "pneumoniamnist": [(1214, 3494), (135, 389), (234, 390)],
    "adrenalmnist3d": [(929, 259), (76, 22), (229, 69)],
}
"""Number of images of each class in training, validation and test."""


@pytest.mark.parametrize("columns", [True, False], ids=["(N, 1)", "(N,)"])
@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 3), (28, 28, 28), (64, 64, 3)])
def test_every_layout_becomes_one_array_and_a_list_that_fits(tmp_path, monkeypatch, shape, columns):
    monkeypatch.setattr(npz, "BLOCK_BYTES", 3 * int(np.prod(shape)))
    source = np.load(write_npz(tmp_path / "bloodmnist.npz", shape, columns))
    prepare(tmp_path, "bloodmnist", tmp_path / "P")
    images, datalist = np.load(tmp_path / "P" / "images.npy"), read_datalist(tmp_path / "P")
    assert images.shape == (17, *shape)
    for part, split in NPZ_SPLITS:
        rows, labels = datalist.rows_and_labels(split, "P")
        np.testing.assert_array_equal(images[rows], source[f"{part}_images"])
        np.testing.assert_array_equal(labels, source[f"{part}_labels"].reshape(-1))
    assert {split: len(records) for split, records in datalist.splits.items()} == {
        "training": 10,
        "validation": 3,
        "test": 4,
    }
    assert datalist.num_classes == 8
    subjects = [record["subject_id"] for records in datalist.splits.values() for record in records]
    assert len(set(subjects)) == 17


def test_the_images_are_never_in_memory_as_a_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(npz, "BLOCK_BYTES", 1 << 16)
    images = np.zeros((400, 128, 128), np.uint8)
    write_npz(tmp_path / "octmnist_128.npz", (128, 128), False, train_images=images, train_labels=np.zeros(400, int))
    prepare(tmp_path, "octmnist_128", tmp_path / "warm")
    tracemalloc.start()
    try:
        prepare(tmp_path, "octmnist_128", tmp_path / "P")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < images.nbytes / 4


def test_the_table_is_complete():
    volumes = {flag for flag in RELEASES if flag.endswith("3d")}
    assert (len(RELEASES), len(volumes)) == (18, 6)
    for flag, release in RELEASES.items():
        assert tuple(release.md5) == ((28, 64) if flag in volumes else (28, 64, 128, 224))
        assert all(len(md5) == 32 and set(md5) <= set("0123456789abcdef") for md5 in release.md5.values())
    sums = [md5 for release in RELEASES.values() for md5 in release.md5.values()]
    assert len(set(sums)) == len(sums) == 12 * 4 + 6 * 2
    kept = [sum(RELEASES[flag].counts) for flag in RELEASES if flag not in volumes and not flag.startswith("organ")]
    assert sum(kept) == 708_069 - 107_731, "the paper's 2-D images, less those of organs, which were recounted since"
    assert (split_flag("organmnist3d_64"), split_flag("organmnist3d")) == (("organmnist3d", 64), ("organmnist3d", 28))
    assert find_release("pathmnist_224") is RELEASES["pathmnist"]


def test_licence_and_citation_come_first_and_deviations_are_warned_of(tmp_path):
    write_npz(tmp_path / "dermamnist.npz")
    lines: list[str] = []
    datalist = prepare(tmp_path, "dermamnist", tmp_path / "P", say=lines.append)
    assert lines[0] == "dermamnist: licence CC BY-NC 4.0"
    assert lines[1].startswith("Please cite: Yang")
    assert any("10/3/4 images" in line and "7007/1003/2005" in line for line in lines), lines
    assert any("MD5" in line for line in lines), lines
    assert datalist.extra["deviations"], "the list remembers how the file differs"


def test_the_checksum_and_the_side_of_larger_images_are_compared(tmp_path):
    path = write_npz(tmp_path / "breastmnist_64.npz", (28, 28), test_labels=np.zeros(4, int)[:, None])
    sentences = deviations("breastmnist_64", read_npz(path))
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    assert sentences[1:] == [
        "labels up to 7, the official release has 2 classes from 0",
        "images of 28 pixels a side, the name states 64",
        f"MD5 {md5}, the official file has 742edef2a1fd1524b2efff4bd7ba9364: a re-save or another version",
    ]
    assert deviations("breastmnist_96", read_npz(path))[-1] == (
        "no official checksum is known for images of 96 pixels a side"
    )
    assert "no official sizes are known for 'mymnist'" in deviations("mymnist", read_npz(path))[0]


def test_labels_that_the_release_does_not_have_are_warned_of_and_a_single_class_is_refused(tmp_path):
    path = write_npz(tmp_path / "bloodmnist.npz", test_labels=np.array([[0], [1], [9], [2]]))
    assert "labels up to 9, the official release has 8 classes from 0" in deviations("bloodmnist", read_npz(path))
    assert prepare(tmp_path, "bloodmnist", tmp_path / "P").num_classes == 10
    none = {f"{part}_labels": np.zeros(size, int) for part, size in (("train", 10), ("val", 3), ("test", 4))}
    write_npz(tmp_path / "mine.npz", **none)
    with refused(DataError, "too_few_classes", path=str(tmp_path / "mine.npz"), minimum=2, found=1):
        prepare(tmp_path, "mine", tmp_path / "Q")


@pytest.fixture
def chest(tmp_path):
    labels = {
        f"{part}_labels": np.zeros((size, 14), np.uint8) for part, size in (("train", 10), ("val", 3), ("test", 4))
    }
    labels["train_labels"][[2, 5], 6] = 1
    labels["train_labels"][:, 0] = 1
    return write_npz(tmp_path / "chestmnist.npz", (28, 28), **labels)


def test_one_finding_of_chestmnist_becomes_two_classes(tmp_path, chest):
    datalist = prepare(tmp_path, "chestmnist", tmp_path / "P", finding="pneumonia")
    _, labels = datalist.rows_and_labels("training", "P")
    assert np.flatnonzero(labels).tolist() == [2, 5]
    assert datalist.labels == {"0": "pneumonia absent", "1": "pneumonia present"}
    assert (datalist.num_classes, datalist.name) == (2, "chestmnist-pneumonia")


def test_several_labels_without_a_choice(tmp_path, chest):
    with refused(SettingsError, "missing_setting", setting="finding", dataset="chestmnist") as error:
        prepare(tmp_path, "chestmnist", tmp_path / "P")
    assert re.search(r"Known: atelectasis, cardiomegaly, .*, hernia", str(error.value))
    with refused(SettingsError, "unknown_choice", what="finding", choice="pneumnia"):
        prepare(tmp_path, "chestmnist", tmp_path / "P", finding="pneumnia")
    write_npz(tmp_path / "bloodmnist.npz")
    with refused(SettingsError, "unsupported_setting", setting="finding", dataset="bloodmnist"):
        prepare(tmp_path, "bloodmnist", tmp_path / "P", finding="pneumonia")
    write_npz(tmp_path / "chestmnist.npz", (28, 28))
    with refused(DataError, "wrong_label_count", path=str(chest), expected="several", found=[10]):
        prepare(tmp_path, "chestmnist", tmp_path / "P", finding="pneumonia")
    assert not (tmp_path / "P").exists()


@pytest.mark.parametrize(
    ("change", "code", "array", "fields"),
    [
        ({"val_images": None}, "missing_array", "", {"arrays": ["val_images"]}),
        (
            {"train_labels": np.zeros((10, 14), np.uint8)},
            "wrong_shape",
            "val_labels",
            {"type": "uint8", "found": [3, 1], "expected": [3, 14]},
        ),
        (
            {f"{part}_labels": np.zeros((n, 14), np.uint8) for part, n in (("train", 10), ("val", 3), ("test", 4))},
            "wrong_label_count",
            "",
            {"expected": "one", "found": [10, 14]},
        ),
        (
            {"train_labels": np.zeros((9, 1), np.uint8)},
            "wrong_shape",
            "train_labels",
            {"found": [9, 1], "expected": [10, 1]},
        ),
        ({"train_labels": np.full((10, 1), -1)}, "wrong_label", "train_labels", {"minimum": 0, "found": -1}),
        ({"test_labels": np.zeros((4, 1), np.float32)}, "wrong_shape", "test_labels", {"type": "float32"}),
        (
            {"test_images": np.zeros((4, 32, 32, 3), np.uint8)},
            "wrong_shape",
            "test_images",
            {"found": [4, 32, 32, 3], "expected": [28, 28, 3]},
        ),
        ({"train_images": np.zeros((10, 28, 28, 3), np.float32)}, "wrong_shape", "train_images", {"type": "float32"}),
        ({"train_images": np.array([{}] * 10, dtype=object)}, "wrong_shape", "train_images", {"type": "object"}),
        ({"train_labels": np.array([{}] * 10, dtype=object)}, "unreadable_file", "", {}),
        ({"train_images": np.zeros((3, 28, 28, 10), np.uint8).T}, "wrong_memory_order", "train_images", {}),
        (
            {
                f"{part}_{kind}": np.zeros((0, 28, 28)[: 3 if kind == "images" else 1], np.uint8)
                for part in ("train", "val", "test")
                for kind in ("images", "labels")
            },
            "no_images",
            "",
            {},
        ),
    ],
)
def test_a_wrong_file_is_refused_and_nothing_is_written(tmp_path, change, code, array, fields):
    path = str(write_npz(tmp_path / "bloodmnist.npz", **change))
    where = {"where": f"{array} of {path}"} if array else {"path": path}
    with refused(DataError, code, **where, **fields):
        prepare(tmp_path, "bloodmnist", tmp_path / "P")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bloodmnist.npz"]


def test_cut_and_missing_files(tmp_path):
    with refused(DataError, "missing_file", path=str(tmp_path / "bloodmist.npz")) as error:
        prepare(tmp_path, "bloodmist", tmp_path / "P")
    assert "Did you mean 'bloodmnist'?" in str(error.value)
    path = write_npz(tmp_path / "bloodmnist.npz")
    path.write_bytes(path.read_bytes()[:-200])
    with refused(DataError, "unreadable_file", path=str(path)):
        prepare(tmp_path, "bloodmnist", tmp_path / "P")


def test_damaged_images_are_found_by_the_checksum_of_the_zip_file(tmp_path):
    path = tmp_path / "bloodmnist.npz"
    arrays = dict(np.load(write_npz(path)))
    np.savez(path, **arrays)
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("train_images.npy").header_offset + 5000
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    with refused(DataError, "unreadable_file", path=str(path)) as error:
        prepare(tmp_path, "bloodmnist", tmp_path / "P")
    assert error.value.fields["reason"].startswith("Bad CRC-32")
    assert not (tmp_path / "P").exists()


def test_an_occupied_folder_is_replaced_only_on_request_and_only_if_ours(tmp_path):
    write_npz(tmp_path / "bloodmnist.npz")
    out = tmp_path / "P"
    prepare(tmp_path, "bloodmnist", out)
    with refused(DataError, "folder_not_empty", path=str(out)):
        prepare(tmp_path, "bloodmnist", out)
    prepare(tmp_path, "bloodmnist", out, force=True)
    foreign = tmp_path / "photos"
    foreign.mkdir()
    (foreign / "a.jpg").touch()
    with refused(DataError, "foreign_folder", path=str(foreign)):
        prepare(tmp_path, "bloodmnist", foreign, force=True)
    assert (foreign / "a.jpg").exists()


def test_a_disk_without_room_is_said_before_anything_is_written(tmp_path, monkeypatch):
    write_npz(tmp_path / "bloodmnist.npz")
    monkeypatch.setattr(new_array, "_free_bytes", lambda folder: 17 * 28 * 28 * 3 - 1)
    size = 17 * 28 * 28 * 3
    with refused(DataError, "disk_full", needed=size, free=size - 1):
        prepare(tmp_path, "bloodmnist", tmp_path / "P")
    assert [path.name for path in tmp_path.iterdir()] == ["bloodmnist.npz"]
    monkeypatch.setattr(new_array, "_free_bytes", lambda folder: 17 * 28 * 28 * 3)
    prepare(tmp_path, "bloodmnist", tmp_path / "P")


@pytest.mark.parametrize("flag", ["adrenalmnist3d", "breastmnist", "pneumoniamnist", "bloodmnist"])
def test_the_real_files_have_the_official_sizes(tmp_path, flag):
    folder = os.environ.get("MEDFL_DATA")
    path = Path(folder or ".") / "medmnist" / f"{flag}.npz"
    if not folder or not path.exists():
        pytest.skip(f"needs the real medmnist/{flag}.npz in the folder that MEDFL_DATA names")
    content = read_npz(path)
    assert content.counts == RELEASES[flag].counts
    assert all("MD5" in line for line in deviations(flag, content)), "sizes agree; a re-save may differ in MD5"
    datalist = prepare(path.parent, flag, tmp_path / "P")
    assert sum(map(len, datalist.splits.values())) == sum(RELEASES[flag].counts)
    if flag in POSITIVES:
        counts = [tuple(split.values()) for split in datalist.counts().values()]
        assert counts == POSITIVES[flag]
    with np.load(path) as archive:
        np.testing.assert_array_equal(
            np.load(tmp_path / "P" / "images.npy"),
            np.concatenate([archive[f"{part}_images"] for part, _ in NPZ_SPLITS]),
        )
