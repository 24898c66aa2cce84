"""Test DICOM series as volumes: order, position in space, and refusal of slices that form no regular grid."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from pydicom import dcmread
from pydicom.data import get_testdata_file
from pydicom.uid import JPEG2000Lossless, RLELossless
from refusals import refused
from series_maker import AXIAL, CORONAL, SAGITTAL, SPACING, hounsfield, write_enhanced, write_series

from medfl.data.readers.dicom_series import SeriesFiles, inspect_series, read_series
from medfl.data.readers.image_reading import SeriesChoice, make_image_reading
from medfl.data.readers.images import inspect_image, read_image, volume_grid
from medfl.data.readers.series_folder import choose_series, find_series
from medfl.data.readers.volumes import resized_spacing
from medfl.errors import DataError

HU = hounsfield()
OBLIQUE = tuple(round(float(cosine), 9) for cosine in np.linalg.qr(np.arange(9.0).reshape(3, 3) ** 2 - 7)[0].T[:2].flat)


def files(folder):
    return sorted(folder.iterdir())


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL, OBLIQUE])
def test_voxels_are_where_the_headers_put_them(tmp_path, directions):
    """Each voxel's value and position in space, computed from the header of its own file."""
    paths = files(write_series(tmp_path / "series", HU, directions=directions))
    volume = read_series(paths)
    assert volume.geometry.shape == volume.values.shape == (16, 16, 8)
    back = np.linalg.inv(volume.geometry.affine)
    for path in paths:
        header = dcmread(path)
        pixels = header.pixel_array.astype(float) - 1024
        row, column = np.array(header.ImageOrientationPatient[:3]), np.array(header.ImageOrientationPatient[3:])
        for i, j in ((0, 0), (3, 11), (15, 7)):
            place = np.array(header.ImagePositionPatient) + row * j * SPACING[1] + column * i * SPACING[0]
            voxel = back @ [-place[0], -place[1], place[2], 1]
            np.testing.assert_allclose(voxel[:2], (j, i), atol=1e-4)
            assert volume.values[tuple(np.round(voxel[:3]).astype(int))] == pixels[i, j]


@pytest.mark.parametrize("directions", [AXIAL, CORONAL, SAGITTAL, OBLIQUE])
def test_monai_and_highdicom_place_the_volume_alike(tmp_path, directions):
    from monai.data import PydicomReader

    folder = write_series(tmp_path / "series", HU, directions=directions)
    volume = read_series(files(folder))
    reader = PydicomReader(swap_ij=True)
    values, meta = reader.get_data(reader.read(str(folder)))
    other = nibabel.as_closest_canonical(nibabel.Nifti1Image(np.asarray(values, np.float32), meta["affine"]))
    mine = nibabel.as_closest_canonical(nibabel.Nifti1Image(volume.values, volume.geometry.affine))
    np.testing.assert_allclose(mine.affine, other.affine, atol=1e-4)
    np.testing.assert_array_equal(mine.get_fdata(), other.get_fdata())
    highdicom = pytest.importorskip("highdicom", reason="highdicom is not installed")
    third = highdicom.get_volume_from_series([dcmread(path) for path in files(folder)])
    ras = np.diag([-1.0, -1.0, 1.0, 1.0]) @ third.affine
    theirs = nibabel.as_closest_canonical(nibabel.Nifti1Image(third.array.astype(np.float32), ras))
    np.testing.assert_allclose(mine.affine, theirs.affine, atol=1e-4)


@pytest.mark.parametrize("syntax", [RLELossless, JPEG2000Lossless])
def test_compressed_series_hold_the_same_values(tmp_path, syntax):
    if syntax == JPEG2000Lossless:
        pytest.importorskip("openjpeg", reason="the extra 'dicom' is not installed")
    values = hounsfield((3, 64, 64))
    plain = read_series(files(write_series(tmp_path / "plain", values)))
    compressed = read_series(files(write_series(tmp_path / "compressed", values, syntax=syntax)))
    np.testing.assert_array_equal(compressed.values, plain.values)
    np.testing.assert_array_equal(plain.values, values.transpose(2, 1, 0))


def test_an_enhanced_file_is_the_volume_of_its_frames(tmp_path):
    plain = read_series(files(write_series(tmp_path / "plain", HU)))
    path = write_enhanced(tmp_path / "enhanced.dcm", HU[::-1], without=())
    origin = plain.geometry.affine[:3, 3] - [0, 0, 7 * SPACING[2]]
    enhanced = read_series([path])
    np.testing.assert_array_equal(enhanced.values, plain.values)  # its frames run down, slices always up
    np.testing.assert_allclose(enhanced.geometry.affine[:3, :3], plain.geometry.affine[:3, :3])
    np.testing.assert_allclose(enhanced.geometry.affine[:3, 3], origin)
    assert inspect_image(path).dims == 3
    np.testing.assert_array_equal(read_image(path, (16, 16, 8), 1), read_image(SeriesFiles((path,)), (16, 16, 8), 1))
    with refused(DataError, "several_frames", found=8):
        read_image(path, (16, 16), 1)
    slopes = [1 + frame for frame in range(8)]
    scaled = read_series([write_enhanced(tmp_path / "slopes.dcm", HU[::-1], slopes=slopes)])
    expected = (HU.astype(float) + 1024) * np.array(slopes[::-1])[:, None, None] - 1024
    np.testing.assert_allclose(scaled.values, expected.transpose(2, 1, 0))


def test_real_files_with_several_frames():
    path = Path(get_testdata_file("eCT_Supplemental.dcm"))
    volume, header = read_series([path]), dcmread(path)
    assert volume.values.shape == (512, 512, 2)
    first = header.PerFrameFunctionalGroupsSequence[0].PlanePositionSequence[0].ImagePositionPatient
    place = np.linalg.inv(volume.geometry.affine) @ [-first[0], -first[1], first[2], 1]
    np.testing.assert_allclose(place[:2], 0, atol=1e-4)
    frame = volume.values[..., round(place[2])].T
    rescaling = header.SharedFunctionalGroupsSequence[0].get("PixelValueTransformationSequence") or (
        header.PerFrameFunctionalGroupsSequence[0].PixelValueTransformationSequence
    )
    slope, intercept = float(rescaling[0].RescaleSlope), float(rescaling[0].RescaleIntercept)
    np.testing.assert_allclose(frame, header.pixel_array[0] * slope + intercept)
    with refused(DataError, "several_frames", found=10):  # no positions
        inspect_series([Path(get_testdata_file("emri_small.dcm"))])


def place(number, move=0.0):
    return [-10.0, 20.0, 30.0 + SPACING[2] * number + move]


@pytest.mark.parametrize(
    ("tags", "code", "fields"),
    [
        ({"shift": (0, 0.3, 0)}, "gantry_tilt", {"degrees": 8.53}),
        ({"ImagePositionPatient": lambda n: place(n + (n > 3))}, "missing_slices", {"count": 1, "spacing": 2.0}),
        ({"ImagePositionPatient": lambda n: place(n // 2)}, "duplicate_slices", {"count": 4}),
        ({"ImagePositionPatient": lambda n: place(n, 0.7 * (n == 3))}, "uneven_spacing", {}),
        ({"ImagePositionPatient": None}, "missing_element", {"name": "ImagePositionPatient"}),
        ({"ImageOrientationPatient": None}, "missing_element", {"name": "ImageOrientationPatient"}),
        ({"PixelSpacing": None}, "missing_element", {"name": "PixelSpacing"}),
        ({"PixelSpacing": lambda n: [0.5 + 0.1 * (n == 2), 0.75]}, "mixed_spacing", {"minimum": 0.5, "maximum": 0.75}),
        ({"ImageOrientationPatient": lambda n: list(AXIAL if n else CORONAL)}, "mixed_orientation", {}),
        ({"ImageOrientationPatient": [1, 0, 0, 1, 0, 0]}, "invalid_orientation", {}),
        ({"PixelSpacing": [0, 0.75]}, "invalid_spacing", {}),
        ({"PhotometricInterpretation": lambda n: "MONOCHROME1" if n else "MONOCHROME2"}, "mixed_formats", {}),
    ],
)
def test_slices_that_form_no_regular_grid_are_refused(tmp_path, tags, code, fields):
    paths = files(write_series(tmp_path / "SECRET", HU, **tags))
    for read in (inspect_series, read_series):
        with refused(DataError, code, **fields) as error:
            read(paths)
        assert "secret" not in f"{error.value}{error.value.fields}".lower()


def test_slices_of_several_sizes_and_single_slices_are_refused(tmp_path):
    large = files(write_series(tmp_path / "a", HU))
    small = files(write_series(tmp_path / "b", HU[:, :8]))
    with refused(DataError, "mixed_sizes", found=[[8, 16], [16, 16]]):
        inspect_series([*large, *small])
    with refused(DataError, "single_slice", found=1):
        inspect_series(large[:1])


def test_a_rounded_position_is_no_missing_slice(tmp_path):
    tags = {"ImagePositionPatient": lambda n: place(n, 0.008 * (-1) ** n)}
    assert read_series(files(write_series(tmp_path / "a", HU, **tags))).values.shape == (16, 16, 8)


def test_the_array_runs_from_left_to_right_back_to_front_and_feet_to_head(tmp_path):
    paths = tuple(files(write_series(tmp_path / "series", HU)))
    unit = read_image(SeriesFiles(paths), (16, 16, 8), 1)
    expected = (HU.transpose(2, 1, 0)[::-1, ::-1].astype(np.float32) - HU.min()) / (HU.max() - HU.min())
    np.testing.assert_allclose(unit, expected, atol=1e-6)  # LPS columns run to the left, rows to the back
    grid = volume_grid(SeriesFiles(paths))
    np.testing.assert_allclose(grid.affine[:3, :3], np.diag([0.75, 0.5, 2.0]))
    assert grid.shape == (16, 16, 8)
    assert resized_spacing(grid, (8, 16, 4)) == (1.5, 0.5, 4.0)


def test_each_slice_has_its_own_slope(tmp_path):
    paths = files(write_series(tmp_path / "series", HU, RescaleSlope=lambda n: 1 + n, RescaleIntercept=-5))
    expected = (HU.astype(float) + 1024) * np.arange(1, 9)[:, None, None] - 5
    np.testing.assert_allclose(read_series(paths).values, expected.transpose(2, 1, 0))


# ---- folders that no one sorted


def test_real_files_of_several_scanners_in_one_folder():
    series = find_series(Path(get_testdata_file("DICOMDIR")).parent)
    assert [item.modality for item in series] == ["CR"] * 3 + ["CT"] * 3 + ["MR"] * 7
    assert [(item.plane, item.slices) for item in series[3:6]] == [("axial", 4), ("mixed", 2), ("axial", 5)]
    with refused(DataError, "missing_slices", spacing=1.25):
        read_series(series[3].paths)
    with refused(DataError, "mixed_orientation"):
        read_series(series[4].paths)
    assert read_series(series[5].paths).geometry.shape == (16, 16, 5)


@pytest.fixture
def study(tmp_path):
    """A study in one folder without file name suffixes: an axial and a coronal CT, an MR of another patient, others."""
    folder = tmp_path / "study"
    same = {"StudyInstanceUID": "1.2.3.4"}
    write_series(folder, HU, names="A{}", SeriesInstanceUID="1.2.3.4.1", **same)
    write_series(folder, HU[:5], directions=CORONAL, names="B{}", SeriesInstanceUID="1.2.3.4.2", **same)
    write_series(folder / "deep", HU[:3], names="C{}", Modality="MR", SeriesInstanceUID="1.2.3.4.3")
    write_series(folder / "deep", HU[:1], names="D{}", Modality="SEG", **same)
    (folder / "README").write_text("no DICOM")
    (folder / ".hidden").write_bytes((folder / "A0").read_bytes())
    return folder


def test_series_are_found_in_a_mixed_folder(study):
    series = find_series(study)
    assert [(item.modality, item.plane, item.slices, item.spacing) for item in series] == [
        ("CT", "axial", 8, SPACING),
        ("CT", "coronal", 5, SPACING),
        ("MR", "axial", 3, SPACING),
    ]
    assert "Sally" not in f"{series}{[item.describe() for item in series]}"


@pytest.mark.parametrize(
    ("choice", "chosen"),
    [
        ({"plane": "coronal"}, 1),
        ({"modality": "MR"}, 2),
        ({"plane": "axial", "modality": "CT"}, 0),
        ({"plane": "axial", "modality": "CT", "description": "thorax$"}, 0),
    ],
)
def test_a_series_is_chosen_by_conditions(study, choice, chosen):
    series = find_series(study)
    assert choose_series(series, SeriesChoice(**choice)) is series[chosen]


def test_a_choice_that_is_not_unique_lists_the_candidates_without_their_descriptions(study):
    series = find_series(study)
    listed = ["CT axial, 8 slices of 0.5x0.75x2 mm", "MR axial, 3 slices of 0.5x0.75x2 mm"]
    with refused(DataError, "ambiguous_series", count=2, candidates=listed) as error:
        choose_series(series, SeriesChoice(plane="axial"))
    assert f"1: {listed[0]}; 2: {listed[1]}" in str(error.value)
    with refused(DataError, "no_series") as error:
        choose_series(series, SeriesChoice(description="Tom"))
    assert len(error.value.fields["candidates"]) == 3
    assert "sally" not in str(error.value).lower()
    with refused(DataError, "no_series"):
        choose_series([], SeriesChoice())


@pytest.mark.parametrize("share", [0.3, 0.55, 0.7])
def test_a_damaged_file_is_no_reason_to_read_a_shorter_volume(study, share):
    path = study / "A7"
    content = path.read_bytes()
    path.write_bytes(content[: int(content.index(b"\xe0\x7f\x10\x00") * share)])
    with refused(DataError, "damaged_file", size=path.stat().st_size) as error:
        find_series(study)
    assert f"-size {path.stat().st_size}c" in str(error.value)
    assert path.name not in str(error.value)


# ---- scale of grey values


def test_a_window_is_in_hounsfield_units(tmp_path):
    paths = tuple(files(write_series(tmp_path / "series", HU)))
    unit = read_image(SeriesFiles(paths), (16, 16, 8), 1, make_image_reading(window="lung"))
    expected = np.clip((HU.transpose(2, 1, 0)[::-1, ::-1] + 1350) / 1500, 0, 1)
    np.testing.assert_allclose(unit, expected, atol=1e-6)
    for tags, name in (({"RescaleIntercept": None}, "RescaleIntercept"), ({"RescaleType": "US"}, "RescaleType")):
        without = tuple(files(write_series(tmp_path / name, HU, **tags)))
        for read in (inspect_image, lambda source, reading: read_image(source, (16, 16, 8), 1, reading)):
            with refused(DataError, "missing_element", name=name):
                read(SeriesFiles(without), reading=make_image_reading(window="lung"))
            with refused(DataError, "missing_element", name=name):
                inspect_image(without[0], reading=make_image_reading(window="lung"))
        assert read_image(SeriesFiles(without), (16, 16, 8), 1, make_image_reading(window="0,100")).any()
    slice_alone = read_image(paths[0], (16, 16), 1, make_image_reading(window="40,80"))
    np.testing.assert_allclose(slice_alone, np.clip(HU[0] / 80, 0, 1), atol=1e-6)
