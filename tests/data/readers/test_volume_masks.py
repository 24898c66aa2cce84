"""Test masks of volumes: NIfTI, DICOM-SEG and RTSTRUCT on the grid of their image, against closed forms."""

from __future__ import annotations

import math
from pathlib import Path

import nibabel
import numpy as np
import pytest
from image_makers import dicom, nifti
from pydicom import dcmread
from refusals import refused
from segmentation_maker import segmentation
from series_maker import AXIAL, CORONAL, SAGITTAL, hounsfield, write_series
from structure_maker import circle, rectangle, write_structures

from medfl.data.readers import segmentations
from medfl.data.readers.dicom_series import SeriesFiles, read_series
from medfl.data.readers.images import read_voxels, volume_grid
from medfl.data.readers.itk_files import itk_states_position
from medfl.errors import DataError

SHAPE = (8, 16, 16)
MASK = np.zeros(SHAPE, dtype=np.uint8)  # (slices, rows, columns)
MASK[2:5, 4:9, 3:12] = 1
MASK[3:7, 8:14, 10:13] = 2

BLANK = dict.fromkeys(("AccessionNumber", "StudyDate", "StudyTime", "StudyID", "PatientBirthDate", "PatientSex"), "")
BLANK |= {"SliceThickness": 2}


def series(folder: Path, shape=SHAPE, **options) -> SeriesFiles:
    return SeriesFiles(tuple(sorted(write_series(folder, hounsfield(shape), **BLANK, **options).iterdir())))


def read_volume_mask(*arguments, **options) -> np.ndarray:
    return segmentations.read_volume_mask(*arguments, **options).values


def canonical(mask: np.ndarray) -> np.ndarray:
    """Axial slices (slices, rows, columns) as (D, H, W)."""
    return mask.transpose(2, 1, 0)[::-1, ::-1]


def in_file_order(image: SeriesFiles, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The mask as a NIfTI tool writes it for the series: (columns, rows, slices), with the affine of the series."""
    return mask.transpose(2, 1, 0), read_series(image.paths).geometry.affine


# ---- NIfTI


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL])
def test_a_mask_with_the_axes_of_its_image_or_others_lands_on_the_same_voxels(tmp_path, directions):
    image = series(tmp_path / "image", directions=directions)
    values, affine = in_file_order(image, MASK)
    mask = read_volume_mask(nifti(tmp_path / "mask.nii.gz", values, affine), image, ("liver", "tumour"))
    assert mask.dtype == np.uint8
    assert mask.shape == volume_grid(image).shape
    marked = read_voxels(image).values[mask == 2]
    np.testing.assert_array_equal(np.sort(marked), np.sort(read_series(image.paths).values[values == 2]))
    turn = np.array([[0, -1.0, 0, 15], [1, 0, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]])  # voxel (i, j) is (15 - j, i)
    turned = np.array([[values[15 - j, i] for j in range(16)] for i in range(16)])
    same = read_volume_mask(nifti(tmp_path / "turned.nii", turned, affine @ turn), image, ("liver", "tumour"))
    np.testing.assert_array_equal(same, mask)
    binary = nifti(tmp_path / "binary.nii", (turned > 0).astype(np.uint8) * np.uint8(255), affine @ turn)
    np.testing.assert_array_equal(read_volume_mask(binary, image), mask > 0)
    with refused(DataError, "ambiguous_mask", count=2):
        read_volume_mask(tmp_path / "turned.nii", image)
    with refused(DataError, "not_finite"):
        read_volume_mask(nifti(tmp_path / "nan.nii", np.where(turned > 0, np.nan, 0), affine @ turn), image)


def test_a_mask_may_cover_a_part_of_its_image_but_not_reach_beyond(tmp_path):
    image = series(tmp_path / "image")
    values, affine = in_file_order(image, MASK)
    part = affine.copy()
    part[:3, 3] = (affine @ [2, 3, 1, 1])[:3]
    read = read_volume_mask(nifti(tmp_path / "part.nii", values[2:14, 3:15, 1:8], part), image, ("a", "b"))
    np.testing.assert_array_equal(read, canonical(MASK))
    part[:3, 3] = (affine @ [9, 3, 1, 1])[:3]
    with refused(DataError, "mask_outside_image") as error:
        read_volume_mask(nifti(tmp_path / "beyond.nii", values[2:14, 3:15, 1:8], part), image, ("a", "b"))
    outside = values[9:14, 3:15, 1:8] > 0  # columns 9 to 13 come to lie at 16 to 20 of 0 to 15
    assert error.value.fields["share"] == pytest.approx(outside.sum() / (values > 0).sum())
    assert error.value.fields["distance_mm"] == pytest.approx((12 + 7 - 15.5) * 0.75)  # the last marked column is 12


def test_an_empty_mask_belongs_to_its_image_if_their_boxes_meet(tmp_path):
    image = series(tmp_path / "image")
    affine = read_series(image.paths).geometry.affine
    for shift, code in ((-12, None), (-20, "mask_outside_image"), (12, None), (20, "mask_outside_image")):
        moved = affine.copy()
        moved[:3, 3] = (affine @ [shift, 0, 0, 1])[:3]
        path = nifti(tmp_path / f"{shift}.nii", np.zeros((16, 16, 8), np.uint8), moved)
        if code is None:
            assert not read_volume_mask(path, image).any()
            continue
        with refused(DataError, code, distance_mm=pytest.approx((abs(shift) - 15.5) * 0.75)):
            read_volume_mask(path, image)


def test_a_mask_on_another_grid_is_refused_or_resampled_to_the_nearest_voxel(tmp_path):
    image = series(tmp_path / "image")
    values, affine = in_file_order(image, MASK)
    fine = affine @ np.array([[0.5, 0, 0, -0.25], [0, 0.5, 0, -0.25], [0, 0, 0.5, -0.25], [0, 0, 0, 1]])
    path = nifti(tmp_path / "fine.nii", values.repeat(2, 0).repeat(2, 1).repeat(2, 2), fine)
    with refused(DataError, "misaligned_mask"):
        read_volume_mask(path, image, ("a", "b"))
    np.testing.assert_array_equal(read_volume_mask(path, image, ("a", "b"), resample=True), canonical(MASK))
    shifted = affine.copy()
    shifted[0, 3] += 0.2
    with refused(DataError, "misaligned_mask"):
        read_volume_mask(nifti(tmp_path / "shifted.nii", values, shifted), image, ("a", "b"))
    shifted[0, 3] = affine[0, 3] + 0.02  # rounding of positions
    near = read_volume_mask(nifti(tmp_path / "r.nii", values, shifted), image, ("a", "b"))
    np.testing.assert_array_equal(near, canonical(MASK))
    assert segmentations.read_volume_mask(path, image, ("a", "b"), resample=True).is_resampled
    assert not segmentations.read_volume_mask(tmp_path / "r.nii", image, ("a", "b"), resample=True).is_resampled


def test_a_mask_is_resampled_only_if_both_files_state_their_position_and_no_structure_disappears(tmp_path):
    image = series(tmp_path / "image")
    values, affine = in_file_order(image, MASK)
    fine = affine @ np.array([[0.5, 0, 0, -0.25], [0, 0.5, 0, -0.25], [0, 0, 0.5, -0.25], [0, 0, 0, 1]])
    finer = values.repeat(2, 0).repeat(2, 1).repeat(2, 2)
    finer[finer == 2] = 0
    finer[1, 1, 1] = 2
    speck = nifti(tmp_path / "speck.nii", finer, fine)
    with refused(DataError, "lost_structure", structures=[2]):
        read_volume_mask(speck, image, ("a", "b"), resample=True)
    unplaced = nibabel.load(nifti(tmp_path / "unplaced.nii", values[:8], np.diag([1, 1, 1, 1.0])))
    unplaced.header["qform_code"] = unplaced.header["sform_code"] = 0
    nibabel.save(nibabel.Nifti1Image(np.asarray(unplaced.dataobj), None, unplaced.header), tmp_path / "unplaced.nii")
    with refused(DataError, "missing_affine", what="mask"):
        read_volume_mask(tmp_path / "unplaced.nii", image, ("a", "b"), resample=True)
    with refused(DataError, "missing_affine", what="image"):
        read_volume_mask(speck, tmp_path / "unplaced.nii", ("a", "b"), resample=True)


@pytest.mark.parametrize(
    ("name", "header", "states"),
    [
        (
            "a.nrrd",
            "NRRD0004\nspace: left-posterior-superior\nspace directions: (1,0,0)\nspace origin: (0,0,0)\n\n",
            True,
        ),
        ("a.nrrd", "NRRD0004\nspacings: 1 1 1\n\n", False),
        ("a.mha", "NDims = 3\nOffset = 0 0 0\nElementSpacing = 1 1 1\nElementDataFile = LOCAL\n", True),
        ("a.mha", "NDims = 3\nElementSpacing = 1 1 1\nElementDataFile = LOCAL\n", False),
    ],
)
def test_headers_of_itk_files_that_state_no_position_are_found(tmp_path, name, header, states):
    (tmp_path / name).write_text(header)
    assert itk_states_position(tmp_path / name) is states


def test_voxels_that_hold_no_structure_are_refused(tmp_path):
    image = series(tmp_path / "image")
    values, affine = in_file_order(image, MASK)
    with refused(DataError, "wrong_label", found=2, maximum=1):
        read_volume_mask(nifti(tmp_path / "a.nii", values, affine), image, ("liver",))
    with refused(DataError, "wrong_label", found=0.5):
        read_volume_mask(nifti(tmp_path / "b.nii", values * np.float32(0.5), affine), image, ("liver",))
    with refused(DataError, "too_many_structures", found=256):
        read_volume_mask(tmp_path / "a.nii", image, [str(number) for number in range(256)])


# ---- DICOM-SEG


def write_segmentation(path: Path, image: SeriesFiles, mask: np.ndarray, kind: str = "BINARY") -> Path:
    """Segments ``lesion 0`` and ``lesion 1`` in the slices of the image that have any."""
    pytest.importorskip("highdicom", reason="highdicom is not installed (pip install 'medfl-monai[highdicom]')")
    ordered = sorted(image.paths, key=lambda file: float(dcmread(file).ImagePositionPatient[2]))
    used = [number for number in range(len(mask)) if mask[number].any()] or [0]
    segments = np.stack([mask == 1, mask == 2], axis=-1)[used]
    values = segments.astype(np.float64 if kind == "FRACTIONAL" else np.uint8)
    return segmentation(path, values, [dcmread(ordered[number]) for number in used], kind)


@pytest.mark.parametrize("kind", ["BINARY", "FRACTIONAL", "LABELMAP"])
def test_segments_land_on_the_voxels_of_their_image(tmp_path, kind):
    image = series(tmp_path / "image")
    path = write_segmentation(tmp_path / "seg.dcm", image, MASK, kind)
    np.testing.assert_array_equal(read_volume_mask(path, image, ("Lesion 0", "lesion 1")), canonical(MASK))
    np.testing.assert_array_equal(read_volume_mask(path, image), canonical(MASK) > 0)
    np.testing.assert_array_equal(read_volume_mask(path, image, ("lesion 1",)), canonical(MASK) == 2)
    with refused(DataError, "missing_structure", expected=["liver"], count=2):
        read_volume_mask(path, image, ("liver",))
    values, affine = in_file_order(image, hounsfield(SHAPE))
    copy = nifti(tmp_path / "image.nii", values, affine)  # the same image, converted
    np.testing.assert_array_equal(read_volume_mask(path, copy, ("lesion 0", "lesion 1")), canonical(MASK))


def test_a_mask_of_another_study_is_refused(tmp_path):
    image, other = series(tmp_path / "image"), series(tmp_path / "other")
    path = write_segmentation(tmp_path / "seg.dcm", other, MASK)
    with refused(DataError, "other_frame_of_reference"):
        read_volume_mask(path, image)
    with refused(DataError, "unsupported_file"):
        read_volume_mask(dicom(tmp_path / "a.dcm", hounsfield()[0].astype(np.uint16), SOPClassUID="1.2"), image)
    with refused(DataError, "unsupported_file"):
        (tmp_path / "a.png").write_bytes(b"no mask")
        read_volume_mask(tmp_path / "a.png", image)


# ---- RTSTRUCT


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL])
def test_contours_of_boxes_fill_exactly_their_voxels(tmp_path, directions):
    image = series(tmp_path / "image", directions=directions)
    boxes = {
        "Liver": [rectangle((2.5, 11.5), (3.5, 8.5), number) for number in (2, 3, 4)],
        "Tumour ": [rectangle((9.5, 12.5), (7.5, 13.5), number) for number in (3, 4, 5, 6)],
    }
    path = write_structures(tmp_path / "rt.dcm", image, boxes)
    values, affine = in_file_order(image, MASK)
    expected = read_volume_mask(nifti(tmp_path / "mask.nii", values, affine), image, ("liver", "tumour"))
    np.testing.assert_array_equal(read_volume_mask(path, image, ("liver", "tumour")), expected)


def test_a_donut_has_the_area_of_its_ring(tmp_path):
    """Two circles of one structure in a slice: the area between them, in mm2, and a hole in the middle."""
    image = series(tmp_path / "image", (3, 128, 128), spacing=(0.5, 0.5, 2.0))
    ring = [circle((63.3, 61.7), 50, 1), circle((63.3, 61.7), 20, 1)]
    mask = read_volume_mask(write_structures(tmp_path / "rt.dcm", image, {"ring": ring}), image)
    area = mask.sum() * 0.5 * 0.5
    assert area == pytest.approx(math.pi * (25**2 - 10**2), rel=0.005)
    assert mask.any(axis=(0, 1)).tolist() == [False, True, False]
    assert not mask[127 - 63, 127 - 62, 1]
    keyhole = np.concatenate([part for line in ring for part in (line, line[:1])])  # one line around both
    same = read_volume_mask(write_structures(tmp_path / "key.dcm", image, {"ring": [keyhole]}), image)
    assert (same != mask).sum() <= 40  # voxels whose centres the bridge touches


def test_a_ball_has_its_volume_in_millilitres(tmp_path):
    image = series(tmp_path / "image", (40, 80, 80), spacing=(0.5, 0.5, 1.0))
    radius, slices = 18.0, range(2, 38)
    contours = [circle((40, 40), math.sqrt(radius**2 - (number - 19.6) ** 2) * 2, number) for number in slices]
    mask = read_volume_mask(write_structures(tmp_path / "rt.dcm", image, {"ball": contours}), image)
    voxel = abs(np.linalg.det(volume_grid(image).affine[:3, :3])) / 1000
    assert mask.sum() * voxel == pytest.approx(4 / 3 * math.pi * radius**3 / 1000, rel=0.01)


def test_contours_outside_of_slices_or_of_the_image_are_refused(tmp_path):
    image = series(tmp_path / "image")
    for number, (contour, code) in enumerate(
        (
            (rectangle((2.5, 8.5), (2.5, 8.5), 2.4), "misaligned_mask"),
            (
                rectangle((2.5, 8.5), (2.5, 8.5), 2) + np.array([[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 0, 0]]),
                "misaligned_mask",
            ),
            (rectangle((2.5, 18.5), (2.5, 8.5), 2), "mask_outside_image"),
            (rectangle((2.5, 8.5), (2.5, 8.5), 9), "mask_outside_image"),
        )
    ):
        path = write_structures(tmp_path / f"{number}.dcm", image, {"SECRET": [contour]})
        with refused(DataError, code) as error:
            read_volume_mask(path, image)
        assert "secret" not in f"{error.value}{error.value.fields}".lower()
    near = read_volume_mask(tmp_path / "0.dcm", image, resample=True)
    assert near.sum() == 36
    path = write_structures(tmp_path / "other.dcm", image, {"a": [rectangle((2.5, 8.5), (2.5, 8.5), 2)]}, frame="1.2.3")
    with refused(DataError, "other_frame_of_reference"):
        read_volume_mask(path, image)
    with refused(DataError, "missing_structure", expected=["b"], count=1):
        read_volume_mask(path, image, ("b",))
    points = write_structures(tmp_path / "points.dcm", image, {"a": [rectangle((2, 8), (2, 8), 2)]}, kind="POINT")
    assert not read_volume_mask(points, image).any()
