"""Tests of segmentation metrics against MONAI, brute force and closed forms, and of undefined values."""

import math
import warnings

import numpy as np
import pytest
import torch
from monai.metrics import compute_dice, compute_hausdorff_distance, compute_surface_dice
from scipy.spatial.distance import cdist

from medfl.metrics.segmentation import (
    class_masks,
    class_means,
    dice,
    hausdorff95,
    lesion_f1,
    mean_over_cases,
    surface_dice,
)

SHAPES = [(20, 24), (9, 10, 11)]
SPACING = {2: (0.7, 1.3), 3: (2.5, 0.8, 1.1)}


def blobs(shape, classes, seed):
    """Return two class maps of random blocks, (1, *spatial); some classes may be missing."""
    rng = np.random.default_rng(seed)
    maps = []
    for _ in range(2):
        values = np.zeros(shape, dtype=np.int64)
        for _ in range(5):
            corner = [rng.integers(edge - 2) for edge in shape]
            values[tuple(slice(c, c + rng.integers(2, 7)) for c in corner)] = rng.integers(classes)
        maps.append(torch.from_numpy(values)[None])
    return maps


def surface(mask):
    """Return the coordinates of surface voxels, which have a neighbour outside the mask, (n, dimensions)."""
    padded = np.pad(mask, 1)
    inside = padded.copy()
    for axis in range(mask.ndim):
        for step in (-1, 1):
            inside &= np.roll(padded, step, axis)
    return np.argwhere(padded & ~inside) - 1


def by_hand(ours, theirs, spacing, tolerance):
    """Compute the 95th percentile Hausdorff distance and the surface Dice from all distances."""
    distances = cdist(surface(ours) * spacing, surface(theirs) * spacing)
    there, back = distances.min(1), distances.min(0)
    near = np.concatenate([there, back]) <= tolerance
    return max(np.percentile(there, 95), np.percentile(back, 95)), near.mean()


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_as_all_distances_say(shape, seed):
    spacing = np.array(SPACING[len(shape)])
    ours, theirs = (class_masks(classes, 3) for classes in blobs(shape, 3, seed))
    distances = hausdorff95(ours, theirs, spacing.tolist())
    overlaps = surface_dice(ours, theirs, 1.5, spacing.tolist())
    for c in range(2):
        a, b = ours[c].numpy(), theirs[c].numpy()
        if a.any() and b.any():
            expected = by_hand(a, b, spacing, 1.5)
            assert (distances[c].item(), overlaps[c].item()) == pytest.approx(expected, rel=1e-5)
            assert dice(ours, theirs)[c].item() == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()), rel=1e-6)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_as_monai_where_both_masks_hold_something(shape, seed):
    maps = blobs(shape, 4, seed)
    ours, theirs = (class_masks(classes, 4) for classes in maps)
    hot = [torch.nn.functional.one_hot(classes, 4).movedim(-1, 1) for classes in maps]
    spacing = list(SPACING[len(shape)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = {
            "dice": compute_dice(*hot, include_background=False)[0],
            "hd95": compute_hausdorff_distance(*hot, percentile=95, spacing=[spacing])[0],
            "surface": compute_surface_dice(*hot, class_thresholds=[1.0] * 3, spacing=[spacing])[0],
        }
    scores = {
        "dice": dice(ours, theirs),
        "hd95": hausdorff95(ours, theirs, spacing),
        "surface": surface_dice(ours, theirs, 1.0, spacing),
    }
    both = ours.flatten(1).any(1) & theirs.flatten(1).any(1)
    for name, values in scores.items():
        assert values.dtype == torch.float64
        assert torch.allclose(values[both], expected[name][both].double()), name


@pytest.mark.parametrize("dimensions", [2, 3])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("steps", [0, 1, 4])
def test_planes_that_are_some_voxels_apart(dimensions, axis, steps):
    """Each voxel of one surface is k voxels from the other surface."""
    spacing = SPACING[dimensions]
    ours = torch.zeros(1, *[12] * dimensions, dtype=torch.bool)
    ours.movedim(1 + axis, 0)[3] = True
    theirs = ours.roll(steps, 1 + axis)
    apart = steps * spacing[axis]
    assert hausdorff95(ours, theirs, spacing).item() == pytest.approx(apart)
    assert hausdorff95(ours, theirs).item() == steps, "in voxels where no spacing is known"
    assert surface_dice(ours, theirs, apart + 1e-4, spacing).item() == 1
    if steps:
        assert surface_dice(ours, theirs, apart - 1e-4, spacing).item() == 0
        assert dice(ours, theirs).item() == 0


@pytest.mark.parametrize("steps", [1, 3, 5])
def test_boxes_that_are_shifted(steps):
    """Boxes of 20 x 8 are shifted along an axis: Dice is the overlapping share, the largest distance the shift."""
    ours = torch.zeros(1, 40, 16, dtype=torch.bool)
    ours[0, 5:25, 4:12] = True
    theirs = ours.roll(steps, 1)
    assert dice(ours, theirs).item() == pytest.approx((20 - steps) / 20)
    assert surface_dice(ours, theirs, 2.0 * steps, (2.0, 2.0)).item() == 1
    edges = 2 * (20 + 8) - 4
    expected = np.percentile([steps] * 8 + sorted([*range(1, steps)] * 2) + [0] * (edges - 8 - 2 * (steps - 1)), 95)
    assert hausdorff95(ours, theirs, (2.0, 2.0)).item() <= 2 * steps
    assert hausdorff95(ours, theirs, (2.0, 2.0)).item() == pytest.approx(2 * expected)


def test_empty_masks():
    """Two empty masks agree; a distance to an empty mask is undefined."""
    something, nothing = torch.zeros(2, 1, 6, 6, dtype=torch.bool)
    something[0, 2:4, 2:4] = True
    overlaps = {"dice": dice, "surface": lambda a, b: surface_dice(a, b, 1.0), "lesions": lesion_f1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name, score in overlaps.items():
            assert score(nothing, nothing).item() == 1, name
            assert score(something, nothing).item() == 0, name
            assert score(nothing, something).item() == 0, name
            assert score(something, something).item() == 1, name
        assert hausdorff95(nothing, nothing).isnan().all()
        assert hausdorff95(something, nothing).isnan().all()
        assert hausdorff95(nothing, something).isnan().all()
        assert hausdorff95(something, something).item() == 0


def test_classes_become_masks():
    classes = torch.tensor([[[0, 1, 2], [2, 2, 1]]])
    masks = class_masks(classes, 4)
    assert masks.shape == (3, 2, 3)
    assert masks.dtype == torch.bool
    assert [mask.sum().item() for mask in masks] == [2, 3, 0]
    assert dice(masks, masks).tolist() == [1, 1, 1]


def lesions(*places):
    mask = torch.zeros(1, 20, 20, dtype=torch.bool)
    for row, column in places:
        mask[0, row : row + 3, column : column + 3] = True
    return mask


def test_lesions_are_counted_not_their_voxels():
    reference = lesions((0, 0), (10, 10), (0, 10))
    assert lesion_f1(reference, reference).item() == 1
    assert lesion_f1(lesions((2, 2)), reference).item() == pytest.approx(2 / (2 + 2)), "a touch finds one of three"
    assert lesion_f1(lesions((0, 0), (10, 10), (0, 10), (15, 0)), reference).item() == pytest.approx(6 / 7)
    assert lesion_f1(lesions((15, 0)), reference).item() == 0
    everything = torch.ones(1, 20, 20, dtype=torch.bool)
    assert lesion_f1(everything, reference).item() == 1, "one proposal that touches all: Dice is what tells"
    assert lesion_f1(reference, everything).item() == 1
    corner = lesions((0, 0), (3, 3))
    assert lesion_f1(lesions((0, 0)), corner).item() == 1, "connected at a corner, so one lesion"


def test_means_are_over_cases_and_leave_out_what_is_undefined():
    scores = torch.tensor([[1.0, math.nan], [0.5, 0.0], [math.nan, math.nan]], dtype=torch.float64)
    weights = torch.tensor([[1.0, 3.0, 0.0], [1.0, 1.0, 0.0], [1.0, 5.0, 2.0]], dtype=torch.float64)
    assert mean_over_cases(scores, weights).tolist() == pytest.approx([0.625, 3.25 / 4, math.nan], nan_ok=True)
    means = class_means(scores, weights)
    assert means[0].tolist() == pytest.approx([0.75, 3.5 / 4, math.nan], nan_ok=True)
    assert means[1].tolist() == pytest.approx([0, 0, math.nan], nan_ok=True)


def test_a_weight_is_a_number_of_copies():
    g = torch.Generator().manual_seed(0)
    scores = torch.rand(12, 3, generator=g, dtype=torch.float64)
    scores[torch.rand(12, 3, generator=g) < 0.3] = math.nan
    weights = torch.randint(4, (12, 5), generator=g).double()
    for column in range(5):
        rows = torch.arange(12).repeat_interleave(weights[:, column].long())
        once = torch.ones(len(rows), 1, dtype=torch.float64)
        copies, means = mean_over_cases(scores[rows], once)[0], mean_over_cases(scores, weights)[column]
        assert means.item() == pytest.approx(copies.item())
        assert mean_over_cases(scores, weights)[column].item() == pytest.approx(
            float(np.nanmean(np.nanmean(scores[rows].numpy(), axis=1)))
        )
