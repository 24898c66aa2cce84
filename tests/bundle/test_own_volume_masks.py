"""Own CT of two spacings with masks, from an unsorted folder of series to the predicted mask of a new series."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import nibabel
import numpy as np
import pytest
from image_makers import nifti
from monai.bundle import run as monai_run
from pydicom import dcmread
from segmentation_maker import segmentation
from series_maker import CORONAL, hounsfield, write_series

from medfl.data.datalists import read_datalist
from medfl.data.ingest.folder_synthetic import write_table
from medfl.data.readers.dicom_series import SeriesFiles, read_series
from medfl.data.readers.images import read_voxels

COUNT = 8
"""Number of studies, at two hospitals."""

THICKNESS = (2.0, 2.5)
"""Distance of the slices, in millimetres, in studies with an even and with an odd number."""

BLANK = dict.fromkeys(("AccessionNumber", "StudyDate", "StudyTime", "StudyID", "PatientBirthDate", "PatientSex"), "")


@pytest.fixture
def unsorted(tmp_path: Path) -> tuple[Path, Path]:
    """Write the slices of all studies into one folder, and masks as DICOM-SEG or NIfTI; return it and the table."""
    folder, rows = tmp_path / "scans", []
    for number in range(COUNT):
        values, mask = hounsfield(seed=number), np.zeros((8, 16, 16), np.uint8)
        mask[2:6, 4:9, 3 + number % 4 : 11] = 1
        values[mask > 0] = 60
        study = {"StudyInstanceUID": f"2.25.{number + 700}", **BLANK, "SliceThickness": 2}
        spacing = (0.5, 0.75, THICKNESS[number % 2])
        write_series(folder, values, names=f"{number}-{{}}", spacing=spacing, **study)
        write_series(folder, values[:5], names=f"{number}-coronal-{{}}", directions=CORONAL, **study)
        paths = tuple(sorted(folder.glob(f"{number}-[0-9]")))
        if number % 2 and find_spec("highdicom"):
            slices = sorted((dcmread(path) for path in paths), key=lambda header: header.ImagePositionPatient[2])
            segmentation(folder / f"mask-{number}.dcm", mask[..., np.newaxis], slices)
        else:
            affine = read_series(paths).geometry.affine
            nifti(folder / f"mask-{number}.nii.gz", mask.transpose(2, 1, 0) * np.uint8(255), affine)
        rows.append((f"2.25.{number + 700}", f"mask-{number}", f"P{number}", "NS"[number // 4]))
    return folder, write_table(tmp_path / "t.csv", rows, ("study", "contours", "patient", "hospital"))


def test_from_an_unsorted_folder_to_the_mask_of_a_new_series(
    unsorted: tuple[Path, Path], medfl: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    folder, table = unsorted

    def succeed(*words: object) -> None:
        status, _, err = medfl(*words)
        assert status == 0, err

    columns = ("--image-column", "study", "--group-column", "patient", "--site-column", "hospital")
    options = ("--plane", "axial", "--window", "liver", "--spacing", "0.75,0.5,2", "--size", "16x16x10", "--workers", 1)
    words = ("prep", "folder", folder, "--table", table, *columns, "--target", "mask:contours", *options)
    succeed(*words, "--out", tmp_path / "P")
    slices = [4 if number % 2 == 0 else 5 for number in range(COUNT)]  # 8 mm, and 10 mm
    expected = sum(count * 5 * (8 - number % 4) for number, count in enumerate(slices))
    assert np.load(tmp_path / "P" / "masks.npy").sum() == expected
    words = ("partition", tmp_path / "P", "--out", tmp_path / "D", "--scheme", "by_site", "--column", "site")
    succeed(*words, "--test-fraction", 0.25, "--server-test", "none")
    words = ("run", "volume_segmentation", "--dataset-dir", tmp_path / "D", "--output-dir", tmp_path / "R")
    succeed(*words, "--rounds", 1, "--epochs", 1, "--width", 4, "--levels", 2)
    scores = json.loads((tmp_path / "R" / "summary.json").read_text())["scores"]["global"]["test"]
    assert 0 <= scores["dice"]["mean"] <= 1
    assert read_datalist(tmp_path / "P").goal.facts["spacing"] == [0.75, 0.5, 2.0]

    (tmp_path / "new").mkdir()
    for path in folder.glob("7-*"):
        shutil.copy(path, tmp_path / "new")
    home = tmp_path / "R" / "sites" / "N"
    assert json.loads((home / "configs" / "inference.json").read_text())["spacing"] == [0.75, 0.5, 2.0]
    places = {"bundle_root": str(home), "dataset_dir": str(tmp_path / "new"), "output_dir": str(tmp_path / "eval")}
    monai_run(config_file=str(home / "configs" / "inference.json"), **places)
    (path,) = (tmp_path / "eval").rglob("*_mask.nii.gz")  # no mask of the coronal series
    predicted = nibabel.load(path)
    voxels = read_voxels(SeriesFiles(tuple(sorted((tmp_path / "new").glob("7-[0-9]")))))
    assert predicted.shape == voxels.values.shape
    np.testing.assert_allclose(predicted.affine, voxels.affine, atol=1e-4)
    assert set(np.unique(predicted.get_fdata())) <= {0, 1}
