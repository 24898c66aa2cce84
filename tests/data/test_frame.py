"""Test volumes on the grid of an array: orientation from left to right, and normalisation of each channel."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pytest
from monai.transforms import Compose, Invertd, SaveImaged
from series_maker import hounsfield, write_series

from medfl.data.readers.dicom_series import SeriesFiles
from medfl.data.readers.images import volume_grid
from medfl.data.transforms.frame import IMAGE, Frame, volume_files, volume_transforms


def read(path: Path, frame: Frame, values: np.ndarray, affine: np.ndarray) -> np.ndarray:
    """Write a file, and read it onto the frame: (C, D, H, W)."""
    nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), affine), path)
    return np.asarray(frame.fit(mask=False)(frame.read(mask=False)({IMAGE: str(path)}))[IMAGE])


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_axes_run_to_the_right_to_the_front_and_up(tmp_path, axis, sign):
    """The value of a voxel is its position in space along one axis, for each direction of the file's axis."""
    steps = np.ones(4)
    steps[axis] = sign
    places = np.broadcast_to(sign * np.arange(4).reshape([-1 if each == axis else 1 for each in range(3)]), (4, 4, 4))
    image = read(tmp_path / "image.nii.gz", Frame((4, 4, 4), window=(-4.0, 4.0)), places, np.diag(steps))
    assert (np.diff(image[0], axis=axis) > 0).all()


def test_each_channel_has_mean_0_and_deviation_1(tmp_path):
    values = np.random.default_rng(0).normal(size=(4, 5, 6, 2)) * (1.0, 50.0) + (3.0, -200.0)
    image = read(tmp_path / "image.nii.gz", Frame((4, 5, 6)), values, np.eye(4))
    assert image.shape == (2, 4, 5, 6)
    assert np.allclose(image.mean(axis=(1, 2, 3)), 0, atol=1e-5)
    assert np.allclose(image.std(axis=(1, 2, 3)), 1, atol=1e-4)


def test_a_prediction_returns_to_the_grid_of_its_series(tmp_path):
    """The steps of the bundle's inference.json, with the image itself as prediction."""
    folder = write_series(tmp_path / "in" / "1.2.840", hounsfield(), names="1.2.3.{}")
    read = volume_transforms((20, 12, 16), window=(-1000, 2000))
    (case,) = volume_files(tmp_path / "in")
    case = read(case)
    case["pred"] = case[IMAGE].clone()
    saved = {"output_dir": tmp_path / "out", "output_postfix": "mask", "output_ext": ".nii.gz", "resample": False}
    saved |= {"separate_folder": False, "data_root_dir": str(tmp_path / "in"), "print_log": False}
    Compose([Invertd("pred", read, "image", nearest_interp=False), SaveImaged("pred", **saved)])(case)
    (path,) = (tmp_path / "out").rglob("*.nii.gz")
    assert path.relative_to(tmp_path / "out") == Path("1.2.840/1.2.3.0_mask.nii.gz")
    drawn, grid = nibabel.load(path), volume_grid(SeriesFiles(tuple(sorted(folder.iterdir()))))
    np.testing.assert_allclose(drawn.affine, grid.affine, atol=1e-5)
    expected = (hounsfield().transpose(2, 1, 0)[::-1, ::-1] + 1000) / 3000
    np.testing.assert_allclose(drawn.get_fdata()[:, 2:14], expected[:, 2:14], atol=1e-3)  # the others were cut off
