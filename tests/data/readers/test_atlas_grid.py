"""Test resampling of volumes to another grid: closed forms, and left and right sides."""

from __future__ import annotations

import numpy as np
import pytest
from refusals import refused

from medfl.data.readers.volumes import SpatialGrid, Volume, common_grid, resample_labels, resample_map, share_inside
from medfl.errors import SettingsError


def affine(edges, start, turn=0.0):
    """Return an affine with the given edges in mm and origin, rotated about the third axis by `turn` degrees."""
    c, s = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    matrix = np.eye(4)
    matrix[:3, :3] = np.array([[c, -s, 0], [s, c, 0], [0, 0, 1]]) @ np.diag(edges)
    matrix[:3, 3] = start
    return matrix


def world(grid_affine, shape):
    """Return the positions of voxels in mm, (3, *shape)."""
    places = np.indices(shape)
    return np.einsum("ij,jxyz->ixyz", grid_affine[:3, :3], places) + grid_affine[:3, 3].reshape(3, 1, 1, 1)


def ramp(place):
    return 3.0 + 0.2 * place[0] - 0.5 * place[1] + 0.7 * place[2]


@pytest.mark.parametrize("size", [32, 48])
def test_the_common_grid_is_a_cube_of_the_brain_symmetric_about_the_middle(size):
    grid = common_grid(size)
    place = world(grid.affine, grid.shape)
    np.testing.assert_allclose(place[0], -place[0][::-1], atol=1e-9)
    half = 96 / size
    for axis, (low, high) in enumerate(((-96, 96), (-114, 78), (-88, 104))):
        np.testing.assert_allclose([place[axis].min() - half, place[axis].max() + half], [low, high])


@pytest.mark.parametrize("size", [3, 257])
def test_a_size_out_of_range(size):
    with refused(SettingsError, "setting_out_of_range", setting="size", minimum=4, maximum=256, found=size):
        common_grid(size)


@pytest.mark.parametrize("edge", [0.9, 2.0, 3.1, 7.0, 30.0])
@pytest.mark.parametrize("turn", [0, 33])
def test_a_linear_function_stays_itself(edge, turn):
    """Interpolation and averages are exact for linear functions, for any two grids."""
    source = affine((-2, 3, 2.5), (45, -60, -40), turn)
    volume = Volume(ramp(world(source, (44, 40, 34))).astype(np.float32), source)
    centre = source @ [22, 20, 17, 1]
    grid = SpatialGrid((2, 2, 2), affine((edge, edge, edge), centre[:3] - edge / 2))
    assert share_inside(np.ones((2, 2, 2), bool), grid.affine, SpatialGrid((44, 40, 34), source)) == 1
    np.testing.assert_allclose(resample_map(volume, grid), ramp(world(grid.affine, grid.shape)), atol=1e-4)


def test_the_quick_way_along_the_axes_is_the_same():
    """A rotation too small to matter takes the general path."""
    values = np.random.default_rng(0).normal(size=(17, 20, 15)).astype(np.float32)
    grid = SpatialGrid((9, 8, 7), affine((5, 6.5, 4), (-30, -30, -20)))
    for edges in ((-3, 3, 3), (4, 7, -9)):
        exact, other = (
            resample_map(Volume(values, affine(edges, (-edges[0] * 8, -25, -edges[2] * 7), turn)), grid)
            for turn in (0, 1e-5)
        )
        assert exact.std() > 0.05
        np.testing.assert_allclose(exact, other, atol=1e-4)


def test_the_own_grid_changes_nothing():
    values = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    place = affine((-3, 3, 3), (9, -20, 4))
    np.testing.assert_allclose(resample_map(Volume(values, place), SpatialGrid((5, 6, 7), place)), values, atol=1e-6)


def test_no_voxel_is_skipped_where_the_grid_is_coarser():
    """A single voxel of a fine map contributes its share of the volume at any position."""
    fine, grid = affine((1, 1, 1), (0.5, 0.5, 0.5)), SpatialGrid((2, 2, 2), affine((4, 4, 4), (2, 2, 2)))
    sums = []
    for place in ((1, 1, 1), (2, 1, 5), (6, 6, 6)):
        values = np.zeros((8, 8, 8), np.float32)
        values[place] = 64
        sums.append(resample_map(Volume(values, fine), grid).sum())
    np.testing.assert_allclose(sums, 1, rtol=1e-5)


def test_the_right_side_stays_on_the_right():
    """A map whose first axis runs to the left is resampled with its first axis to the right; outside there is 0."""
    grid = common_grid(16)
    values = np.zeros((32, 32, 32), np.float32)
    source = np.diag([-6.0, 6, 6, 1])
    source[:3, 3] = (93, -111, -85)
    values[2:6, 10:20, 10:20] = 1.0  # x from 60 to 84 mm
    placed = resample_map(Volume(values, source), grid)
    right = world(grid.affine, grid.shape)[0][placed > 0.9]
    assert right.min() > 55
    assert placed[:8].max() == 0
    away = source.copy()
    away[0, 3] += 1000
    assert not resample_map(Volume(values, away), grid).any()


def test_labels_take_the_nearest_voxel():
    source = affine((2, 2, 2), (0, 0, 0))
    labels = np.arange(1, 9, dtype=np.int32).reshape(2, 2, 2)
    grid = SpatialGrid(
        (6, 1, 1), affine((1, 1, 1), (-1.9, 0.9, 1.1))
    )  # x: -1.9, -0.9, 0.1, 1.1, 2.1, 3.1; z is nearer to 2
    np.testing.assert_array_equal(resample_labels(Volume(labels, source), grid).ravel(), [0, 2, 2, 6, 6, 0])


def test_labels_never_mix():
    rng = np.random.default_rng(0)
    labels = rng.choice([0, 2001, 9170], (20, 20, 20)).astype(np.int32)
    placed = resample_labels(Volume(labels, affine((-9, 9, 9), (90, -100, -80), 20)), common_grid(24))
    assert placed.dtype == np.int32
    assert set(np.unique(placed)) == {0, 2001, 9170}


def test_the_share_that_lies_inside():
    mask = np.zeros((4, 4, 4), bool)
    mask[:, 0, 0] = True
    place = affine((1, 1, 1), (0, 0, 0))
    assert share_inside(mask, place, SpatialGrid((4, 4, 4), place)) == 1
    assert share_inside(mask, place, SpatialGrid((4, 4, 4), affine((1, 1, 1), (2.6, 0, 0)))) == 0.25
    assert share_inside(mask, place, SpatialGrid((4, 4, 4), affine((1, 1, 1), (0, 9, 0)))) == 0
