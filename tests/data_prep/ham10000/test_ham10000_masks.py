"""HAM10000 for segmentation: images with lesion masks."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ham10000_small import exclusions, prepare
from PIL import Image
from refusals import refused

from medfl.errors import DataError, SettingsError
from medfl.objectives import Segmentation
from medfl_datasets.ham10000.synthetic import make_rows, write_release

FOLDER = "HAM10000_segmentations_lesion_tschandl"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path, masks=True)


def mask_of(release: Path, row: int) -> Path:
    return release / FOLDER / f"{make_rows()[row]['image_id']}_segmentation.png"


def masked(release: Path, out: Path, **options: Any) -> Any:
    return prepare(release, out, masks=release / FOLDER, size=8, **options)


def test_each_image_has_its_mask_beside_it(release: Path, tmp_path: Path) -> None:
    """Check masks at half size; the lesion of row n covers rows 4 to 7 and starts at column 2 + n % 8."""
    datalist = masked(release, tmp_path / "P")
    images, masks = (np.load(tmp_path / "P" / f"{name}.npy") for name in ("images", "masks"))
    assert (images.shape, masks.shape) == ((21, 8, 8, 3), (21, 8, 8))
    for image, mask in zip(images, masks, strict=True):
        assert set(np.flatnonzero(mask.any(axis=1))) == {2, 3}
        assert image[mask == 1][:, 0].mean() > 120 > 40 > image[mask == 0][:, 0].mean()
    assert (datalist.name, datalist.goal) == ("ham10000-masks", Segmentation(2))
    names = {row["dx"] for row in make_rows()}
    assert {record["diagnosis"] for record in datalist.splits["training"]} == names
    assert {record["dataset"] for record in datalist.splits["training"]} >= {"rosendahl", "vidir_modern"}
    assert all("label" not in record for record in datalist.splits["training"])


def test_an_empty_mask_stays_and_a_wrong_or_missing_one_leaves_its_image_out(release: Path, tmp_path: Path) -> None:
    mask_of(release, 4).unlink()
    Image.new("L", (24, 16)).save(mask_of(release, 6))
    Image.new("L", (25, 16), 255).save(mask_of(release, 9))
    Image.fromarray(np.arange(16 * 24, dtype=np.uint8).reshape(16, 24)).save(mask_of(release, 11))
    datalist = masked(release, tmp_path / "P")
    reasons = {reason.split(",")[0]: count for reason, count in exclusions(datalist).items()}
    assert reasons == {
        "there is no mask of the lesion": 1,
        "the mask is 16x25": 1,
        "the mask holds 255 values beside 0": 1,
    }
    assert datalist.counts()["training"] == {"0": 1, "1": 17}
    with refused(DataError, "unreadable_image", count=1, total=21):
        masked(release, tmp_path / "Q", require_complete=True)


def test_two_masks_of_an_image_and_none_at_all_are_refused(release: Path, tmp_path: Path) -> None:
    (release / FOLDER / "more").mkdir()
    Image.new("L", (24, 16)).save(release / FOLDER / "more" / mask_of(release, 4).name)
    with refused(DataError, "conflicting_copies", count=1):
        masked(release, tmp_path / "P")
    shutil.rmtree(release / FOLDER)
    (release / FOLDER).mkdir()
    with refused(DataError, "no_masks", path=str(release / FOLDER)):
        masked(release, tmp_path / "P")


def test_whole_images_and_crops_exclude_each_other(release: Path, tmp_path: Path) -> None:
    with refused(SettingsError, "incompatible_settings", settings=["crop_lesion", "masks"]):
        masked(release, tmp_path / "P", crop_lesion=True)
