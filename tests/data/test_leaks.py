"""Test leaks: the same patient or image in two places that must not share any (oracle O-G7)."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from refusals import refused

from medfl.data import leaks
from medfl.data.datalists import Datalist, make_records, write_datalist
from medfl.data.leaks import Leak, check_leaks, find_leaks, row_digests
from medfl.errors import DataError, SettingsError

PLACES = (
    "site-01/training",
    "site-01/validation",
    "site-01/test",
    "site-02/training",
    "global/test",
    "public/training",
)
NAMES = ["site-01", "site-02"]


@pytest.fixture
def images(tmp_path) -> np.ndarray:
    """Sixty distinct images; rows 10 i to 10 i + 9 belong to place i."""
    array = np.random.default_rng(0).integers(0, 256, (60, 5, 5), dtype=np.uint8)
    np.save(tmp_path / "images.npy", array)
    return array


@pytest.fixture
def cohort(tmp_path, images) -> Path:
    lists: dict[str, dict] = {}
    for number, place in enumerate(PLACES):
        name, split = place.split("/")
        lists.setdefault(name, {})[split] = make_records(range(10 * number, 10 * number + 10), [0] * 10, place)
    for name, splits in lists.items():
        (tmp_path / name).mkdir()
        write_datalist(tmp_path / name, Datalist("toy", "../images.npy", 2, splits=splits))
    return tmp_path


def edit(folder: Path, split: str, number: int, **entries) -> None:
    """Change entries of a record; None removes an entry."""
    path = folder / "datalist.json"
    content = json.loads(path.read_text())
    record = content[split][number]
    record.update({key: value for key, value in entries.items() if value is not None})
    for key in [key for key, value in entries.items() if value is None]:
        del record[key]
    path.write_text(json.dumps(content))


def subject_of(folder: Path, place: str, number: int) -> str:
    name, split = place.split("/")
    return json.loads((folder / name / "datalist.json").read_text())[split][number]["subject_id"]


def pairs() -> list[tuple[str, str]]:
    return [(first, other) for number, first in enumerate(PLACES) for other in PLACES[number + 1 :]]


def test_clean_data_have_none(cohort):
    assert find_leaks(cohort, NAMES, "public") == []
    assert check_leaks(cohort, NAMES, "public") == []


@pytest.mark.parametrize(("place", "other"), pairs())
def test_a_subject_in_any_two_places_is_found(cohort, place, other):
    name, split = other.split("/")
    edit(cohort / name, split, 3, subject_id=subject_of(cohort, place, 7))
    assert find_leaks(cohort, NAMES, "public") == [Leak("subjects", 1, (place, other))]


@pytest.mark.parametrize(("place", "other"), pairs())
def test_an_identical_image_in_any_two_places_is_found(cohort, images, place, other):
    images[10 * PLACES.index(other) + 3] = images[10 * PLACES.index(place) + 7]
    np.save(cohort / "images.npy", images)
    assert find_leaks(cohort, NAMES, "public") == [Leak("pixels", 1, (place, other))]


def test_all_pairs_of_places_are_counted(cohort, images):
    images[[3, 33, 43]] = images[0]  # two in one place count once
    images[[34, 44]] = images[4]
    np.save(cohort / "images.npy", images)
    assert find_leaks(cohort, NAMES, "public") == [
        Leak("pixels", 2, ("site-01/training", "site-02/training")),
        Leak("pixels", 2, ("site-01/training", "global/test")),
        Leak("pixels", 2, ("site-02/training", "global/test")),
    ]


def test_an_image_that_is_twice_in_one_split_is_no_leak(cohort, images):
    images[4] = images[2]
    np.save(cohort / "images.npy", images)
    edit(cohort / "site-01", "training", 5, subject_id=subject_of(cohort, "site-01/training", 6))
    assert find_leaks(cohort, NAMES, "public") == []


def test_only_sites_that_take_part_count(cohort, images):
    images[33] = images[3]
    np.save(cohort / "images.npy", images)
    assert find_leaks(cohort, ["site-01"]) == []
    assert len(find_leaks(cohort, NAMES)) == 1


def test_sites_that_were_prepared_apart_may_use_the_same_numbers(cohort, images):
    """Equal subject ids mean the same person only in arrays of the same content; pixels are always compared."""
    np.save(cohort / "site-02" / "own.npy", np.concatenate([images, images[:1] ^ 1]))
    path = cohort / "site-02" / "datalist.json"
    path.write_text(path.read_text().replace("../images.npy", "own.npy"))
    edit(cohort / "site-02", "training", 3, subject_id=subject_of(cohort, "site-01/training", 7))
    assert find_leaks(cohort, NAMES) == []
    edit(cohort / "site-02", "training", 4, image=0)
    assert find_leaks(cohort, NAMES) == [Leak("pixels", 1, ("site-01/training", "site-02/training"))]


def hospital(folder: Path, images: np.ndarray, training: int) -> None:
    """Write a site that prepared its own images; the first `training` images are for training."""
    folder.mkdir()
    np.save(folder / "images.npy", images)
    splits = {
        "training": make_records(range(training), [0] * training, "subject"),
        "test": make_records(range(training, len(images)), [0] * (len(images) - training), "other"),
    }
    write_datalist(folder, Datalist("own", "images.npy", 2, splits=splits))


@pytest.mark.parametrize(("row", "split"), [(2, "training"), (8, "test")])
def test_an_image_that_two_hospitals_hold_stops_a_run(tmp_path, images, row, split):
    """Each hospital has its own array, and the second array is floating point."""
    others = images[20:30] / np.float32(255)
    hospital(tmp_path / "north", images[:10], 6)
    hospital(tmp_path / "south", others, 6)
    assert check_leaks(tmp_path, ["north", "south"]) == [], "equal running numbers are no leak"
    others[row] = images[3] / np.float32(255)
    np.save(tmp_path / "south" / "images.npy", others)
    sentence = f"pixels: 1 identical image in both north/training and south/{split}"
    leaks = [["pixels", 1, "north/training", f"south/{split}"]]
    with refused(DataError, "data_leak", kinds=["pixels"], leaks=leaks):
        check_leaks(tmp_path, ["north", "south"])
    assert check_leaks(tmp_path, ["north", "south"], allow=["pixels"]) == [sentence]


@pytest.mark.parametrize("way", ["../site-01/../images.npy", "{folder}/images.npy", "link.npy", "copy.npy"])
def test_another_way_to_the_same_array_is_still_one_pool(cohort, way):
    path = cohort / "site-02" / "datalist.json"
    (cohort / "site-02" / "link.npy").symlink_to(cohort / "images.npy")
    shutil.copy(cohort / "images.npy", cohort / "site-02" / "copy.npy")
    path.write_text(path.read_text().replace("../images.npy", way.format(folder=cohort)))
    edit(cohort / "site-02", "training", 3, subject_id=subject_of(cohort, "site-01/training", 7))
    assert [leak.kind for leak in find_leaks(cohort, NAMES)] == ["subjects"]


def test_records_without_subject_are_compared_by_pixels(cohort, images):
    for number in range(10):
        for split in ("training", "test"):
            edit(cohort / "site-01", split, number, subject_id=None)
    assert find_leaks(cohort, NAMES) == []
    edit(cohort / "site-01", "test", 1, image=0)
    assert find_leaks(cohort, NAMES) == [Leak("pixels", 1, ("site-01/training", "site-01/test"))]


# ---- refusing and allowing


def test_leaks_are_refused_together_without_naming_anybody(cohort):
    secret = subject_of(cohort, "site-01/training", 7)
    edit(cohort / "site-01", "test", 3, subject_id=secret)
    edit(cohort / "global", "test", 0, image=0)
    leaks = [
        ["subjects", 1, "site-01/training", "site-01/test"],
        ["pixels", 1, "site-01/training", "global/test"],
    ]
    with refused(DataError, "data_leak", kinds=["subjects", "pixels"], leaks=leaks) as error:
        check_leaks(cohort, NAMES, "public")
    text = str(error.value)
    assert "subjects: 1 in both site-01/training and site-01/test" in text
    assert "pixels: 1 identical image in both site-01/training and global/test" in text
    assert "allow this by name (a run takes --allow-leaks \"['subjects', 'pixels']\")" in text
    assert secret not in f"{text}{error.value.fields}"


def test_what_is_allowed_by_name_is_said(cohort):
    edit(cohort / "site-01", "test", 3, image=0)
    edit(cohort / "site-01", "test", 4, image=1)
    sentence = "pixels: 2 identical images in both site-01/training and site-01/test"
    assert check_leaks(cohort, NAMES, allow=["pixels"]) == [sentence]
    with refused(DataError, "data_leak", leaks=[["pixels", 2, "site-01/training", "site-01/test"]]):
        check_leaks(cohort, NAMES, allow=["subjects"])
    with refused(SettingsError, "unknown_choice", what="kind of leak", choice="pixel") as error:
        check_leaks(cohort, NAMES, allow=["pixel"])
    assert "Did you mean 'pixels'?" in str(error.value)


def test_a_message_about_many_sites_stays_readable(tmp_path):
    np.save(tmp_path / "images.npy", np.arange(40 * 4, dtype=np.uint8).reshape(40, 2, 2))
    names = [f"site-{number:02d}" for number in range(30)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        records = make_records([*range(number % 10 + 1)], [0] * (number % 10 + 1), name)
        write_datalist(tmp_path / name, Datalist("toy", "../images.npy", 2, splits={"training": records}))
    with refused(DataError, "data_leak") as error:
        check_leaks(tmp_path, names)
    lines = str(error.value).splitlines()
    assert len(lines) == 11
    assert lines[1] == "  pixels: 10 identical images in both site-09/training and site-19/training", "largest first"
    assert lines[-2] == "  pixels: and 427 more pairs of places"


@pytest.mark.parametrize(("name", "what"), [("site-02", "a site"), ("global", "the server's test set")])
def test_public_data_that_are_also_somebodys_are_refused(cohort, name, what):
    with refused(SettingsError, "public_data_conflict", name=name, conflict=what):
        find_leaks(cohort, NAMES, name)


def test_rows_outside_the_array_are_refused(cohort):
    edit(cohort / "site-02", "training", 3, image=60)
    with refused(DataError, "row_outside_array", maximum=59, where="site 'site-02', split 'training'", found=[30, 60]):
        find_leaks(cohort, NAMES)


# ---- hashing


@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_hashes_are_equal_where_pixels_are(tmp_path, dtype, monkeypatch):
    images = np.random.default_rng(0).integers(0, 2, (300, 2, 2, 2)).astype(dtype)
    np.save(tmp_path / "images.npy", images)
    monkeypatch.setattr(leaks, "CHUNK_BYTES", 3 * images[0].nbytes)
    hashes = np.array([digest.hex() for digest in row_digests(tmp_path / "images.npy")])
    flat = images.reshape(300, -1)
    np.testing.assert_array_equal(hashes[:, None] == hashes, (flat[:, None] == flat).all(axis=2))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_hashes_do_not_depend_on_how_the_same_pixels_were_saved(tmp_path, dtype):
    """`medfl prep folder` writes 8-bit images as v / 255 if another image of the set is deeper."""
    levels = np.arange(1024).reshape(64, 4, 4) % 256
    levels[::2] = np.random.default_rng(0).integers(0, 256, (32, 4, 4))
    np.save(tmp_path / "bytes.npy", levels.astype(np.uint8))
    np.save(tmp_path / "floats.npy", (levels.astype(np.uint8) / dtype(255)).astype(dtype))
    assert row_digests(tmp_path / "floats.npy") == row_digests(tmp_path / "bytes.npy")
    deep = np.random.default_rng(0).random((8, 4, 4)).astype(np.float16)
    deep[0] = 300.5
    deep[1] = -1
    deep[2, 0], deep[3, 0] = np.nan, np.nan
    np.save(tmp_path / "half.npy", deep)
    np.save(tmp_path / "deep.npy", deep.astype(dtype) if dtype is not np.float16 else deep.astype(np.float32))
    digests = row_digests(tmp_path / "deep.npy")
    assert digests == row_digests(tmp_path / "half.npy")
    assert len(set(digests)) == 8, "images that are no 8-bit ones stay apart"


def test_an_array_that_is_not_in_c_order_has_the_same_hashes(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (20, 4, 3, 2), dtype=np.uint8)
    np.save(tmp_path / "c.npy", images)
    np.save(tmp_path / "f.npy", np.asfortranarray(images))
    assert row_digests(tmp_path / "c.npy") == row_digests(tmp_path / "f.npy")


def test_each_image_is_hashed_once_however_many_sites_there_are(tmp_path, monkeypatch):
    np.save(tmp_path / "images.npy", np.random.default_rng(0).integers(0, 256, (120, 5, 5), dtype=np.uint8))
    names = [f"site-{number:02d}" for number in range(20)]
    for number, name in enumerate(names):
        (tmp_path / name).mkdir()
        rows = range(6 * number, 6 * number + 6)
        splits = {
            "training": make_records(rows[:4], [0] * 4, name),
            "test": make_records(rows[4:], [0] * 2, f"{name}-t"),
        }
        write_datalist(tmp_path / name, Datalist("toy", "../images.npy", 2, splits=splits))
    hashed = Mock(wraps=hashlib.blake2b)
    monkeypatch.setattr(hashlib, "blake2b", hashed)
    assert find_leaks(tmp_path, names) == []
    assert hashed.call_count == 120


class ReadOnce(set):
    """Set that may be iterated once and never compared with another set."""

    read = 0

    def __iter__(self):
        self.read += 1
        return super().__iter__()

    def __and__(self, other):
        raise AssertionError("places are compared pair by pair")

    intersection = isdisjoint = __and__


def test_many_places_with_everything_in_common_are_counted_together():
    contents = [ReadOnce(range(50)) for _ in range(60)]
    overlaps = list(leaks._count_overlaps(contents))
    assert {content.read for content in contents} == {1}
    assert len(overlaps) == 60 * 59 // 2
    assert {count for _, _, count in overlaps} == {50}
