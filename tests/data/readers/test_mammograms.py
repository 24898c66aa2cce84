"""Test the conversion of pixels to rows of 16 bits: range, crop, size and side, by closed forms and against torch."""

from __future__ import annotations

import sys

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.data.readers.mammograms import MAX_LEVEL, breast_box, extent_of, needs_mirror, resize, to_row
from medfl.errors import DataError, SettingsError

NOISE = np.random.default_rng(0).integers(100, 4096, (60, 44))


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.float32])
@pytest.mark.parametrize("inverted", [False, True])
def test_the_own_range_becomes_16_bits(dtype, inverted):
    pixels = (NOISE % 251).astype(dtype)
    row = to_row(pixels, pixels.shape, inverted=inverted)
    exact = pixels.astype(np.float64)
    unit = (exact - exact.min()) / (exact.max() - exact.min())
    expected = (1 - unit if inverted else unit) * MAX_LEVEL
    assert row.dtype == np.uint16
    assert np.abs(row - expected).max() <= 0.5 + 1e-6
    assert (row.min(), row.max()) == (0, MAX_LEVEL)


@pytest.mark.parametrize(("low", "high"), [(-32768, 32767), (-2048, 2047), (-5, 3), (0, 1), (30000, 32767)])
def test_signed_pixels_at_every_range(low, high):
    pixels = np.linspace(low, high, 600).round().astype(np.int16).reshape(20, 30)
    expected = (pixels.astype(float) - low) / (high - low) * MAX_LEVEL
    assert np.abs(to_row(pixels, (20, 30)) - expected).max() <= 0.5
    assert np.abs(to_row(pixels, (20, 30), inverted=True) - (MAX_LEVEL - expected)).max() <= 0.5


def test_a_linear_change_of_the_pixels_has_no_effect():
    pixels = NOISE.astype(np.uint16)
    row = to_row(pixels, (15, 11))
    for changed in (pixels * 3 + 7, pixels * np.float32(0.25) - 3, pixels.astype(np.int16) - 3000):
        assert np.abs(to_row(changed, (15, 11)).astype(int) - row).max() <= 2
    assert np.abs(to_row(-NOISE.astype(np.int32), (15, 11), inverted=True).astype(int) - row).max() <= 1


@pytest.mark.parametrize("size", [(30, 22), (15, 11), (10, 4), (1, 1), (60, 1)])
def test_a_pixel_is_the_mean_over_its_area(size):
    pixels = NOISE.astype(np.uint16)
    row = to_row(pixels, size)
    areas = NOISE.reshape(size[0], 60 // size[0], size[1], 44 // size[1]).mean(axis=(1, 3))
    expected = (areas - NOISE.min()) / (NOISE.max() - NOISE.min()) * MAX_LEVEL
    assert np.abs(row - expected).max() <= 1.5


def test_areas_of_torch_where_edges_are_no_multiples():
    smooth = np.add.outer(np.sin(np.arange(301) / 40), np.cos(np.arange(203) / 30))
    pixels = np.rint((smooth - smooth.min()) * 10000).astype(np.uint16)
    small = resize(pixels, (64, 48))
    areas = torch.nn.functional.interpolate(torch.tensor(pixels.astype(np.float64))[None, None], (64, 48), mode="area")
    assert np.abs(small - areas[0, 0].numpy()).max() <= 0.01 * pixels.max()
    assert abs(small.mean() - pixels.mean()) <= 0.001 * pixels.max()


def test_edges_that_grow_are_interpolated_linearly():
    pixels = np.array([[0, 100], [200, 300]], np.uint16)
    tensor = torch.tensor(pixels.astype(np.float64))[None, None]
    expected = torch.nn.functional.interpolate(tensor, (8, 6), mode="bilinear")[0, 0]
    assert np.abs(resize(pixels, (8, 6)) - expected.numpy()).max() <= 1
    tall = np.repeat(pixels, 4, axis=0)  # one edge shrinks, the other one grows
    expected = torch.nn.functional.interpolate(tensor, (2, 6), mode="bilinear")[0, 0]
    assert np.abs(resize(tall, (2, 6)) - expected.numpy()).max() <= 1


def test_an_image_of_one_value_becomes_zeros():
    assert not to_row(np.full((4, 5), 9, np.uint16), (2, 2), inverted=True).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_values_that_are_not_finite_are_refused(bad):
    pixels = np.zeros((70000, 2), np.float32)
    pixels[40000, 1] = bad
    with refused(DataError, "not_finite"):
        to_row(pixels, (2, 2))


def test_the_extent_is_that_of_all_blocks():
    pixels = np.arange(300_000, dtype=np.int32).reshape(100_000, 3)
    assert extent_of(pixels) == (0, 299_999)
    assert extent_of(np.roll(pixels, 12345, axis=0)) == (0, 299_999)
    assert extent_of(np.array([[3.5]], np.float32)) == (3.5, 3.5)


@pytest.mark.parametrize(
    ("laterality", "toward_right", "mirror"),
    [("left", "", False), ("right", "", True), ("", "", False), ("right", "A", False), ("left", "P", True)],
)
def test_the_chest_wall_is_on_the_left_at_the_end(laterality, toward_right, mirror):
    """The file's patient orientation takes precedence over the side of the breast."""
    assert needs_mirror(laterality, toward_right) == mirror
    pixels = np.tile(np.arange(6, dtype=np.uint16), (4, 1))
    row = to_row(pixels, (4, 6), mirror=mirror)
    np.testing.assert_array_equal(row, to_row(pixels, (4, 6))[:, ::-1] if mirror else to_row(pixels, (4, 6)))


def breast(shape, centre, radius):
    rows, columns = np.indices(shape)
    inside = 1 - np.hypot(rows - centre[0], columns - centre[1]) / radius
    return (np.clip(inside, 0, 1) * 40000 + 500).astype(np.uint16)


@pytest.mark.parametrize("shape", [(200, 150), (1000, 700)])
def test_the_breast_is_cut_out_and_a_label_is_not(shape):
    radius = shape[0] // 4
    pixels = breast(shape, (shape[0] // 2, 0), radius)
    with_label = pixels.copy()
    with_label[: shape[0] // 20, -shape[1] // 10 :] = 65535
    rows, columns = breast_box(with_label)
    assert abs(rows.start - (shape[0] // 2 - radius)) <= 0.3 * radius
    assert abs(rows.stop - (shape[0] // 2 + radius)) <= 0.3 * radius
    assert columns.start == 0
    assert abs(columns.stop - radius) <= 0.3 * radius
    row = to_row(pixels, (32, 32), crop=True)
    assert row.mean() > 1.5 * to_row(pixels, (32, 32)).mean()
    np.testing.assert_allclose(to_row(65535 - pixels, (32, 32), inverted=True, crop=True), row.astype(int), atol=4)


def test_the_whole_image_stays_if_no_breast_is_found():
    dots = np.zeros((100, 100), np.uint16)
    dots[::20, ::20] = 60000
    assert breast_box(dots) == (slice(None), slice(None))
    assert breast_box(np.full((10, 10), 7, np.uint16)) == (slice(None), slice(None))


def test_the_crop_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "skimage.filters", None)
    with refused(SettingsError, "missing_package", extra="mammography") as error:
        to_row(NOISE.astype(np.uint16), (4, 4), crop=True)
    assert "pip install 'medfl-monai[mammography]'" in str(error.value)
