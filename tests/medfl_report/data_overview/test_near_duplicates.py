"""Near-duplicates: copies, changed copies and mirror images are found, and nothing else."""

import io
from itertools import combinations

import numpy as np
import pytest
from PIL import Image

from medfl_report.data_overview.near_duplicates import (
    MIN_CORRELATION,
    MIN_DETAIL_CORRELATION,
    find_similar,
    make_thumbnails,
)


def smooth_images(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return random images in [0, 1] without fine detail, as photographs have it, (count, *shape, 1)."""
    rng = np.random.default_rng(seed)
    coarse = rng.random((count, *(max(4, edge // 8) for edge in shape)))
    for axis, edge in enumerate(shape, start=1):
        coarse = np.repeat(coarse, -(-edge // coarse.shape[axis]), axis=axis).take(range(edge), axis=axis)
    return coarse[..., np.newaxis].astype(np.float32)


def as_jpeg(image: np.ndarray, edge: int) -> np.ndarray:
    """Return an image after resizing and JPEG compression, at its own size."""
    content = io.BytesIO()
    grey = Image.fromarray(np.rint(255 * image[..., 0]).astype(np.uint8))
    grey.resize((edge, edge)).save(content, "JPEG", quality=60)
    again = Image.open(io.BytesIO(content.getvalue())).resize(grey.size)
    return np.asarray(again, dtype=np.float32)[..., np.newaxis] / 255


def test_changed_copies_and_mirror_images_are_found():
    images = smooth_images(40, (64, 64))
    images[31] = as_jpeg(images[3], 48)
    images[32] = 0.2 + 0.5 * images[4]
    images[33] = images[5][:, ::-1]
    images[34] = images[6][::-1]
    images[35] = images[7][::-1, ::-1]
    pairs = {(pair.first, pair.second): pair.mirrored for pair in find_similar(make_thumbnails(images))}
    assert pairs == {
        (3, 31): "",
        (4, 32): "",
        (5, 33): "left and right",
        (6, 34): "up and down",
        (7, 35): "up and down; left and right",
    }


def test_a_mirrored_volume_is_found():
    volumes = smooth_images(12, (32, 32, 32))
    volumes[9] = volumes[2][::-1]
    (pair,) = find_similar(make_thumbnails(volumes))
    assert (pair.first, pair.second, pair.mirrored) == (2, 9, "left and right")
    assert pair.correlation == pytest.approx(1, abs=1e-5)


def test_the_search_equals_the_comparison_of_all_pairs():
    rng = np.random.default_rng(1)
    thumbnails = make_thumbnails(smooth_images(60, (32, 32), seed=2))
    thumbnails = thumbnails[rng.integers(0, 60, 90)] + rng.normal(0, 0.05, (90, 32, 32)).astype(np.float32)
    rows = thumbnails.reshape(90, -1)
    average = np.mean([(row - row.mean()) / np.linalg.norm(row - row.mean()) for row in rows], axis=0)

    def is_similar(a: int, b: int) -> bool:
        x, y = ((row - row.mean()) / np.linalg.norm(row - row.mean()) for row in (rows[a], rows[b]))
        details = (x - average) @ (y - average) / np.linalg.norm(x - average) / np.linalg.norm(y - average)
        return x @ y >= MIN_CORRELATION and details >= MIN_DETAIL_CORRELATION

    expected = {pair for pair in combinations(range(90), 2) if is_similar(*pair)}
    assert {(pair.first, pair.second) for pair in find_similar(thumbnails)} == expected
    assert len(expected) > 20


def test_images_without_contrast_match_nothing():
    images = np.zeros((5, 16, 16, 1), np.float32)
    images[1:3] = 0.7
    images[3, 4:8, 4:8] = np.nan
    assert find_similar(make_thumbnails(images)) == []
    assert find_similar(make_thumbnails(images[:1])) == []
