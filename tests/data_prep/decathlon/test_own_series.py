"""Test a user's own folder in the Decathlon's layout: DICOM series with masks as DICOM-SEG, RTSTRUCT or NIfTI."""

from __future__ import annotations

import json

import numpy as np
import pytest
from image_makers import nifti
from pydicom import dcmread
from refusals import refused
from segmentation_maker import segmentation
from series_maker import hounsfield, write_series
from structure_maker import rectangle, write_structures

from medfl.data.datalists import read_datalist
from medfl.data.ingest.prepare import prepare
from medfl.data.readers.dicom_series import SeriesFiles, read_series
from medfl.data.transforms.frame import volume_files, volume_transforms
from medfl.errors import DataError
from medfl_datasets.decathlon.spec import Decathlon

BLANK = dict.fromkeys(("AccessionNumber", "StudyDate", "StudyTime", "StudyID", "PatientBirthDate", "PatientSex"), "")
MASK = np.zeros((8, 16, 16), dtype=np.uint8)  # (slices, rows, columns)
MASK[2:5, 4:9, 3:12] = 1
MASK[5:7, 8:14, 10:13] = 2


@pytest.fixture
def task(tmp_path):
    """Three cases of one volume and one mask: series with RTSTRUCT, series with NIfTI, and NIfTI with RTSTRUCT."""
    folder = tmp_path / "task"
    series = write_series(folder / "ct" / "secret-a", hounsfield(), **BLANK, SliceThickness=2)
    write_series(folder / "ct" / "secret-b", hounsfield(), **BLANK)
    image = SeriesFiles(tuple(sorted(series.iterdir())))
    affine = read_series(image.paths).geometry.affine
    nifti(folder / "c.nii.gz", hounsfield().transpose(2, 1, 0), affine)
    nifti(folder / "b_mask.nii.gz", MASK.transpose(2, 1, 0), affine)
    boxes = {
        "LIVER": [rectangle((2.5, 11.5), (3.5, 8.5), number) for number in (2, 3, 4)],
        "tumour": [rectangle((9.5, 12.5), (7.5, 13.5), number) for number in (5, 6)],
    }
    write_structures(folder / "rt.dcm", image, boxes)
    write_structures(folder / "rt_c.dcm", image, boxes)
    write_list(folder, [("ct/secret-a", "rt.dcm"), ("ct/secret-b", "b_mask.nii.gz"), ("c.nii.gz", "rt_c.dcm")])
    return folder


def write_list(folder, cases):
    values = {
        "labels": {"0": "background", "1": "liver", "2": "tumour"},
        "training": [{"image": image, "label": label} for image, label in cases],
    }
    (folder / "dataset.json").write_text(json.dumps(values))


def test_series_and_files_with_any_mask_give_the_same_rows_with_their_spacing(task, tmp_path):
    spec = Decathlon(source=task, window="40,400", size=(16, 16, 16))
    prepare(spec, tmp_path / "P", workers=1, say=lambda line: None)
    images, masks = np.load(tmp_path / "P" / "images.npy"), np.load(tmp_path / "P" / "masks.npy")
    datalist = read_datalist(tmp_path / "P")
    assert datalist.objective["spacing"] == [0.75, 0.5, 2.0]
    assert b"secret" not in (tmp_path / "P" / "datalist.json").read_bytes().lower()
    values = np.clip((hounsfield().transpose(2, 1, 0)[::-1, ::-1] + 160) / 400, 0, 1)
    expected = np.pad(values, ((0, 0), (0, 0), (4, 4)))
    for row in range(3):
        np.testing.assert_allclose(images[row], expected, atol=1e-5)
        np.testing.assert_array_equal(masks[row], np.pad(MASK.transpose(2, 1, 0)[::-1, ::-1], ((0, 0), (0, 0), (4, 4))))
    millilitres = (masks[0] == 1).sum() * np.prod(datalist.objective["spacing"]) / 1000
    assert millilitres == pytest.approx((9 * 0.75) * (5 * 0.5) * (3 * 2.0) / 1000)

    read = volume_transforms((16, 16, 16), window=(-160.0, 240.0))  # as inference.json does
    for folder, count in ((task / "ct", 2), (task, 3)):
        cases = volume_files(folder)
        assert len(cases) == count + (folder == task)  # a NIfTI mask is a volume, too
        for case in cases[:count]:
            if "mask" not in str(case):
                np.testing.assert_allclose(read(case)["image"][0].numpy(), expected, atol=1e-5)


def test_a_dicom_segmentation_is_the_mask_of_its_series(task, tmp_path):
    pytest.importorskip("highdicom", reason="highdicom is not installed (pip install 'medfl-monai[highdicom]')")
    slices = [dcmread(path) for path in (task / "ct" / "secret-a").iterdir()]
    slices = sorted(slices, key=lambda header: float(header.ImagePositionPatient[2]))
    segments = np.stack([MASK == 1, MASK == 2], axis=-1).astype(np.uint8)
    segmentation(task / "seg.dcm", segments[2:7], slices[2:7])
    values = json.loads((task / "dataset.json").read_text())
    values["training"], values["labels"] = [{"image": "ct/secret-a", "label": "seg.dcm"}], {}
    values["labels"] = {"0": "background", "1": "lesion 0", "2": "lesion 1"}
    (task / "dataset.json").write_text(json.dumps(values))
    prepare(Decathlon(source=task, size=(16, 16, 8)), tmp_path / "P", workers=1, say=lambda line: None)
    masks = np.load(tmp_path / "P" / "masks.npy")
    np.testing.assert_array_equal(masks[0], MASK.transpose(2, 1, 0)[::-1, ::-1])


def test_a_folder_without_one_series_is_named_by_its_case(task, tmp_path):
    write_list(task, [("c.nii.gz", "rt_c.dcm"), ("ct", "rt.dcm")])
    with refused(DataError, "ambiguous_series", count=2) as error:
        prepare(Decathlon(source=task), tmp_path / "P", workers=1, say=lambda line: None)
    assert str(error.value).startswith("case 2 ")
    assert "secret" not in str(error.value)
