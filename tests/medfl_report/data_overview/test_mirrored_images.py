"""Mirrored images: single ones are found where images have a common orientation, and none where they have not."""

import numpy as np
import pytest

from medfl_report.data_overview.mirrored_images import find_mirrored, orientation_scores
from medfl_report.data_overview.near_duplicates import make_thumbnails


def bodies(count: int, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return images with an organ on one side of the first axis in noise, (count, *shape, 1)."""
    rng = np.random.default_rng(seed)
    images = rng.normal(0.3, 0.1, (count, *shape, 1)).astype(np.float32)
    middle = shape[0] // 4 + rng.integers(-1, 2, count)
    for image, place in zip(images, middle, strict=True):
        image[place - 3 : place + 3, shape[1] // 3 : -shape[1] // 3] += 0.6
    return images


@pytest.mark.parametrize(("shape", "direction"), [((32, 32), "up and down"), ((16, 16, 16), "left and right")])
def test_single_mirrored_images_are_found(shape, direction):
    images = bodies(80, shape)
    images[[7, 60]] = images[[7, 60], ::-1]
    mirrored = find_mirrored(make_thumbnails(images))
    assert [(each.place, each.directions) for each in mirrored] == [(7, direction), (60, direction)]


def test_nothing_is_listed_without_a_common_orientation():
    images = bodies(80, (32, 32))
    images[::2] = images[::2, ::-1]  # as left and right knees
    assert find_mirrored(make_thumbnails(images)) == []
    noise = np.random.default_rng(0).random((200, 32, 32, 1)).astype(np.float32)
    assert find_mirrored(make_thumbnails(noise)) == []


def test_few_images_and_blank_images_say_nothing():
    images = bodies(49, (32, 32))
    images[3] = images[3, ::-1]
    assert find_mirrored(make_thumbnails(images)) == []
    blank = np.concatenate([images, np.zeros((20, 32, 32, 1), np.float32)])
    assert find_mirrored(make_thumbnails(blank)) == [], "blank images don't count"


@pytest.mark.parametrize("images", [30, 8])
def test_a_score_is_that_of_the_rule_of_all_other_images(images):
    rng = np.random.default_rng(images)
    parts = rng.normal(0.2, 1.0, (images, 12))
    penalty = 0.01 * (parts**2).sum()
    expected = []
    for left_out in range(images):
        others = np.delete(parts, left_out, axis=0)
        rule = np.linalg.solve(others.T @ others + penalty * np.eye(12), others.sum(axis=0))
        expected.append(parts[left_out] @ rule)
    assert orientation_scores(parts) == pytest.approx(np.array(expected))
