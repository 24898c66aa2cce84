"""Mixup and mosaic: the origin of each pixel, for even and odd edges, in images and volumes."""

import pytest
import torch
from refusals import refused

from medfl.errors import DataError, SettingsError
from medfl_methods.fedfed.mixup import mixup, mosaic


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def numbered(n: int, *shape: int) -> torch.Tensor:
    """Return images in which all pixels of image i are i + 1."""
    return torch.arange(1.0, n + 1).reshape(n, *[1] * len(shape)).expand(n, *shape).clone()


@pytest.mark.parametrize("shape", [(1, 3, 3), (2, 2, 3, 4)], ids=str)
def test_images_are_mixed_as_their_labels_say(shape):
    labels = torch.arange(1, 9)
    mixed, own, others, share = mixup(numbered(8, *shape), labels, 2.0, rng())
    assert torch.equal(own, labels)
    assert others.sort().values.tolist() == labels.tolist()
    assert not torch.equal(others, labels)
    assert 0 < share < 1
    expected = share * own + (1 - share) * others
    assert torch.allclose(mixed, expected.reshape(8, *[1] * len(shape)).expand_as(mixed).float())


@pytest.mark.parametrize("alpha", [0.2, 2.0])
def test_the_share_has_the_beta_distribution(alpha):
    """The mean is 1/2, the variance 1 / (4 (2 alpha + 1)); values below 1/4 are as frequent as values above 3/4."""
    generator, images, labels = rng(), torch.zeros(2, 1), torch.zeros(2)
    shares = torch.tensor([mixup(images, labels, alpha, generator)[3] for _ in range(1000)])
    assert shares.mean().item() == pytest.approx(0.5, abs=0.03)
    assert shares.var().item() == pytest.approx(1 / (4 * (2 * alpha + 1)), rel=0.12)
    assert (shares < 0.25).float().mean().item() == pytest.approx((shares > 0.75).float().mean().item(), abs=0.05)


def test_all_is_a_function_of_the_generator():
    images, labels = torch.rand(6, 1, 4, 4, generator=rng()), torch.arange(6)
    first, again, other = (mixup(images, labels, 1.0, rng(seed)) for seed in (1, 1, 2))
    assert torch.equal(first[0], again[0])
    assert first[3] == again[3] != other[3]
    same, unlike = (mosaic(images, rng(seed), 3) for seed in (1, 2))
    assert torch.equal(mosaic(images, rng(1), 3), same)
    assert not torch.equal(same, unlike)


def test_alpha_zero_gives_the_batch_back_and_draws_nothing():
    images, labels, generator = numbered(3, 1, 2, 2), torch.arange(3), rng()
    mixed, own, others, share = mixup(images, labels, 0.0, generator)
    assert torch.equal(mixed, images)
    assert torch.equal(own, labels)
    assert torch.equal(others, labels)
    assert share == 1
    assert torch.equal(generator.get_state(), rng().get_state())


@pytest.mark.parametrize("alpha", [-0.1, float("nan")])
def test_an_impossible_alpha_is_named(alpha):
    with refused(SettingsError, "setting_out_of_range", setting="alpha", minimum=0, found=alpha):
        mixup(torch.zeros(2, 1), torch.zeros(2), alpha, rng())


def quarters(image: torch.Tensor) -> list[torch.Tensor]:
    """Return the 2 x 2 or 2 x 2 x 2 tiles of an image (C, *spatial), split at half the edge, rounded down."""
    parts = [image]
    for axis in range(1, image.dim()):
        half = image.shape[axis] // 2
        parts = [piece for part in parts for piece in part.split([half, image.shape[axis] - half], dim=axis)]
    return parts


SHAPES = [(1, 4, 4), (3, 28, 28), (2, 7, 9), (1, 4, 30), (1, 6, 6, 6), (2, 5, 7, 9)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_each_tile_is_of_one_image_and_no_two_of_the_same(shape):
    made = mosaic(numbered(11, *shape), rng(), 20)
    assert made.shape == (20, *shape)
    seen = set()
    for image in made:
        tiles = [part[part > 0].unique().tolist() for part in quarters(image)]
        assert all(len(values) <= 1 for values in tiles)  # empty if the hole covers the tile
        values = [value for tile in tiles for value in tile]
        assert len(values) == len(set(values)) >= len(tiles) - 1
        seen |= set(values)
    assert seen == set(range(1, 12)), "all images are used"


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_hole_is_a_block_of_zeros(shape):
    """The hole has half the shortest edge.

    In 60 images it is complete at least once and cut by the border in others.
    """
    edge, extents, covered = min(shape[1:]) // 2, set(), torch.zeros(shape[1:], dtype=torch.bool)
    for image in mosaic(numbered(9, *shape), rng(), 60):
        hole = (image == 0).all(0)
        assert torch.equal(hole, (image == 0).any(0)), "the same in all channels"
        where = hole.nonzero()
        low, high = where.amin(0), where.amax(0) + 1
        assert hole.sum() == (high - low).prod(), "a block"
        extents.add(tuple((high - low).tolist()))
        covered |= hole
    assert max(extents) == (edge,) * (len(shape) - 1)
    assert all(1 <= extent <= edge for extents_ in extents for extent in extents_)
    assert covered.float().mean() > 0.6


@pytest.mark.parametrize("shape", [(1, 8, 8), (2, 7, 9), (1, 6, 6, 6), (1, 5, 7, 9)], ids=str)
def test_crops_come_from_one_place_which_varies(shape):
    """Each pixel stores its position, so a mosaic shows where its pixels came from."""
    edges = shape[1:]
    positions = torch.stack(torch.meshgrid(*[torch.arange(1.0, edge + 1) for edge in edges], indexing="ij"))
    images = positions[None].repeat(8, 1, *[1] * len(edges))
    corners = set()
    for image in mosaic(images, rng(), 30):
        halves = torch.tensor(edges).reshape(-1, *[1] * len(edges)) // 2
        here = positions - (positions > halves) * halves  # place in its own tile
        shifts = (image - here)[:, (image > 0).all(0)]
        assert (shifts == shifts[:, :1]).all(), "each tile is a crop that starts at the same place"
        corners.add(tuple(shifts[:, 0].int().tolist()))
    for axis, edge in enumerate(edges):
        assert {corner[axis] for corner in corners} == set(range(edge // 2 + 1)), "any place where a tile fits"


def test_few_images_are_used_several_times_and_stay_as_they_are():
    images = numbered(3, 1, 6, 6)
    made = mosaic(images, rng(), 12)
    assert torch.equal(images, numbered(3, 1, 6, 6))
    assert set(made.unique().tolist()) == {0, 1, 2, 3}
    assert set(mosaic(images[:1], rng(), 2).unique().tolist()) == {0, 1}
    assert mosaic(images, rng(), 0).shape == (0, 1, 6, 6)
    with refused(DataError, "empty_batch"):
        mosaic(images[:0], rng(), 1)
