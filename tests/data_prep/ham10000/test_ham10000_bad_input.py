"""HAM10000 with missing or damaged files, an invalid table, or invalid settings."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from ham10000_small import exclusions, prepare
from PIL import Image
from refusals import refused

from medfl.errors import DataError, SettingsError
from medfl_datasets.ham10000.synthetic import make_rows, write_release, write_table
from medfl_datasets.ham10000.tables import read_metadata

CLASSES = ["akiec", "bcc", "bkl", "df", "mel", "nv", "vasc"]


@pytest.fixture
def release(tmp_path):
    return write_release(tmp_path)


@pytest.fixture
def rows():
    return make_rows()


def test_images_that_are_missing_or_broken_are_left_out(release, rows, tmp_path):
    path = {row["image_id"]: file for row in rows for file in release.glob(f"*/{row['image_id']}.jpg")}
    path[rows[3]["image_id"]].unlink()
    broken = path[rows[12]["image_id"]]
    broken.write_bytes(broken.read_bytes()[:200])
    lines: list[str] = []
    datalist = prepare(release, tmp_path / "P", say=lines.append)
    assert lines[-1] == "warning: 2 images were left out: see quarantine.csv"
    quarantine = list(csv.reader((tmp_path / "P" / "quarantine.csv").open()))
    assert [row[0] for row in quarantine] == ["table_row", "5", "14"]
    assert exclusions(datalist)["there is no image file"] == 1
    assert sum(exclusions(datalist).values()) == 2
    left = [row for place, row in enumerate(rows) if place not in (3, 12)]
    assert [CLASSES[record["label"]] for record in datalist.splits["training"]] == [row["dx"] for row in left]
    assert len(np.load(tmp_path / "P" / "images.npy")) == 19
    with refused(DataError, "unreadable_image", count=1, total=21):
        prepare(release, tmp_path / "Q", require_complete=True)
    shutil.copy(path[rows[4]["image_id"]], path[rows[3]["image_id"]])
    with refused(DataError, "unreadable_image", count=1, total=21) as error:
        prepare(release, tmp_path / "Q", require_complete=True)
    assert "1 x the image file is damaged" in str(error.value)
    assert not (tmp_path / "Q").exists()


def test_images_of_other_modes_and_sizes(release, rows, tmp_path):
    path = [file for row in rows for file in release.glob(f"*/{row['image_id']}.jpg")]
    Image.new("CMYK", (30, 20), (255, 0, 0, 0)).save(path[0])
    Image.new("L", (9, 40), 70).save(path[1])
    Image.new("I;16", (24, 16), 1000).save(path[2].with_suffix(".png"))
    path[2].unlink()
    Image.new("RGB", (7, 90)).save(path[3])
    datalist = prepare(release, tmp_path / "P")
    images = np.load(tmp_path / "P" / "images.npy").astype(int)
    assert np.abs(images[0] - (0, 255, 255)).max() <= 3, "cyan"
    assert np.abs(images[1] - 70).max() <= 1
    assert [reason.split(",")[0] for reason in exclusions(datalist)] == [
        "expected an image of 8 bits a channel",
        "expected 8 pixels or more along each edge",
    ]
    assert len(images) == 19


def check_refused(release, code, **fields):
    """Check that preparing fails without a private name in the error, and writes nothing."""
    out = release.parent / "refused"
    with refused(DataError, code, **fields) as error:
        prepare(release, out)
    assert "secret" not in f"{error.value} {error.value.fields}".lower()
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "value", "code", "fields"),
    [
        ("dx", "NEV", "wrong_label", {"label": "nev", "rows": [5]}),
        ("dx", "HAM_SECRET_7", "wrong_label", {"label": None, "rows": [5]}),
        ("dx", "", "missing_value", {"rows": [5]}),
        ("lesion_id", "", "missing_value", {"rows": [5]}),
        ("image_id", "", "missing_value", {"rows": [5]}),
        ("image_id", "../secret.jpg", "invalid_value", {"rows": [5]}),
        ("image_id", None, "duplicate_row", {"rows": [5, 9]}),
    ],
)
def test_cells_that_are_refused(release, rows, column, value, code, fields):
    changed = [dict(row) for row in rows]
    changed[3][column] = rows[7]["image_id"] if value is None else value
    path = release / "HAM10000_metadata.csv"
    write_table(path, changed)
    check_refused(release, code, path=str(path), column=column, **fields)


def test_unlike_diagnoses_of_a_lesion_are_reported(release, rows, tmp_path):
    place = next(place for place, row in enumerate(rows) if row["dx"] != rows[0]["dx"])
    changed = [dict(row) for row in rows]
    changed[place]["lesion_id"] = rows[0]["lesion_id"]
    write_table(release / "HAM10000_metadata.csv", changed)
    sentences = read_metadata(release / "HAM10000_metadata.csv").deviations()
    assert any(sentence.startswith("1 lesions have images with different diagnoses") for sentence in sentences)


def test_files_that_are_refused(release, rows, tmp_path):
    shutil.copy(release / "HAM10000_metadata.csv", release / "HAM10000_images_part_1" / "ham10000_METADATA.tab")
    files = ["HAM10000_metadata.csv", "HAM10000_images_part_1/ham10000_METADATA.tab"]
    check_refused(release, "ambiguous_file", path=str(release), files=files)
    (release / "HAM10000_images_part_1" / "ham10000_METADATA.tab").unlink()
    other = next((release / "HAM10000_images_part_2").glob("*.jpg"))
    shutil.copy(other, release / f"{rows[0]['image_id']}.jpg")
    check_refused(release, "conflicting_copies", path=str(release), count=1)
    (release / f"{rows[0]['image_id']}.jpg").unlink()
    write_table(release / "HAM10000_metadata.csv", [dict(row, image_id=f"X{row['image_id']}") for row in rows])
    table = str(release / "HAM10000_metadata.csv")
    check_refused(release, "no_images", path=table, expected=21, reasons={"there is no image file": 21})
    (release / "HAM10000_metadata.csv").unlink()
    check_refused(release, "missing_file", path=table)
    for part in release.glob("*part*"):
        shutil.rmtree(part)
    write_table(release / "HAM10000_metadata.csv", rows)
    check_refused(release, "no_images", path=str(release))
    check_refused(release / "nowhere", "missing_folder", path=str(release / "nowhere"))


def test_a_class_without_an_image_is_refused(release, rows):
    write_table(release / "HAM10000_metadata.csv", [row for row in rows if row["dx"] != "df"])
    check_refused(release, "class_without_images", classes=["df"])


def test_settings_that_are_refused(release, tmp_path):
    for options, code, fields in (
        ({"preset": "papers"}, "unknown_choice", {"what": "preset", "choice": "papers"}),
        ({"groups": "lesions"}, "unknown_choice", {"what": "groups", "choice": "lesions"}),
        ({"size": 0}, "setting_out_of_range", {"setting": "size", "minimum": 1, "found": [0, 0]}),
    ):
        with refused(SettingsError, code, **fields):
            prepare(release, tmp_path / "P", **options)
