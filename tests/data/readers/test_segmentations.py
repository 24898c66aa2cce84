"""Test masks as DICOM-SEG: written by highdicom, read like mask image files, without any patient data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
import pytest
from image_makers import dicom, picture
from refusals import refused
from segmentation_maker import segmentation, source_image

from medfl.data.readers import segmentations
from medfl.data.readers.segmentations import read_mask
from medfl.errors import DataError

SHAPE = (12, 20)

MASK = np.zeros((1, *SHAPE, 2), dtype=np.uint8)
MASK[0, 2:6, 3:9, 0] = 1
MASK[0, 8:11, 10:18, 1] = 1

NEEDED = "highdicom is not installed (pip install 'medfl-monai[highdicom]')"


def images(folder: Path) -> list[pydicom.Dataset]:
    return [source_image(folder / "image.dcm", np.zeros(SHAPE, dtype=np.uint8))]


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_a_pixel_is_lesion_where_any_segment_is(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("highdicom", reason=NEEDED)
    mask = MASK.astype(np.float64) if kind == "FRACTIONAL" else MASK
    read = read_mask(segmentation(tmp_path / "mask.dcm", mask, images(tmp_path), kind))
    assert read.dtype == np.uint8
    assert np.array_equal(read, MASK[0].any(axis=-1))
    as_picture = picture(tmp_path / "mask.png", MASK[0].any(axis=-1).astype(np.uint8))
    assert np.array_equal(read_mask(as_picture), read)


def test_segments_may_overlap_and_be_empty(tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason=NEEDED)
    both = MASK[..., :1].repeat(2, axis=-1)
    assert np.array_equal(read_mask(segmentation(tmp_path / "a.dcm", both, images(tmp_path))), MASK[0, ..., 0])
    assert not read_mask(segmentation(tmp_path / "b.dcm", MASK * 0, images(tmp_path))).any()


def test_fractions_from_one_half_on_are_lesion(tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason=NEEDED)
    shares = np.linspace(0, 1, SHAPE[0] * SHAPE[1]).reshape(1, *SHAPE, 1)
    read = read_mask(segmentation(tmp_path / "mask.dcm", shares, images(tmp_path), "FRACTIONAL"))
    assert np.array_equal(read, np.round(shares[0, ..., 0] * 255) / 255 >= 0.5)


def test_a_segmentation_of_several_images_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason=NEEDED)
    slices = [source_image(tmp_path / f"{n}.dcm", np.zeros(SHAPE, dtype=np.uint8), n) for n in range(2)]
    path = segmentation(tmp_path / "mask.dcm", MASK.repeat(2, axis=0), slices)
    with refused(DataError, "several_source_images", found=2):
        read_mask(path)


def test_a_damaged_segmentation_is_refused_and_names_no_one(tmp_path: Path) -> None:
    pytest.importorskip("highdicom", reason=NEEDED)
    content = segmentation(tmp_path / "mask.dcm", MASK, images(tmp_path)).read_bytes()
    assert b"SECRET" in content
    for size, code in (
        (60, "unsupported_file"),
        (400, "unsupported_file"),
        (900, "invalid_image_size"),
        (len(content) // 2, "invalid_image_size"),
        (len(content) - 20, "damaged_file"),
    ):
        (tmp_path / "SECRET.dcm").write_bytes(content[:size])
        with refused(DataError, code) as error:
            read_mask(tmp_path / "SECRET.dcm")
        assert "secret" not in f"{error.value}{error.value.fields}".lower()


def test_an_image_is_no_segmentation(tmp_path: Path) -> None:
    with refused(DataError, "unsupported_file", expected="DICOM-SEG"):
        read_mask(dicom(tmp_path / "image.dcm", np.zeros(SHAPE, dtype=np.uint8), SOPClassUID="1.2"))
    (tmp_path / "text.dcm").write_text("no DICOM")
    with refused(DataError, "unsupported_file", expected="DICOM"):
        read_mask(tmp_path / "text.dcm")


def test_without_the_package_the_message_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segmentations, "find_spec", lambda name: None)
    path = dicom(tmp_path / "mask.dcm", np.zeros(SHAPE, dtype=np.uint8), SOPClassUID="1.2.840.10008.5.1.4.1.1.66.4")
    with refused(DataError, "missing_package", extra="highdicom") as error:
        read_mask(path)
    assert "pip install 'medfl-monai[highdicom]', or export them as PNG" in str(error.value)
