"""Metrics of masks: computed per case and class, then averaged over cases, never over patches or pooled voxels.

A mask is bool, (C, *spatial), with a channel for each class except the background, or for each of several labels that
may overlap. If a class is in neither mask, the overlap is 1; if it is in only one, the overlap is 0. In both cases
distances are undefined. Undefined values are NaN; they are left out of means, and their number is reported. N is the
number of cases, and B the number of weightings of the cases.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import numpy as np
import torch

MaskScore = Callable[[torch.Tensor, torch.Tensor], float]
"""Function that computes a score of a predicted and a reference mask (*spatial), bool, which are both not empty."""


def class_masks(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Convert class numbers to one mask per class, without the first class, the background.

    Args:
        classes: Class numbers (1, *spatial), int64, in [0, num_classes).
        num_classes: Number of classes, >= 2.

    Returns:
        Masks (num_classes - 1, *spatial), bool.
    """
    shape = [-1] + [1] * (classes.dim() - 1)
    return classes == torch.arange(1, num_classes, device=classes.device).reshape(shape)


def dice(prediction: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Compute the Dice 2 |P and R| / (|P| + |R|) of a case's predicted mask P and reference mask R, for each class.

    Computed by MONAI's `compute_dice` with empty references counted.

    Args:
        prediction: Predicted masks (C, *spatial), bool.
        reference: Reference masks (C, *spatial), bool.

    Returns:
        Dice (C,), float64, in [0, 1]; 1 if both masks are empty, 0 if one is.

    Example:
        >>> dice(torch.tensor([[[True, True]]]), torch.tensor([[[True, False]]]))
        tensor([0.6667], dtype=torch.float64)
    """
    from monai.metrics import compute_dice  # MONAI takes seconds to import

    return compute_dice(prediction[None], reference[None], ignore_empty=False)[0].double()


def hausdorff95(
    prediction: torch.Tensor, reference: torch.Tensor, spacing: Sequence[float] | None = None
) -> torch.Tensor:
    """Compute the 95th percentile of the distance between surfaces, the larger of both directions. Lower is better.

    A surface consists of the voxels of a mask with a neighbour along an axis that is not in the mask. Computed by
    MONAI's `compute_hausdorff_distance`.

    Args:
        prediction: Predicted masks (C, *spatial), bool, 2-D or 3-D.
        reference: Reference masks (C, *spatial), bool.
        spacing: Voxel spacing along each axis in millimetres; None if unknown: distances are in voxels.

    Returns:
        Distances (C,), float64, >= 0; NaN if one of the masks is empty.
    """
    from monai.metrics import compute_hausdorff_distance  # MONAI takes seconds to import

    unit = list(spacing) if spacing is not None else None

    def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
        masks = ours[None, None], theirs[None, None]
        return float(compute_hausdorff_distance(*masks, include_background=True, percentile=95, spacing=unit))

    return _score_each_class(distance, prediction, reference, both_empty=np.nan, one_empty=np.nan)


def surface_dice(
    prediction: torch.Tensor, reference: torch.Tensor, tolerance: float, spacing: Sequence[float] | None = None
) -> torch.Tensor:
    """Compute the share of both surfaces that is within a tolerance of the other surface.

    Computed by MONAI's `compute_surface_dice`, in which each voxel of a surface counts as one.

    Source: Nikolov et al. 2021, Clinically applicable segmentation of head and neck anatomy for radiotherapy.

    Args:
        prediction: Predicted masks (C, *spatial), bool, 2-D or 3-D.
        reference: Reference masks (C, *spatial), bool.
        tolerance: Tolerance in the unit of `spacing`, >= 0, usually the disagreement between experts' outlines. A score
            is only meaningful with its tolerance.
        spacing: Voxel spacing along each axis in millimetres; None if unknown: the tolerance is in voxels.

    Returns:
        Scores (C,), float64, in [0, 1]; 1 if both masks are empty, 0 if one is.
    """
    from monai.metrics import compute_surface_dice  # MONAI takes seconds to import

    unit = list(spacing) if spacing is not None else None

    def overlap(ours: torch.Tensor, theirs: torch.Tensor) -> float:
        masks = ours[None, None], theirs[None, None]
        return float(compute_surface_dice(*masks, [tolerance], include_background=True, spacing=unit))

    return _score_each_class(overlap, prediction, reference, both_empty=1.0, one_empty=0.0)


def lesion_f1(prediction: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Compute the F1 of lesions, 2 hits / (2 hits + misses + alarms).

    A reference lesion that overlaps the prediction is a hit, any other one a miss. A predicted lesion that overlaps no
    reference lesion is a false alarm. Lesions are connected along faces, edges and corners (8 or 26 neighbours).

    Source: Hernandez Petzsche et al. 2022, ISLES 2022: a multi-center magnetic resonance imaging stroke lesion
    segmentation dataset, section on evaluation.

    Args:
        prediction: Predicted masks (C, *spatial), bool.
        reference: Reference masks (C, *spatial), bool.

    Returns:
        F1 (C,), float64, in [0, 1]; 1 if both masks are empty, 0 if one is.
    """
    return _score_each_class(_lesion_f1, prediction, reference, both_empty=1.0, one_empty=0.0)


def mean_over_cases(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Average each case's scores over its classes, then over cases; a class with an undefined score is left out.

    Args:
        scores: Scores of each case and class, (N, C), float64.
        weights: Case weights (N, B), float64, >= 0.

    Returns:
        Means (B,), float64; NaN if no case with positive weight has a score.

    Example:
        >>> mean_over_cases(torch.tensor([[1.0, torch.nan], [0.0, 0.5]]).double(), torch.ones(2, 1).double())
        tensor([0.6250], dtype=torch.float64)
    """
    return class_means(scores.nanmean(1, keepdim=True), weights)[0]


def class_means(scores: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Average each class's scores over the cases in which they are defined.

    Args:
        scores: Scores of each case and class, (N, C), float64.
        weights: Case weights (N, B), float64, >= 0.

    Returns:
        Means (C, B), float64; NaN if no case with positive weight has a score.
    """
    defined = ~scores.isnan()
    return scores.nan_to_num(0.0).T @ weights / (defined.double().T @ weights)


def _score_each_class(
    score: MaskScore, prediction: torch.Tensor, reference: torch.Tensor, both_empty: float, one_empty: float
) -> torch.Tensor:
    """Compute a score of each class; empty masks get fixed values."""
    values = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # from MONAI's own internal calls
        for ours, theirs in zip(prediction, reference):
            filled = int(ours.any()) + int(theirs.any())
            values.append(score(ours, theirs) if filled == 2 else (both_empty, one_empty)[filled])
    return torch.tensor(values, dtype=torch.float64)


def _lesion_f1(prediction: torch.Tensor, reference: torch.Tensor) -> float:
    """Compute the F1 of lesions of one class."""
    ours, theirs = prediction.cpu().numpy(), reference.cpu().numpy()
    from scipy import ndimage

    neighbours = ndimage.generate_binary_structure(ours.ndim, ours.ndim)
    lesions, count = ndimage.label(theirs, neighbours)
    hits = len(np.unique(lesions[ours & theirs]))
    proposals, proposed = ndimage.label(ours, neighbours)
    alarms = proposed - len(np.unique(proposals[ours & theirs]))
    return 2 * hits / (hits + count + alarms)
