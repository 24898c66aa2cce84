"""HAM10000 with files that are missing or broken, a table that is wrong, or impossible settings."""

from __future__ import annotations

import csv
import shutil

import numpy as np
import pytest
from ham10000_small import exclusions, prepare
from PIL import Image

from medfl.errors import DataError, SettingsError
from medfl_datasets.ham10000.phantom import make_rows, write_release, write_table
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
    with pytest.raises(DataError, match=r"all images of HAM10000_metadata\.csv are required, 1 of 21 are missing or"):
        prepare(release, tmp_path / "Q", require_complete=True)
    shutil.copy(path[rows[4]["image_id"]], path[rows[3]["image_id"]])
    with pytest.raises(DataError, match="1 of 21 are missing or can't be read: 1 x the image file is damaged"):
        prepare(release, tmp_path / "Q", require_complete=True)
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


def refused(release, message, **options):
    """Preparing it ends with a message that says no secret, and nothing is written."""
    out = release.parent / "refused"
    with pytest.raises(DataError, match=message) as error:
        prepare(release, out, **options)
    assert "secret" not in str(error.value).lower()
    assert not out.exists()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("dx", "NEV", r"unknown diagnosis 'nev' .*; 1 of 21 rows have an unknown one: table row 5\. Did you mean 'nv'"),
        ("dx", "HAM_SECRET_7", r"unknown diagnosis in the column 'dx' .*; 1 of 21 rows .*: table row 5\."),
        ("dx", "", r"every row of the column 'dx' .* 1 of 21 are empty: table row 5\."),
        ("lesion_id", "", r"every row of the column 'lesion_id' .* 1 of 21 are empty: table row 5\."),
        ("image_id", "", r"every row of the column 'image_id' .* 1 of 21 are empty: table row 5\."),
        ("image_id", "../secret.jpg", r"names like ISIC_0024306, .* 1 of 21 rows hold something else: table row 5\."),
        ("image_id", None, r"expected one row for each image in .*, 2 of 21 rows share their image_id .*: table rows"),
    ],
)
def test_cells_that_are_refused(release, rows, column, value, message):
    changed = [dict(row) for row in rows]
    changed[3][column] = rows[7]["image_id"] if value is None else value
    write_table(release / "HAM10000_metadata.csv", changed)
    refused(release, message)


def test_unlike_diagnoses_of_a_lesion_are_told(release, rows, tmp_path):
    place = next(place for place, row in enumerate(rows) if row["dx"] != rows[0]["dx"])
    changed = [dict(row) for row in rows]
    changed[place]["lesion_id"] = rows[0]["lesion_id"]
    write_table(release / "HAM10000_metadata.csv", changed)
    sentences = read_metadata(release / "HAM10000_metadata.csv").deviations()
    assert any(sentence.startswith("1 lesions have images with different diagnoses") for sentence in sentences)


def test_files_that_are_refused(release, rows, tmp_path):
    shutil.copy(release / "HAM10000_metadata.csv", release / "HAM10000_images_part_1" / "ham10000_METADATA.tab")
    refused(release, r"expected one table HAM10000_metadata in .*, found .*\.tab\. Name the one to use with --metadata")
    (release / "HAM10000_images_part_1" / "ham10000_METADATA.tab").unlink()
    other = next((release / "HAM10000_images_part_2").glob("*.jpg"))
    shutil.copy(other, release / f"{rows[0]['image_id']}.jpg")
    refused(release, r"expected one image of each name in .*, 1 names have several files that differ")
    (release / f"{rows[0]['image_id']}.jpg").unlink()
    write_table(release / "HAM10000_metadata.csv", [dict(row, image_id=f"X{row['image_id']}") for row in rows])
    refused(release, r"none of the 21 images of .* can be used: 21 x there is no image file\. The table and the")
    (release / "HAM10000_metadata.csv").unlink()
    refused(release, r"expected the table HAM10000_metadata\.csv \(or .* there is none\. .* name it with --metadata")
    for part in release.glob("*part*"):
        shutil.rmtree(part)
    write_table(release / "HAM10000_metadata.csv", rows)
    refused(release, r"expected the images ISIC_0024306\.jpg, \.\.\. of HAM10000 in .* there are none")
    refused(release / "nowhere", "expected the folder of HAM10000 at .*nowhere, there is none")


def test_a_class_without_an_image_is_refused(release, rows):
    write_table(release / "HAM10000_metadata.csv", [row for row in rows if row["dx"] != "df"])
    refused(release, "no image is left of the classes df")


def test_settings_that_are_refused(release, tmp_path):
    for options, message in (
        ({"preset": "papers"}, r"unknown preset 'papers'\. Did you mean 'paper'"),
        ({"groups": "lesions"}, r"unknown groups 'lesions'\. Did you mean 'lesion'"),
        ({"size": 0}, "expected a height and a width >= 1, got 0 and 0"),
    ):
        with pytest.raises(SettingsError, match=message):
            prepare(release, tmp_path / "P", **options)
