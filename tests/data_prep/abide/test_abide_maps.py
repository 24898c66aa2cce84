"""ABIDE maps: where they are found, and how they are normalised and resampled."""

from __future__ import annotations

import shutil

import numpy as np
import pytest
from abide_maker import TWO, copied, make_release, save, used_rows
from refusals import refused

from medfl.data.readers.volumes import common_grid
from medfl.errors import DataError, SettingsError
from medfl_datasets.abide.files import MapSelection, file_name, find_maps, no_maps_error
from medfl_datasets.abide.map_files import normalised, read_map

GRID = common_grid(16)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make_release(tmp_path_factory.mktemp("abide") / "R")


@pytest.fixture
def release(made, tmp_path):
    return copied(made, tmp_path / "R")


def place():
    """Return the affine of a map with 12 voxels an edge over the common cube, whose first axis points left."""
    affine = np.diag([-16.0, 16, 16, 1])
    affine[:3, 3] = (88, -106, -80)
    return affine


def head(values):
    """Draw a ball of random values, with 0 around it."""
    centre = np.indices(values.shape) - (np.array(values.shape).reshape(3, 1, 1, 1) - 1) / 2
    return np.where((centre**2).sum(axis=0) < 16, values, 0)


def ids(release):
    return [row["FILE_ID"] for row in used_rows(release)]


def rearranged(release, layout):
    """Copy the files into another layout, and return the folder to use as source."""
    files = sorted(release.rglob("*_*.nii.gz"))
    files = [path for path in files if path.parent != release]
    top, below = {
        "nilearn": (release, "ABIDE_pcp/cpac/filt_noglobal"),
        "inside nilearn": (release / "ABIDE_pcp", "cpac/filt_noglobal"),
        "flat": (release / "flat", ""),
        "above the bucket": (release, "ABIDE_Initiative/Outputs/cpac/filt_noglobal/{}"),
        "inside the bucket": (release / "Outputs", "cpac/filt_noglobal/{}"),
    }[layout]
    for path in files:
        target = top / below.format(path.parent.name) / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        path.rename(target)
    if layout != "inside the bucket":
        shutil.rmtree(release / "Outputs")
    return top


@pytest.mark.parametrize("layout", ["nilearn", "inside nilearn", "flat", "above the bucket", "inside the bucket"])
def test_all_layouts_hold_the_same_maps(release, layout):
    names = ids(release)
    before = {key: path.name for key, path in find_maps(release, TWO, names).items()}
    assert len(before) == 2 * len(names)
    after = find_maps(rearranged(release, layout), TWO, names)
    assert {key: path.name for key, path in after.items()} == before


def test_what_is_no_map_is_not_taken(release):
    names = ids(release)
    first = find_maps(release, TWO, names)[names[0], "reho"]
    first.rename(first.with_name(f"{names[0]}_reho.nii.gz.part"))
    first.with_name(f"._{names[0]}_reho.nii.gz").write_bytes(b"")
    (first.parent / f"{names[1]}_reho").mkdir()
    maps = find_maps(release, TWO, names)
    assert (names[0], "reho") not in maps
    assert len(maps) == 2 * len(names) - 1
    first.with_name(f"{names[0]}_reho.nii").write_bytes(b"")
    assert find_maps(release, TWO, names)[names[0], "reho"].suffix == ".nii"


def test_nothing_found_says_where_and_what_is_there_instead(release):
    other = MapSelection(("reho",), strategy="filt_global")
    assert not find_maps(release, other, ids(release))
    error = no_maps_error(release, other, 20)
    assert error.fields["other_folders"] == ["cpac/filt_noglobal"]
    message = str(error)
    assert "such as Outputs/cpac/filt_global/reho/<FILE_ID>_reho.nii.gz, found none" in message
    assert "There are folders of cpac/filt_noglobal: give another --pipeline or --strategy." in message
    error = no_maps_error(release, TWO, 20)
    assert (error.code, error.fields["path"], error.fields["unused_files"]) == ("no_images", str(release), 50)
    assert not any(name in f"{error} {error.fields}" for name in ids(release))


@pytest.mark.parametrize(
    ("options", "code", "fields"),
    [
        ({"derivatives": ("reho", "rehu")}, "unknown_choice", {"what": "derivative", "choice": "rehu"}),
        ({"derivatives": ("func_preproc",)}, "unknown_choice", {"what": "derivative", "choice": "func_preproc"}),
        ({"derivatives": ()}, "wrong_derivatives", {"found": []}),
        ({"derivatives": ("reho", "reho")}, "wrong_derivatives", {"found": ["reho", "reho"]}),
        ({"pipeline": "cpak"}, "unknown_choice", {"what": "pipeline", "choice": "cpak"}),
        ({"strategy": "global"}, "unknown_choice", {"what": "strategy", "choice": "global"}),
    ],
)
def test_maps_that_do_not_exist(options, code, fields):
    with refused(SettingsError, code, **fields):
        MapSelection(**options)


def test_the_nearest_derivative_is_named():
    with pytest.raises(SettingsError, match=r"Did you mean 'reho'\?"):
        MapSelection(("reho", "rehu"))


def test_intensities_inside_the_brain():
    values = head(np.random.default_rng(0).normal(5, 2, (12, 12, 12)))
    values_ = normalised(values)
    inside = values_[values != 0]
    assert abs(inside.mean()) < 1e-6
    assert abs(inside.std() - 1) < 1e-5
    assert not values_[values == 0].any()
    np.testing.assert_allclose(normalised(values * 7), values_, atol=1e-5)
    shifted = np.where(values == 0, 0, values + 100)
    np.testing.assert_allclose(normalised(shifted), values_, atol=1e-5)


def test_a_map_on_the_grid_keeps_its_place_and_its_zeros(tmp_path):
    values = head(np.full((12, 12, 12), 2.0))
    values[5:7, 5:7, 5:7] = 9.0
    values[2, 5:7, 5:7] = 20.0  # to the right of the head, as the first axis runs to the left
    values_ = read_map(save(tmp_path / "a.nii.gz", values, place()), GRID)
    assert values_.dtype == np.float32
    assert np.unravel_index(values_.argmax(), values_.shape)[0] > 10
    assert values_[7, 7, 7] > values_[10, 7, 7]
    assert not values_[0].any()
    assert not values_[:, :, -1].any()


def test_unlike_shapes_and_affines_of_the_same_head_agree(tmp_path):
    """Check that only the position of voxels matters: a finer, tighter and mirrored map gives the same image."""
    rng = np.random.default_rng(0)
    coarse = head(rng.uniform(1, 2, (12, 12, 12)))
    fine = coarse.repeat(2, 0).repeat(2, 1).repeat(2, 2)[::-1, 2:-2, 2:-2]
    affine = np.diag([8.0, 8, 8, 1])
    affine[:3, 3] = (-92, -110 + 16, -84 + 16)
    first = read_map(save(tmp_path / "a.nii.gz", coarse, place()), GRID)
    other = read_map(save(tmp_path / "b.nii.gz", fine, affine), GRID)
    assert np.corrcoef(first.ravel(), other.ravel())[0, 1] > 0.95
    exact = common_grid(12)
    np.testing.assert_allclose(
        read_map(save(tmp_path / "a.nii.gz", coarse, place()), exact),
        normalised(coarse)[::-1],
        atol=1e-5,
    )


def somewhere(values, where, value):
    values = values.copy()
    values[where] = value
    return values


BALL = head(np.random.default_rng(0).uniform(1, 2, (12, 12, 12)))


@pytest.mark.parametrize(
    ("values", "affine", "code", "fields"),
    [
        (somewhere(BALL, (5, 5, 5), np.nan), place(), "not_finite", {}),
        (somewhere(BALL, (0, 0, 0), np.inf), place(), "not_finite", {}),
        (np.zeros((12, 12, 12)), place(), "constant_image", {}),
        (head(np.full((12, 12, 12), 0.1)), place(), "constant_image", {}),
        (BALL, np.eye(4) * 1000, "different_space", {}),
        (BALL, place() + [[0, 0, 0, 60], [0] * 4, [0] * 4, [0] * 4], "different_space", {}),
        (np.stack([BALL, BALL], axis=-1), place(), "wrong_shape", {"found": [12, 12, 12, 2]}),
    ],
)
def test_maps_that_are_refused(tmp_path, values, affine, code, fields):
    path = save(tmp_path / file_name("SECRET_0050001", "reho"), values, affine)
    with refused(DataError, code, **fields) as error:
        read_map(path, GRID)
    assert "SECRET" not in f"{error.value} {error.value.fields}"
