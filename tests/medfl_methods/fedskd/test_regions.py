"""Regions of an atlas: soft weights, and the region loss."""

import pytest
import torch
from refusals import refused
from similarity_cases import by_the_book, maps
from torch.nn import functional as F

from medfl.errors import ContractError, DataError, SettingsError
from medfl_methods.fedskd.regions import pool_by_axes, region_weights
from medfl_methods.fedskd.similarity import region_similarity_loss
from medfl_methods.fedskd.stages import RegionGrids


def test_means_over_disjoint_regions():
    a, b = maps(2, 3, 4, 4), maps(2, 5, 4, 4, seed=1)
    labels = torch.tensor([[1, 1, 2, 2], [1, 1, 2, 2], [0, 5, 5, 5], [0, 5, 5, 5]])
    rows = [torch.stack([x[:, :, labels == value].mean(2).flatten() for value in (1, 2, 5)]) for x in (a, b)]
    loss = region_similarity_loss(a, b, region_weights(labels, (4, 4)))
    assert loss.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)


def test_soft_weights_keep_each_region_s_mass_and_sum_to_one_inside():
    labels = torch.zeros(12, 12, 12, dtype=torch.int16)
    labels[:6], labels[6:, :, :6], labels[11, 11, 11] = 1, 2, 7
    weights = region_weights(labels, (3, 3, 3))
    assert weights.shape == (3, 3, 3, 3)
    volumes = [(labels == value).sum().item() for value in (1, 2, 7)]
    assert torch.allclose(weights.flatten(1).sum(1) * 64, torch.tensor(volumes, dtype=torch.float32))
    assert torch.allclose(region_weights(torch.ones(12, 12), (5, 5)), torch.ones(1, 5, 5))


def by_masks(labels, size, mode):
    """Compute the weights region by region: pool or sample the mask of each."""
    masks = torch.stack([labels == value for value in labels.unique() if value > 0], dim=1).float()
    if mode == "nearest":
        return F.interpolate(masks, size, mode="nearest")
    return (F.adaptive_avg_pool2d if len(size) == 2 else F.adaptive_avg_pool3d)(masks, size)


@pytest.mark.parametrize("mode", ["soft", "nearest"])
@pytest.mark.parametrize(
    ("grid", "size"),
    [((16, 8), (4, 2)), ((16, 16, 8), (4, 2, 8)), ((11, 7), (5, 3)), ((9, 10, 7), (4, 10, 3)), ((3, 4), (5, 7))],
)
def test_weights_are_those_of_one_mask_for_each_region(grid, size, mode):
    """The weights are equal bit by bit if cells have 2^n voxels. If cells do not divide the grid, they overlap."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.tensor([0, 3, 4, 90])[torch.randint(4, (3, *grid), generator=generator)]
    weights, expected = region_weights(labels, size, mode), by_masks(labels, size, mode)
    torch.testing.assert_close(weights, expected, rtol=1e-6, atol=0)
    if mode == "nearest" or grid[0] == 16:
        assert torch.equal(weights, expected)
    assert torch.equal(region_weights(labels[0], size, mode), region_weights(labels[:1], size, mode)[0])


@pytest.mark.parametrize("mode", ["soft", "nearest"])
def test_loss_and_gradients_are_those_of_one_mask_for_each_region(mode):
    """Each sample has its own regions, from labels as in a training batch. All numbers are float64."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(7, (3, 12, 10, 8), generator=generator)
    a, b = (torch.randn(3, k, 6, 5, 4, generator=generator, dtype=torch.float64).requires_grad_() for k in (4, 3))
    grids = RegionGrids(labels, mode)
    loss = region_similarity_loss(a, b, grids.for_maps(a, b))
    slopes = torch.autograd.grad(loss, [a, b])
    weights = by_masks(labels, (6, 5, 4), mode).double()
    share = weights / weights.sum((2, 3, 4), keepdim=True)
    rows = [torch.einsum("bkxyz,brxyz->rbk", x, share).flatten(1) for x in (a, b)]
    expected = by_the_book(*rows)
    assert loss.item() == pytest.approx(expected.item(), abs=1e-12)
    for ours, theirs in zip(slopes, torch.autograd.grad(expected, [a, b]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-12)


def test_a_region_that_vanishes_by_nearest_neighbour_survives_soft():
    labels = torch.ones(16, 16, dtype=torch.long)
    labels[5, 7] = 2
    a, b = maps(2, 3, 4, 4), maps(2, 3, 4, 4, seed=1)
    soft, nearest = region_weights(labels, (4, 4)), region_weights(labels, (4, 4), "nearest")
    assert nearest[1].sum() == 0
    assert torch.count_nonzero(soft[1]) == 1
    cell = a[:, :, 1, 1].flatten()
    rows = [torch.stack([(x * soft[0]).sum((2, 3)).flatten() / soft[0].sum(), x[:, :, 1, 1].flatten()]) for x in (a, b)]
    assert torch.equal(rows[0][1], cell)
    assert region_similarity_loss(a, b, soft).item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)
    dropped = region_similarity_loss(a, b, nearest)
    assert dropped.item() == region_similarity_loss(a, b, nearest[:1]).item()


def test_each_sample_may_have_its_own_regions():
    a, b = maps(2, 3, 4, 4), maps(2, 3, 4, 4, seed=1)
    labels = torch.stack([torch.arange(16).reshape(4, 4) // 8 + 1, torch.arange(16).reshape(4, 4) % 2 + 1])
    weights = region_weights(labels, (4, 4))
    assert weights.shape == (2, 2, 4, 4)
    rows = [
        torch.stack([torch.cat([x[i, :, labels[i] == value].mean(1) for i in (0, 1)]) for value in (1, 2)])
        for x in (a, b)
    ]
    assert region_similarity_loss(a, b, weights).item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)


def test_a_sample_without_a_region_counts_as_zero_there():
    a, b = maps(2, 3, 2, 2), maps(2, 3, 2, 2, seed=1)
    labels = torch.tensor([[[1, 1], [2, 2]], [[1, 1], [1, 1]]])
    first = [x[0].flatten(1)[:, 2:].mean(1) for x in (a, b)]
    rows = []
    for x, mean in zip((a, b), first, strict=True):
        first_region = torch.cat([x[0].flatten(1)[:, :2].mean(1), x[1].flatten(1).mean(1)])
        rows.append(torch.stack([first_region, torch.cat([mean, torch.zeros(3)])]))
    loss = region_similarity_loss(a, b, region_weights(labels, (2, 2)))
    assert loss.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)


def test_one_atlas_for_all_samples_in_each_of_its_shapes():
    a, b = maps(3, 2, 4, 4), maps(3, 2, 4, 4, seed=1)
    weights = region_weights(torch.arange(16).reshape(4, 4) // 4 + 1, (4, 4))
    shared = region_similarity_loss(a, b, weights).item()
    assert region_similarity_loss(a, b, weights[None]).item() == shared
    assert region_similarity_loss(a, b, weights.expand(3, -1, -1, -1)).item() == pytest.approx(shared, rel=1e-6)


@pytest.mark.parametrize("size", [(2, 3), (4, 5), (2, 3, 4), (3, 2, 5)])
def test_pooling_by_axes_equals_torch_s_adaptive_pooling(size):
    features = maps(2, 3, *(5, 7, 9)[: len(size)]).requires_grad_()
    expected = (F.adaptive_avg_pool2d if len(size) == 2 else F.adaptive_avg_pool3d)(features, size)
    output = pool_by_axes(features, size)
    assert torch.allclose(output, expected, atol=1e-6)
    gradients = [torch.autograd.grad(result.square().sum(), features)[0] for result in (output, expected)]
    assert torch.allclose(*gradients, atol=1e-6)


def test_each_model_is_pooled_on_its_own_grid():
    labels = torch.arange(64).reshape(8, 8) // 16 + 1
    a, b = maps(2, 3, 8, 8), maps(2, 3, 4, 4, seed=1)
    rows = []
    for x in (a, b):
        w = region_weights(labels, x.shape[2:])
        rows.append(torch.stack([((x * weight).sum((2, 3)) / weight.sum()).flatten() for weight in w]))
    loss = region_similarity_loss(a, b, region_weights(labels, (8, 8)))
    assert loss.item() == pytest.approx(by_the_book(*rows).item(), rel=1e-5)


def test_no_gradient_is_ever_nan():
    a, b = maps(2, 3, 4, 4).requires_grad_(), maps(2, 3, 4, 4, seed=1).requires_grad_()
    labels = torch.zeros(2, 16, 16, dtype=torch.long)
    labels[0, 0, 0], labels[1, :8], labels[0, 8:] = 1, 2, 2
    region_similarity_loss(a, b, region_weights(labels, (4, 4))).backward()
    assert a.grad.isfinite().all()
    assert b.grad.isfinite().all()
    assert a.grad[0, :, 0, 0].abs().sum() > 0


@pytest.mark.parametrize(
    ("labels", "code", "fields"),
    [
        (torch.zeros(8, 8), "empty_atlas", {}),
        (torch.full((8, 8), 0.5), "wrong_label", {"expected": "whole numbers"}),
        (torch.full((8, 8), float("nan")), "wrong_label", {"expected": "whole numbers"}),
        (torch.full((8, 8), -1), "wrong_label", {"minimum": 0, "found": -1}),
        (torch.ones(8, 8, 8, 8), "wrong_shape", {"axes": 2, "found": [8, 8, 8, 8]}),
        (torch.ones(8), "wrong_shape", {"axes": 2, "found": [8]}),
    ],
)
def test_what_is_no_atlas_is_refused(labels, code, fields):
    with refused(DataError, code, **fields):
        region_weights(labels, (4, 4))


def test_other_bad_regions():
    with refused(SettingsError, "unknown_choice", choice="nearst"):
        region_weights(torch.ones(4, 4), (2, 2), "nearst")
    a = maps(2, 3, 4, 4)
    with refused(SettingsError, "weightless_regions", count=2):
        region_similarity_loss(a, a, torch.zeros(2, 4, 4))
    with refused(ContractError, "wrong_shape", axes=2, found=[5, 2, 4, 4]):
        region_similarity_loss(a, a, torch.ones(5, 2, 4, 4))
