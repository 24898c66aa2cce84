"""Scores of masks: first of each case and class, then averaged over cases, never over patches or pooled voxels.

A mask is bool, (C, *spatial), a channel for each class without the background, or for each of several labels that may
overlap. Where a class is in neither mask, the overlap is 1; where it is in one only, the overlap is 0. In both cases a
distance is not defined. What is not defined is NaN: left out of means, and counted.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

MaskScore = Callable[[torch.Tensor, torch.Tensor], float]
"""A score of a predicted and a reference mask (*spatial), bool, both of which hold something."""


def class_masks(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """A mask for each class but the first one, the background.

    Args:
        classes: (1, *spatial), int64, in [0, num_classes).
        num_classes: >= 2.

    Returns:
        (num_classes - 1, *spatial), bool.
    """
    shape = [-1] + [1] * (classes.dim() - 1)
    return classes == torch.arange(1, num_classes, device=classes.device).reshape(shape)


def dice(prediction: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """2 |A and B| / (|A| + |B|) of a case's masks; MONAI's `compute_dice` with empty references counted.

    Args:
        prediction: (C, *spatial), bool.
        reference: (C, *spatial), bool.

    Returns:
        (C,), float64, in [0, 1]; 1 where both are empty, 0 where one is.

    Example:
        >>> dice(torch.tensor([[[True, True]]]), torch.tensor([[[True, False]]]))
        tensor([0.6667], dtype=torch.float64)
    """
    from monai.metrics import compute_dice  # MONAI takes seconds to import

    return compute_dice(prediction[None], reference[None], ignore_empty=False)[0].double()


def hausdorff95(
    prediction: torch.Tensor, reference: torch.Tensor, spacing: Sequence[float] | None = None
) -> torch.Tensor:
    """95th percentile of the distance from one surface to the other, the larger of both directions. Lower is better.

    A surface is the voxels of a mask with a neighbour along an axis that is not in it. It is MONAI's
    `compute_hausdorff_distance`.

    Args:
        prediction: (C, *spatial), bool, 2-D or 3-D.
        reference: (C, *spatial), bool.
        spacing: Of the voxels along each axis in millimetres; None where nobody knows: distances are in voxels.

    Returns:
        (C,), float64, >= 0; NaN where one of the masks is empty.
    """
    from monai.metrics import compute_hausdorff_distance  # MONAI takes seconds to import

    unit = list(spacing) if spacing is not None else None

    def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
        masks = ours[None, None], theirs[None, None]
        return float(compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=unit))

    return _of_each(distance, prediction, reference, both_empty=np.nan, one_empty=np.nan)


def surface_dice(
    prediction: torch.Tensor, reference: torch.Tensor, tolerance: float, spacing: Sequence[float] | None = None
) -> torch.Tensor:
    """Share of both surfaces that is no farther from the other one than a tolerance.

    It is MONAI's `compute_surface_dice`, in which each voxel of a surface counts as one.

    Source: Nikolov et al. 2021, Clinically applicable segmentation of head and neck anatomy for radiotherapy.

    Args:
        prediction: (C, *spatial), bool, 2-D or 3-D.
        reference: (C, *spatial), bool.
        tolerance: In the unit of `spacing`, >= 0: how far experts' outlines are apart. A score without it says nothing.
        spacing: Of the voxels along each axis in millimetres; None where nobody knows: the tolerance is in voxels.

    Returns:
        (C,), float64, in [0, 1]; 1 where both are empty, 0 where one is.
    """
    from monai.metrics import compute_surface_dice  # MONAI takes seconds to import

    unit = list(spacing) if spacing is not None else None

    def overlap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
        masks = ours[None, None], theirs[None, None]
        return float(compute_surface_dice(*masks, [tolerance], include_background=True, spacing=unit))

    return _of_each(overlap, prediction, reference, both_empty=1.0, one_empty=0.0)


def lesion_f1(prediction: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """F1 of single lesions: a lesion of the reference that the prediction touches is a hit, another one a miss.

    A lesion of the prediction that touches none of the reference is a false alarm; the score is
    2 hits / (2 hits + misses + alarms). Lesions are connected along edges and corners (8 or 26 neighbours).

    Source: Hernandez Petzsche et al. 2022, ISLES 2022: a multi-center magnetic resonance imaging stroke lesion
    segmentation dataset, section on evaluation.

    Args:
        prediction: (C, *spatial), bool.
        reference: (C, *spatial), bool.

    Returns:
        (C,), float64, in [0, 1]; 1 where both are empty, 0 where one is.
    """
    return _of_each(_lesion_f1, prediction, reference, both_empty=1.0, one_empty=0.0)


def mean_over_cases(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The mean over cases of each case's mean over its classes; a class that is not defined in a case is left out.

    Args:
        scores: (N, C), float64: of each case and class.
        weights: (N, B), float64, not negative.

    Returns:
        (B,), float64; NaN where no case that counts has a score.

    Example:
        >>> mean_over_cases(torch.tensor([[1.0, torch.nan], [0.0, 0.5]]).double(), torch.ones(2, 1).double())
        tensor([0.6250], dtype=torch.float64)
    """
    return class_means(scores.nanmean(1, keepdim=True), weights)[0]


def class_means(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The mean of each class over the cases where its score is defined.

    Args:
        scores: (N, C), float64: of each case and class.
        weights: (N, B), float64, not negative.

    Returns:
        (C, B), float64; NaN where no case that counts has a score.
    """
    defined = ~scores.isnan()
    return scores.nan_to_num(0.0).T @ weights / (defined.double().T @ weights)


def undefined_cases(scores: torch.Tensor) -> torch.Tensor:
    """How many cases have no score, (C,), int64, of scores (N, C)."""
    return scores.isnan().sum(0)


def _of_each(
    score: MaskScore, prediction: torch.Tensor, reference: torch.Tensor, both_empty: float, one_empty: float
) -> torch.Tensor:
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # MONAI's, about how it calls itself
        for ours, theirs in zip(prediction, reference):
            filled = int(ours.any()) + int(theirs.any())
            values.append(score(ours, theirs) if filled == 2 else (both_empty, one_empty)[filled])
    return torch.tensor(values, dtype=torch.float64)


def _lesion_f1(prediction: torch.Tensor, reference: torch.Tensor) -> float:
    ours, theirs = prediction.cpu().numpy(), reference.cpu().numpy()
    from scipy import ndimage

    neighbours = ndimage.generate_binary_structure(ours.ndim, ours.ndim)
    lesions, count = ndimage.label(theirs, neighbours)
    hits = len(np.unique(lesions[ours & theirs]))
    proposals, proposed = ndimage.label(ours, neighbours)
    alarms = proposed - len(np.unique(proposals[ours & theirs]))
    return 2 * hits / (hits + count + alarms)
