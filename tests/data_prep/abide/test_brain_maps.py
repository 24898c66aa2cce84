"""Test maps for inference: wrong folders are reported, and no message names a subject."""

from __future__ import annotations

import nibabel
import numpy as np
from refusals import refused

from medfl.errors import DataError
from medfl.objectives import Multiclass
from medfl_datasets.abide.brain_maps import BrainMaps, load_maps, map_names

AFFINE = np.diag([15.0, 15.0, 15.0, 1.0])
AFFINE[:3, 3] = (-82.5, -100.5, -74.5)


def write(path, values=None):
    values = np.random.default_rng(0).random((12, 12, 12)) + 0.1 if values is None else values
    nibabel.save(nibabel.Nifti1Image(values.astype(np.float32), AFFINE), path)


def test_channels_are_in_the_order_of_the_derivatives(tmp_path):
    write(tmp_path / "Secret_0051_reho.nii.gz")
    write(tmp_path / "Secret_0051_lfcd.nii", np.random.default_rng(1).random((12, 12, 12)) + 0.1)
    image, other = (BrainMaps(tmp_path, names, 8, (0.0,), (1.0,))[0]["image"] for names in (PAIR, PAIR[::-1]))
    assert image.shape == (2, 8, 8, 8)
    assert np.array_equal(image[0], other[1])
    assert not np.array_equal(image[0], image[1])
    assert image.meta["filename_or_obj"] == "Secret_0051"


PAIR = ("reho", "lfcd")


def test_a_subject_without_all_maps_is_reported_by_number(tmp_path):
    for name in ("a_reho.nii.gz", "a_lfcd.nii.gz", "b_reho.nii.gz"):
        write(tmp_path / name)
    with refused(DataError, "missing_map", path=str(tmp_path), derivatives=list(PAIR), count=1, total=2, number=2):
        BrainMaps(tmp_path, PAIR, 8, (0.0,), (1.0,))


def test_a_broken_map_is_reported_by_number_and_derivative(tmp_path):
    write(tmp_path / "Secret_reho.nii.gz", np.full((12, 12, 12), np.nan))
    with refused(DataError, "not_finite", path=str(tmp_path), number=1, derivative="reho") as error:
        BrainMaps(tmp_path, ["reho"], 8, (0.0,), (1.0,))[0]
    assert "Secret" not in f"{error.value}{error.value.fields}"


def test_folders_without_maps_are_reported(tmp_path):
    with refused(DataError, "missing_folder", path=str(tmp_path / "none")):
        load_maps(tmp_path / "none", PAIR, 8, Multiclass(2))
    with refused(DataError, "no_images", path=str(tmp_path)):
        load_maps(tmp_path, PAIR, 8, Multiclass(2))


def test_without_data_the_configuration_keeps_its_names(tmp_path):
    assert map_names(tmp_path, PAIR) == ["reho", "lfcd"]
