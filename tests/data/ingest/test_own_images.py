"""Test preparation of the user's own images. Names and identifiers in these tests are secrets that must not be kept."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from image_makers import dicom, nifti, picture
from own_cohort import ALL, SOME, make_own, prepare, prepared
from refusals import refused

from medfl.data.datalists import SPLITS
from medfl.data.ingest.columns.labels import TableColumns
from medfl.data.ingest.folder_synthetic import HEAD, ROWS, write_table
from medfl.data.readers.images import read_image
from medfl.errors import DataError, SettingsError


@pytest.fixture
def own(tmp_path):
    return make_own(tmp_path)


def by_row(datalist):
    records = [record | {"split": split} for split in SPLITS for record in datalist.splits.get(split, [])]
    return sorted(records, key=lambda record: record["image"])


def test_the_whole_way(own, tmp_path):
    lines: list[str] = []
    images, datalist = prepared(own, tmp_path / "P", ALL, name="own", licence="ours", say=lines.append)
    assert lines[0] == "own: licence ours"
    assert lines[1].startswith("note: needs 600 bytes on the disk of --out, which has ")
    assert len(lines) == 2
    assert (images.dtype, images.shape) == (np.uint8, (4, 10, 15))
    for row, pixels in zip(ROWS, images, strict=True):
        np.testing.assert_array_equal(pixels, read_image(own[0] / row[0], (10, 15), 1))
    assert (datalist.name, datalist.licence, datalist.num_classes) == ("own", "ours", 2)
    assert datalist.labels == {"0": "benign", "1": "malignant"}
    assert (datalist.extra, datalist.exclusions, datalist.warnings) == ({}, (), ())
    ids = ["subject-000001", "subject-000002", "subject-000001", "subject-000003"]
    splits = ["training", "validation", "training", "test"]
    assert by_row(datalist) == [
        {"image": row, "label": label, "subject_id": subject, "site": site, "sex": sex, "split": split}
        for row, (label, subject, site, sex, split) in enumerate(
            zip((0, 1, 1, 0), ids, ("north", "south", "north", "south"), ("f", "m", "f", ""), splits, strict=True)
        )
    ]
    assert sorted(path.name for path in (tmp_path / "P").iterdir()) == ["datalist.json", "images.npy"]


def test_nothing_that_identifies_is_written_or_said(own, tmp_path):
    lines: list[str] = []
    (own[0] / ROWS[3][0]).write_bytes(b"")
    write_table(own[1], [*ROWS, ("secret-sally-3.png", "benign", "SECRET-7", "north", "train", "f")])
    picture(own[0] / "secret-sally-3.png", np.zeros((20, 30), np.uint8))
    prepared(own, tmp_path / "P", ALL, skip_unreadable=True, say=lines.append)
    for path in (tmp_path / "P").iterdir():
        content = path.read_bytes().lower() if path.suffix != ".npy" else b""
        assert not any(word in content for word in (b"secret", b"sally", b"tom", b"uma"))
    assert not any("secret" in line.lower() for line in lines)


def test_decoders_do_not_repeat_what_a_file_says(own, tmp_path, caplog, recwarn):
    pixels = np.arange(600, dtype=np.uint16).reshape(20, 30)
    dicom(own[0] / "odd", pixels, SpecificCharacterSet="SECRET")
    write_table(own[1], [*ROWS, ("odd", "benign", "SECRET-8", "north", "train", "f")])
    recwarn.clear()
    caplog.clear()
    prepared(own, tmp_path / "P")
    assert "SECRET" not in caplog.text
    assert not [warning for warning in recwarn if "SECRET" in str(warning.message)]
    with pytest.warns(UserWarning, match="SECRET"):
        read_image(own[0] / "odd", (2, 3), 1)


def test_without_a_group_column_each_image_is_its_own_patient(own, tmp_path):
    lines: list[str] = []
    _, datalist = prepared(own, tmp_path / "P", say=lines.append)
    assert lines[0] == "P: licence not stated (state it with --licence TEXT)"
    assert lines[1].startswith("warning: without --group-column each image counts as a patient of its own")
    assert len({record["subject_id"] for record in datalist.splits["training"]}) == 4
    assert set(datalist.splits["training"][0]) == {"image", "label", "subject_id"}


@pytest.mark.parametrize("written", ["{stem}", "{folder}/{name}", ".\\{name}", "./{name}", "sub/../{name}"])
def test_ways_to_write_a_path(own, tmp_path, written):
    rows = []
    for name, *rest in ROWS:
        path = written.format(stem=name.rpartition(".")[0], folder=own[0], name=name)
        rows.append((path, *rest))
    write_table(own[1], rows)
    images, _ = prepared(own, tmp_path / "P")
    np.testing.assert_array_equal(images[1], read_image(own[0] / ROWS[1][0], (10, 15), 1))


def test_names_with_dots_and_double_endings(tmp_path):
    folder = tmp_path / "images"
    folder.mkdir()
    for number in range(2):
        nifti(folder / f"scan.v{number}.nii.gz", np.arange(8.0).reshape(2, 2, 2) * (number + 1))
    table = write_table(tmp_path / "t.csv", [("scan.v0", "a"), ("scan.v1", "b")], ("file", "diagnosis"))
    images, _ = prepared((folder, table), tmp_path / "P", size=(2,))
    assert (images.dtype, images.shape) == (np.float32, (2, 2, 2, 2))
    np.testing.assert_allclose(images[0], np.arange(8).reshape(2, 2, 2) / 7, atol=1e-6)
    np.testing.assert_array_equal(images[0], images[1])


def test_a_deep_image_among_others_makes_all_of_them_floats(own, tmp_path):
    pixels = np.linspace(0, 4095, 600).astype(np.uint16).reshape(20, 30)
    dicom(own[0] / "deep", pixels, "MONOCHROME1")
    write_table(own[1], [*ROWS, ("deep", "benign", "SECRET-8", "north", "train", "f")])
    images, datalist = prepared(own, tmp_path / "P", size=(20, 30))
    assert images.dtype == np.float32
    np.testing.assert_allclose(images[4], 1 - pixels / 4095, atol=1e-6)
    np.testing.assert_allclose(images[0] * 255, read_image(own[0] / ROWS[0][0], (20, 30), 1), atol=1e-4)


def test_channels_follow_the_images_or_the_user(own, tmp_path):
    assert prepared(own, tmp_path / "A", channels=3)[0].shape == (4, 10, 15, 3)
    picture(own[0] / ROWS[0][0], np.zeros((20, 30, 3), np.uint8))
    assert prepared(own, tmp_path / "B")[0].shape == (4, 10, 15, 3)
    assert prepared(own, tmp_path / "C", channels=1, size=[7])[0].shape == (4, 7, 7)


def spoil(own):
    """Damage two files: one fails on inspection of its header, the other only when its pixels are read."""
    shutil.copy(own[1], own[0] / ROWS[0][0])
    path = own[0] / ROWS[2][0]
    path.write_bytes(path.read_bytes()[:-200])
    extra = [(f"more-{number}.png", ("benign", "malignant")[number % 2]) for number in range(4)]
    for name, _ in extra:
        picture(own[0] / name, np.full((20, 30), ord(name[5]), np.uint8))
    write_table(own[1], [row[:2] for row in ROWS] + extra, HEAD[:2])


def test_unreadable_images_are_all_found(own, tmp_path):
    spoil(own)
    with refused(DataError, "unreadable_image", count=2, total=8) as error:
        prepare(*own, SOME, (10, 15), tmp_path / "P")
    message = str(error.value)
    assert "1 x the file is not an image of the kind that its extension states (.png)" in message
    assert "(table row 2)" in message
    assert "1 x the image file is damaged or cut short (OSError). Export it again (table row 4)" in message
    assert "--skip-unreadable" in message
    assert not (tmp_path / "P").exists()


def test_unreadable_images_are_left_out_on_request(own, tmp_path):
    spoil(own)
    lines: list[str] = []
    images, datalist = prepared(own, tmp_path / "P", skip_unreadable=True, say=lines.append)
    assert images.shape == (6, 10, 15)
    kept = [ROWS[1][0], ROWS[3][0], *(f"more-{number}.png" for number in range(4))]
    for name, record in zip(kept, by_row(datalist), strict=True):
        np.testing.assert_array_equal(images[record["image"]], read_image(own[0] / name, (10, 15), 1))
    assert [record["label"] for record in by_row(datalist)] == [1, 0, 0, 1, 0, 1]
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert [row[0] for row in quarantine] == ["table_row", "2", "4"]
    assert [(entry.reason, entry.count) for entry in datalist.exclusions] == [(row[1], 1) for row in quarantine[1:]]
    assert lines[-1] == "warning: 2 of 8 images can't be read and were left out: see quarantine.csv"


def test_what_the_table_says_of_an_image_stays_with_it_where_another_is_left_out(own, tmp_path):
    (own[0] / ROWS[0][0]).write_bytes(b"")
    _, datalist = prepared(own, tmp_path / "P", ALL, skip_unreadable=True)
    records = by_row(datalist)
    assert [record["split"] for record in records] == ["validation", "training", "test"]
    assert [record["label"] for record in records] == [1, 1, 0]
    assert [(record["site"], record["sex"]) for record in records] == [(row[3], row[5]) for row in ROWS[1:]]


def test_a_class_may_not_be_lost_by_skipping(own, tmp_path):
    for row in (ROWS[0], ROWS[3]):
        (own[0] / row[0]).write_bytes(b"")
    with refused(DataError, "class_without_images", classes=["benign"]):
        prepare(*own, SOME, (10, 15), tmp_path / "P", skip_unreadable=True)
    for row in ROWS:
        (own[0] / row[0]).write_bytes(b"")
    with refused(DataError, "no_readable_image", count=4, total=4):
        prepare(*own, SOME, (10, 15), tmp_path / "P", skip_unreadable=True)
    assert not (tmp_path / "P").exists()


def test_a_report_instead_of_a_path_is_not_repeated(own, tmp_path):
    rows = [("secret " * 60, *row[1:]) for row in ROWS]
    write_table(own[1], rows)
    with refused(DataError, "missing_image", path=str(own[0]), rows=[2, 3, 4, 5], total=4) as error:
        prepare(*own, SOME, (10, 15), tmp_path / "P")
    assert "secret" not in str(error.value)


def changed(place, column, value):
    rows = [list(row) for row in ROWS]
    rows[place][column] = value
    return rows


@pytest.mark.parametrize(
    ("rows", "code", "fields"),
    [
        (changed(1, 1, ""), "missing_value", {"column": "diagnosis", "rows": [3]}),
        (changed(1, 2, ""), "missing_value", {"column": "patient", "rows": [3]}),
        (changed(1, 3, ""), "missing_value", {"column": "hospital", "rows": [3]}),
        (changed(1, 0, "none.png"), "missing_image", {"rows": [3], "total": 4}),
        (changed(1, 0, "../images/secret-tom.png"), "missing_image", {"rows": [3], "total": 4}),
        (changed(1, 0, "../labels.csv"), "path_outside_folder", {"rows": [3], "total": 4}),
        (changed(1, 0, "/etc/passwd"), "path_outside_folder", {"rows": [3], "total": 4}),
        (changed(1, 0, "."), "path_outside_folder", {"rows": [3], "total": 4}),
        (changed(1, 0, ROWS[0][0]), "duplicate_row", {"rows": [2, 3], "total": 4}),
        (changed(1, 0, "./secret-sally-1"), "duplicate_row", {"rows": [2, 3], "total": 4}),
        (changed(1, 4, "holdout"), "invalid_value", {"column": "part", "rows": [3], "total": 4}),
        (changed(2, 4, "test"), "patient_in_two_splits", {"count": 1, "total": 3}),
        (
            [row for row in ROWS if row[1] == "benign"],
            "too_few_classes",
            {"column": "diagnosis", "found": 1, "total": 2},
        ),
        (ROWS[:1], "too_few_classes", {"column": "diagnosis", "found": 1, "total": 1}),
    ],
)
def test_tables_that_are_refused(own, tmp_path, rows, code, fields):
    write_table(own[1], rows)
    with refused(DataError, code, **fields) as error:
        prepare(*own, ALL, (10, 15), tmp_path / "P")
    assert "secret" not in str(error.value).lower()
    assert not (tmp_path / "P").exists()


def test_columns_that_are_refused(own, tmp_path):
    with refused(DataError, "missing_column", path=str(own[1]), columns=["path", "who"]):
        prepare(*own, TableColumns("path", "diagnosis", "who"), (10, 15), tmp_path / "P")
    with refused(DataError, "too_many_classes", column="patient", found=3, total=4):
        prepare(*own, TableColumns("file", "patient"), (10, 15), tmp_path / "P")
    write_table(
        own[1], [(*row[:2], name, *row[3:]) for row, name in zip(ROWS, ("Tom", "TOM", "Uma", "Ann"), strict=True)]
    )
    with refused(DataError, "too_many_classes", column="patient", found=4, total=4) as error:
        prepare(*own, TableColumns("file", "patient"), (10, 15), tmp_path / "P")
    assert "Tom" not in str(error.value), "a column of names given as labels by mistake"
    with refused(SettingsError, "duplicate_column", columns=["patient"]):
        TableColumns("file", "diagnosis", "patient", keep=("patient",))
    with refused(SettingsError, "reserved_name", columns=["site"]):
        TableColumns("file", "diagnosis", keep=("site", "sex"))


def test_two_files_that_differ_in_their_ending(own, tmp_path):
    picture(own[0] / "secret-uma.png", np.zeros((20, 30), np.uint8))
    write_table(own[1], changed(3, 0, "secret-uma"))
    with refused(DataError, "ambiguous_file", path=str(own[0]), rows=[5], total=4):
        prepare(*own, SOME, (10, 15), tmp_path / "P")


def test_images_and_volumes_do_not_mix(own, tmp_path):
    nifti(own[0] / "volume.nii", np.zeros((4, 4, 4)))
    write_table(own[1], [*ROWS, ("volume", "benign", "x", "north", "train", "f")])
    with refused(DataError, "mixed_dimensions", images=4, volumes=1, rows=[6]):
        prepare(*own, SOME, (10, 15), tmp_path / "P")


def test_sizes_and_channels_that_are_refused(own, tmp_path):
    with refused(SettingsError, "setting_out_of_range", setting="size", dimensions=2, found=[8, 8, 8]):
        prepare(*own, SOME, (8, 8, 8), tmp_path / "P")
    with refused(SettingsError, "setting_out_of_range", setting="channels", expected=[1, 3], found=2):
        prepare(*own, SOME, (8,), tmp_path / "P", channels=2)
    for row in ROWS:
        nifti(own[0] / f"{row[0]}.nii", np.zeros((4, 4, 4)))
    write_table(own[1], [(f"{row[0]}.nii", *row[1:]) for row in ROWS])
    with refused(SettingsError, "ambiguous_size", setting="size", found=3):
        prepare(*own, SOME, (8, 8, 3), tmp_path / "P")
    with refused(SettingsError, "setting_out_of_range", setting="channels", expected=[1], found=3):
        prepare(*own, SOME, (8,), tmp_path / "P", channels=3)


def test_a_folder_that_is_not_there(own, tmp_path):
    with refused(DataError, "missing_folder", path=str(tmp_path / "none")):
        prepare(tmp_path / "none", own[1], SOME, (8,), tmp_path / "P")


def test_progress_is_plain_lines_without_a_terminal(own, tmp_path, monkeypatch):
    monkeypatch.setattr("medfl.utils.progress.EVERY_SECONDS", 0.0)
    lines: list[str] = []
    prepared(own, tmp_path / "P", say=lines.append)
    assert "inspecting: 4 of 4 images" in lines
    assert lines[-1] == "reading: 4 of 4 images"
