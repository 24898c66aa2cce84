"""The hash groups copies of a tile and separates different tiles, on patches of a real micrograph."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from micrograph import grey, tiles
from PIL import Image

from medfl_datasets.lc25000.copies import (
    ANGLES,
    DISC_RADIUS,
    THUMBNAIL_EDGE,
    disc_correlation,
    group_copies,
    kept_rectangle,
    ring_spectra,
)
from medfl_datasets.lc25000.synthetic import crop_rectangle, make_copy


def test_the_rectangle_is_that_of_augmentor_and_has_room_for_the_disc():
    for angle in range(ANGLES):
        turned = Image.new("L", (768, 768)).rotate(angle, expand=True)
        left, top, right, bottom = crop_rectangle(turned.width, angle)
        assert np.array(kept_rectangle(angle)) * 768 == pytest.approx([right - left, bottom - top], abs=3)
        assert min(kept_rectangle(angle)) > 2 * DISC_RADIUS


def test_copies_of_a_tile_are_one_group_and_no_two_tiles_are():
    """Check 49 patches with four copies each, saved as JPEG or not; neighbouring patches share half of their pixels."""
    rng = np.random.default_rng(0)
    made = [(number, grey(make_copy(tile, rng))) for number, tile in enumerate(tiles()) for _ in range(4)]
    order = rng.permutation(len(made))
    numbers = np.array([made[place][0] for place in order])
    groups = group_copies(np.stack([made[place][1] for place in order])).numbers
    same = (numbers[:, None] == numbers)[np.triu_indices(len(numbers), 1)]
    together = (groups[:, None] == groups)[np.triu_indices(len(groups), 1)]
    assert together[same].mean() >= 0.99, "recall of pairs"
    assert not together[~same].any(), "none of 18,816 pairs of different tiles"


def test_a_plain_copy_and_its_turns_and_reflections_are_one_group():
    """Check that the correlation is almost 1: a copy by angle 0, quarter turns and flips is exact."""
    image = grey(tiles()[10])
    turned = np.stack([np.rot90(flipped, turns) for flipped in (image, image[:, ::-1]) for turns in range(4)])
    coefficients = np.stack([ring_spectra(image)[0] for image in turned])
    assert (np.abs(coefficients) ** 2).sum(axis=(1, 2)) == pytest.approx(np.ones(8), abs=1e-5)
    assert disc_correlation(coefficients, np.repeat(coefficients[:1], 8, axis=0)).min() > 0.999
    assert set(group_copies(turned).numbers) == {0}


def test_contrast_and_brightness_do_not_matter():
    image = grey(tiles()[10]) / 2
    np.testing.assert_allclose(ring_spectra(image), ring_spectra(40 + 1.5 * image), atol=1e-5)


def test_blank_images_are_groups_of_their_own():
    noise = np.random.default_rng(0).integers(0, 2, (THUMBNAIL_EDGE, THUMBNAIL_EDGE))
    blank = np.stack(
        [np.full((THUMBNAIL_EDGE, THUMBNAIL_EDGE), 240), np.full((THUMBNAIL_EDGE, THUMBNAIL_EDGE), 240), 240 + noise]
    )
    groups = group_copies(np.concatenate([blank, np.stack([grey(tiles()[0])] * 2)]).astype(np.uint8))
    assert groups.blank.tolist() == [True, True, True, False, False]
    assert sorted(Counter(groups.numbers.tolist()).values()) == [1, 1, 1, 2]


def test_groups_do_not_depend_on_blocks(monkeypatch):
    rng = np.random.default_rng(1)
    images = np.stack([grey(make_copy(tile, rng)) for tile in tiles()[:4] for _ in range(3)])
    whole = group_copies(images).numbers
    monkeypatch.setattr("medfl_datasets.lc25000.copies._BLOCK_SIZE", 5)
    np.testing.assert_array_equal(group_copies(images).numbers, whole)
    assert len(set(whole)) == 4
