"""Breast ultrasound with masks: numbers of the real folder, prepared arrays, and input that is refused."""

from __future__ import annotations

import csv
import os
import re
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from prepare_specs import prepare_spec
from refusals import refused
from segmentation_maker import segmentation, source_image

from medfl.data.datalists import SPLITS, Datalist
from medfl.data.ingest.columns.labels import SPLIT_WORDS
from medfl.data.partition.by_column import by_site
from medfl.data.partition.partition import partition
from medfl.data.partition.plan import PartitionPlan
from medfl.data.sites import load_sites
from medfl.errors import DataError
from medfl.objectives import Segmentation
from medfl_datasets.breast_ultrasound.files import NORMAL, UltrasoundImage, read_image, read_release
from medfl_datasets.breast_ultrasound.spec import BreastUltrasound
from medfl_datasets.breast_ultrasound.synthetic import SITES, write_release

REAL = Path(os.environ.get("MEDFL_DATA", "nowhere"), "segmentation", "breast_ultrasound")


def prepare(source: Path, out: Path, **options: Any) -> Datalist:
    return prepare_spec(BreastUltrasound, source, out, **{"workers": 1, "size": 16} | options)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_release(tmp_path_factory.mktemp("ultrasound"))


@pytest.fixture
def release(made: Path, tmp_path: Path) -> Path:
    """Write a release that a test may modify."""
    return shutil.copytree(made, tmp_path / "release")


def rows_of(release: Path) -> list[dict[str, str]]:
    return list(csv.DictReader((release / "metadata.csv").open()))


def test_the_real_table_and_files_belong_together() -> None:
    if not REAL.is_dir():
        pytest.skip("needs segmentation/breast_ultrasound in the folder that MEDFL_DATA names")
    release = read_release(REAL)
    assert None not in release.images
    assert None not in release.masks
    assert Counter(release.table.column("site")) == {
        "busbra_logiq7": 902, "busbra_logiq5": 809, "busbra_toshiba": 139, "busbra_usystems": 25, "breast_pl": 256,
    }  # fmt: skip
    assert Counter(release.splits) == {"training": 1510, "validation": 232, "test": 389}


def test_images_and_masks_are_resized_together(made: Path, tmp_path: Path) -> None:
    datalist = prepare(made, tmp_path / "pool", size="32x40")
    images, masks = (np.load(tmp_path / "pool" / f"{name}.npy") for name in ("images", "masks"))
    assert images.shape == masks.shape == (24, 32, 40)
    for row, facts in enumerate(rows_of(made)):
        expected = np.asarray(Image.open(made / "masks" / f"{facts['image']}.png")).astype(np.uint8)
        assert np.array_equal(masks[row], expected), "at their own size masks stay as they are"
        assert np.array_equal(images[row], np.asarray(Image.open(made / "images" / f"{facts['image']}.jpg")))
    prepare(made, tmp_path / "half", size="16x20")
    half = np.load(tmp_path / "half" / "masks.npy")
    assert int(half.sum()) * 4 == pytest.approx(int(masks.sum()), rel=0.05)
    assert datalist.goal == Segmentation(2)
    assert datalist.extra["structures"] == ["background", "lesion"]


def test_splits_are_the_tables_by_patient_and_empty_masks_are_counted(made: Path, tmp_path: Path) -> None:
    lines: list[str] = []
    datalist = prepare(made, tmp_path / "pool", say=lines.append)
    assert {split: len(datalist.splits[split]) for split in SPLITS} == {"training": 12, "validation": 6, "test": 6}
    subjects = [{record["subject_id"] for record in datalist.splits[split]} for split in SPLITS]
    assert sum(map(len, subjects)) == len(set().union(*subjects)) == 12
    records = [record for split in SPLITS for record in datalist.splits[split]]
    assert [record["pathology"] for record in records if not record["in_mask"]] == [NORMAL]
    assert "note: 1 masks are empty: these images contain no structure" in lines


def test_its_sites_have_the_test_images_of_the_table(made: Path, tmp_path: Path) -> None:
    prepare(made, tmp_path / "pool")
    plan = PartitionPlan("by_site", column="site", test="official", server_test="none")
    partition(tmp_path / "pool", tmp_path / "data", plan, by_site)
    sites = load_sites(tmp_path / "data", Segmentation(2))
    assert sorted(sites) == sorted(SITES)
    assert all((len(site.train), len(site.test)) == (4, 2) for site in sites.values())


def test_benign_and_malignant_are_classes_without_masks(release: Path, tmp_path: Path) -> None:
    shutil.rmtree(release / "masks")
    datalist = prepare(release, tmp_path / "pool", target="pathology")
    assert (datalist.name, datalist.labels) == ("breast_ultrasound-pathology", {"0": "benign", "1": "malignant"})
    records = [record for split in SPLITS for record in datalist.splits[split]]
    expected = [row["pathology"] for row in rows_of(release) if row["pathology"] != NORMAL]
    labels = [datalist.labels[str(record["label"])] for record in sorted(records, key=lambda record: record["image"])]
    assert labels == expected
    assert np.load(tmp_path / "pool" / "images.npy").shape == (23, 16, 16)
    assert not (tmp_path / "pool" / "masks.npy").exists()
    assert [entry.count for entry in datalist.exclusions] == [1]


def mask_of(release: Path, row: int) -> Path:
    return release / "masks" / f"{rows_of(release)[row]['image']}.png"


def grey(path: Path) -> None:
    Image.fromarray(np.arange(32 * 40, dtype=np.uint8).reshape(32, 40)).save(path)


WRONG: dict[str, tuple[Callable[[Path], Any], str]] = {
    "gone": (Path.unlink, r"1 x there is no file of the mask \(table row 5\)"),
    "grid": (lambda path: Image.new("1", (40, 31)).save(path), r"the mask is 31x40, its image 32x40.* \(table row 5\)"),
    "grey": (grey, r"the mask holds 255 values beside 0, expected one, .* \(table row 5\)"),
    "cut": (lambda path: path.write_bytes(path.read_bytes()[:30]), r"\(table row 5\)"),
}


@pytest.mark.parametrize(("damage", "message"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_mask_is_refused_or_left_out(
    release: Path, tmp_path: Path, damage: Callable[[Path], Any], message: str
) -> None:
    damage(mask_of(release, 3))
    with refused(DataError, "unreadable_image", count=1, total=24) as error:
        prepare(release, tmp_path / "pool")
    assert re.search(message, str(error.value))
    assert "secret" not in f"{error.value} {error.value.fields}"
    datalist = prepare(release, tmp_path / "pool", require_complete=False)
    assert sum(len(datalist.splits[split]) for split in SPLITS) == len(np.load(tmp_path / "pool" / "masks.npy")) == 23
    words = [row["split"] for row in rows_of(release)]
    words.pop(3)
    split_of = {record["image"]: split for split in SPLITS for record in datalist.splits[split]}
    assert [split_of[row] for row in range(23)] == [SPLIT_WORDS[word] for word in words]


def test_masks_may_be_dicom_segmentations(made: Path, release: Path, tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason="highdicom is not installed (pip install 'medfl-monai[highdicom]')")
    for row in range(5):
        path = mask_of(release, row)
        mask = np.asarray(Image.open(path)).astype(np.uint8)
        image = source_image(tmp_path / "image.dcm", np.zeros_like(mask))
        segmentation(path.with_suffix(".dcm"), mask[np.newaxis, ..., np.newaxis], [image])
        path.unlink()
    prepare(made, tmp_path / "pictures")
    prepare(release, tmp_path / "segmentations")
    for name in ("datalist.json", "images.npy", "masks.npy"):
        content = (tmp_path / "segmentations" / name).read_bytes()
        assert content == (tmp_path / "pictures" / name).read_bytes()
        assert b"secret" not in content.lower()


@pytest.mark.parametrize(("colour", "grey"), [((255, 0, 0), 76), ((0, 255, 0), 150), ((0, 0, 255), 29)])
def test_colours_become_grey_by_their_luminance(tmp_path: Path, colour: tuple[int, int, int], grey: int) -> None:
    Image.new("RGB", (12, 12), colour).save(tmp_path / "image.png")
    assert np.unique(read_image(UltrasoundImage(tmp_path / "image.png"), (8, 8)).pixels) == [grey]


def test_two_masks_for_an_image_are_refused(release: Path, tmp_path: Path) -> None:
    shutil.copy(mask_of(release, 3), mask_of(release, 3).with_suffix(".bmp"))
    with refused(DataError, "ambiguous_file", path=str(release / "metadata.csv"), folder="masks", rows=[5]):
        prepare(release, tmp_path / "pool")


@pytest.mark.parametrize(
    ("column", "value", "code", "fields"),
    [
        ("image", "../other", "invalid_value", {"column": "image", "rows": [2]}),
        ("pathology", "unclear", "wrong_label", {"column": "pathology", "rows": [2]}),
        ("split", "sometimes", "invalid_value", {"column": "split", "rows": [2]}),
        ("split", "test", "patient_in_two_splits", {"column": "patient", "rows": [2, 3]}),
    ],
)
def test_a_wrong_table_is_refused(
    release: Path, tmp_path: Path, column: str, value: str, code: str, fields: dict[str, Any]
) -> None:
    rows = rows_of(release)
    rows[0][column] = value
    with (release / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    with refused(DataError, code, path=str(release / "metadata.csv"), **fields):
        prepare(release, tmp_path / "pool")
