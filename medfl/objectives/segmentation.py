"""Segmentation: one class per voxel, or masks that may overlap."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import nn

from medfl.errors import ContractError, SettingsError, check_choice
from medfl.metrics.metric import WeightedScore
from medfl.metrics.segmentation import (
    class_masks,
    class_means,
    dice,
    hausdorff95,
    lesion_f1,
    mean_over_cases,
    surface_dice,
)
from medfl.objectives.losses import DiceBCELoss
from medfl.objectives.objective import Objective
from medfl.objectives.outputs import ConstantAnswer, mean_of_classes, mean_of_findings
from medfl.objectives.target_checks import any_in_rows, check_rows

SPACING_OF_EACH_CASE = "of each case"
"""Value of `Segmentation.spacing` if each case has the voxel spacing of its image."""


@dataclass(frozen=True)
class Segmentation(Objective):
    """Segmentation of an image into C classes, the first being the background, or into C labels that may overlap.

    A target is a mask of the image's size: int64, shape (1, *spatial), with class numbers, or (C, *spatial) with 0 or 1
    if labels overlap. A network has logits (C, *spatial). Metrics are computed per case and averaged over cases.
    `scoring_inputs` therefore has the scores of each case by class, not its voxels.

    Attributes:
        channels: Number of classes including the background, >= 2, or of labels that may overlap, >= 1.
        overlapping: Whether labels may overlap: one sigmoid per label instead of a softmax.
        spacing: Voxel spacing along each axis in millimetres. With `SPACING_OF_EACH_CASE`, each case uses the spacing
            of its image, and distances are undefined for a case without it. None means an unknown spacing; distances
            are in voxels then.
        tolerance: Tolerance of the surface Dice, in the unit of distances, >= 0.
    """

    name: ClassVar[str] = "segmentation"
    """Name of the objective in data lists and bundles."""
    metrics: ClassVar[tuple[str, ...]] = ("dice",)
    """Default metrics of a task; the first one is the key metric."""
    headline: ClassVar[tuple[str, ...]] = ("dice", "hd95")
    """Metrics that a report shows side by side after the task's first one, if a run has them."""
    pipeline: ClassVar[str] = "segmentation"
    """Suffix of Hugging Face's pipeline tag for models of this objective."""
    outputs_field: ClassVar[str | None] = "channels"
    """Name of the field with the number of a network's output channels."""
    figures: ClassVar[tuple[str, ...]] = ("masks",)
    """Keywords of the figures that a report draws from predictions."""
    target_type: ClassVar[torch.dtype] = torch.int64
    """Dtype of a batch of targets."""
    has_soft_targets: ClassVar[bool] = True
    """Whether outputs are probabilities of alternatives (`alternatives`), so that models can be distilled."""
    has_spatial_targets: ClassVar[bool] = True
    """Whether a target is spatially aligned with its image, so that both are transformed together."""

    channels: int = 2
    overlapping: bool = False
    spacing: tuple[float, ...] | str | None = None
    tolerance: float = 1.0

    def __post_init__(self) -> None:
        least = 1 if self.overlapping else 2
        if self.channels < least:
            raise SettingsError(
                "setting_out_of_range",
                f"expected at least {least} in channels of a segmentation, got {self.channels}.",
                setting="channels",
                minimum=least,
                found=self.channels,
            )
        if isinstance(self.spacing, str):
            check_choice("spacing", self.spacing, (SPACING_OF_EACH_CASE,))
        elif self.spacing is not None:
            object.__setattr__(self, "spacing", tuple(map(float, self.spacing)))  # JSON has lists and whole numbers
            if not all(0 < edge < math.inf for edge in self.spacing):
                raise SettingsError(
                    "setting_out_of_range",
                    f"expected a spacing of millimetres > 0 for each axis, got {self.spacing}.",
                    setting="spacing",
                    minimum=0,
                    found=self.spacing,
                )

    @property
    def outputs(self) -> int:
        """Number of outputs, one per class or label."""
        return self.channels

    def output_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of a network's outputs for one image: (C, *spatial)."""
        return (self.channels, *image[1:])

    @property
    def labels(self) -> tuple[int, ...]:
        """Numbers of the evaluated classes: all classes except the background, or all labels."""
        return tuple(range(self.channels)) if self.overlapping else tuple(range(1, self.channels))

    @property
    def scores(self) -> Mapping[str, WeightedScore]:
        """Metrics by name.

        ``dice``, ``hd95``, ``surface_dice`` and ``lesion_f1`` average over classes, then over cases. ``dice_1``,
        ``dice_2``, ... are the mean Dice of a single class.
        """
        size = len(self.labels)
        places = {name: slice(place * size, (place + 1) * size) for place, name in enumerate(_SCORE_KINDS)}
        means = {name: partial(_mean_of_columns, columns) for name, columns in places.items()}
        return means | {f"dice_{label}": self.class_score("dice", label) for label in self.labels}

    def class_score(self, kind: str, label: int) -> WeightedScore:
        """Return the metric that averages the score of a single class over cases.

        Args:
            kind: ``dice``, ``hd95``, ``surface_dice`` or ``lesion_f1``.
            label: Class number, one of `labels`.
        """
        return partial(_mean_of_column, _SCORE_KINDS.index(kind) * len(self.labels) + self.labels.index(label))

    def target_shape(self, image: Sequence[int]) -> tuple[int, ...]:
        """Return the shape of one case's target: (1, *spatial), or (C, *spatial) if labels overlap."""
        return (self.channels if self.overlapping else 1, *image[1:])

    def check_targets(self, targets: torch.Tensor, where: str, start: int = 0) -> None:
        """Raise if a mask has a number that is not a class."""
        highest = 1 if self.overlapping else self.channels - 1
        wrong = any_in_rows(targets, lambda values: (values < 0) | (values > highest) | (values != values.long()))
        check_rows(
            "wrong_mask_value",
            wrong,
            targets,
            where,
            start,
            f"masks of whole numbers from 0 to {highest}",
            "Correct the mask",
        )

    def strata(self, targets: torch.Tensor) -> torch.Tensor:
        """Return each case's stratum, for partitions and folds that keep strata in proportion.

        The stratum is 0 for an empty mask, otherwise 1.
        """
        return any_in_rows(targets, lambda values: values > 0).long()

    @property
    def stratum_names(self) -> tuple[str, ...]:
        """Names of the strata: empty masks, and others."""
        return ("nothing in the mask", "something in the mask")

    def check_outputs(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        """Raise if outputs don't have the size of the masks."""
        expected = (len(targets), self.channels, *targets.shape[2:])
        if tuple(outputs.shape) != expected:
            raise ContractError(
                "wrong_shape",
                f"Expected outputs of shape {expected} for the objective 'segmentation', got {tuple(outputs.shape)}. "
                "Give the network a channel for each class, and outputs of the size of its inputs.",
                objective="segmentation",
                expected=expected,
                found=tuple(outputs.shape),
            )

    def default_loss(self) -> nn.Module:
        """Return the default loss of a task: the sum of Dice loss and cross entropy."""
        from monai.losses import DiceCELoss  # MONAI takes seconds to import

        return DiceBCELoss() if self.overlapping else DiceCELoss(to_onehot_y=True, softmax=True)

    def predictions(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert logits to probabilities (N, C, *spatial)."""
        return outputs.sigmoid() if self.overlapping else outputs.softmax(dim=1)

    def masks(self, outputs: torch.Tensor) -> torch.Tensor:
        """Convert outputs to predicted masks (N, L, *spatial), bool, with one channel for each of the L `labels`."""
        if self.overlapping:
            return outputs > 0
        return torch.stack([class_masks(case, self.channels) for case in outputs.argmax(dim=1, keepdim=True)])

    def references(self, targets: torch.Tensor) -> torch.Tensor:
        """Convert targets to masks (N, L, *spatial), bool, with one channel for each of the L `labels`."""
        return targets > 0 if self.overlapping else torch.stack([class_masks(case, self.channels) for case in targets])

    def scoring_inputs(
        self,
        outputs: torch.Tensor,
        targets: torch.Tensor,
        metrics: Sequence[str],
        spacing: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the values per case that metrics and tables need, (N, K), float64.

        They are the scores of each class, and then the predicted size of each class in `size_unit`. The result contains
        the Dice and the scores that `metrics` need; all other scores are NaN.
        """
        wanted = [kind for kind in _SCORE_KINDS if kind in {"dice", *metrics}]
        predictions = torch.full(
            (len(targets), len(_SCORE_KINDS) + 1, len(self.labels)), torch.nan, dtype=torch.float64
        )
        pairs = zip(outputs, self.masks(outputs), self.references(targets), strict=True)
        for row, (case, ours, theirs) in enumerate(pairs):
            if bool(case.isnan().any()):
                continue  # a diverged model has no score
            for kind in wanted:
                predictions[row, _SCORE_KINDS.index(kind)] = self._score(
                    kind, ours, theirs, None if spacing is None else spacing[row]
                )
            predictions[row, -1] = self._sizes(ours)
        return predictions.flatten(1)

    def weighted_score(
        self, metric: str, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute a metric for each of B weightings (N, B) of the cases, over the cases whose score is defined."""
        return self.scores[metric](predictions, targets, weights)

    def _score(
        self, kind: str, ours: torch.Tensor, theirs: torch.Tensor, spacing: torch.Tensor | None
    ) -> torch.Tensor | float:
        """Return a score of each class of a case.

        `spacing` is the case's own spacing, used with `SPACING_OF_EACH_CASE`.
        """
        if kind in ("dice", "lesion_f1"):
            return dice(ours, theirs) if kind == "dice" else lesion_f1(ours, theirs)
        edges = self.spacing
        if isinstance(edges, str):
            if spacing is None or bool(spacing.isnan().any()):
                return math.nan
            edges = tuple(spacing.tolist())
        return hausdorff95(ours, theirs, edges) if kind == "hd95" else surface_dice(ours, theirs, self.tolerance, edges)

    def scoring_targets(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the size of each of the L `labels` in the reference masks, (N, L), float64, in `size_unit`."""
        sizes = [self._sizes(masks) for masks in self.references(targets)]
        return torch.stack(sizes) if sizes else torch.empty(0, len(self.labels), dtype=torch.float64)

    def _sizes(self, masks: torch.Tensor) -> torch.Tensor:
        """Return the size of each mask in `size_unit`."""
        edges = () if self.spacing is None or isinstance(self.spacing, str) else self.spacing
        return masks.flatten(1).sum(1).double().cpu() * math.prod(edges)

    @property
    def size_unit(self) -> str:
        """Unit of sizes: mm², mm³, or voxels without a common spacing."""
        if self.spacing is None or isinstance(self.spacing, str):
            return "voxels"
        return f"mm{'²' if len(self.spacing) == 2 else '³'}"

    def columns(self, metrics: Sequence[str]) -> tuple[str, ...]:
        """Return the column names of `scoring_inputs`: dice_1, dice_2, ..., hd95_1, ..., predicted_1, ..."""
        return tuple(f"{kind}_{label}" for kind in (*_SCORE_KINDS, "predicted") for label in self.labels)

    @property
    def target_columns(self) -> tuple[str, ...]:
        """Column names of a target's numbers in tables: none, because targets are masks."""
        return ()

    @property
    def scoring_target_columns(self) -> tuple[str, ...]:
        """Column names of `scoring_targets` in tables, the sizes by class: reference_1, reference_2, ..."""
        return tuple(f"reference_{label}" for label in self.labels)

    def is_without_nan(self, predictions: torch.Tensor) -> bool:
        """Return True if every case has a Dice; distances may be undefined."""
        return not bool(predictions[:, : len(self.labels)].isnan().any())

    def constant_answer(
        self, predictions: torch.Tensor, targets: torch.Tensor, names: Sequence[str] = ()
    ) -> ConstantAnswer | None:
        """Return the answer of a model that predicts only empty masks, if any reference mask is not empty."""
        if not len(predictions) or not self.is_without_nan(predictions):
            return None
        filled = int((targets > 0).any(1).sum())
        is_empty = not bool((predictions[:, -len(self.labels) :] > 0).any())
        return ConstantAnswer("an empty mask", filled) if is_empty and filled else None

    def average_outputs(self, outputs: torch.Tensor) -> torch.Tensor:
        """Average M networks' logits (M, N, ...) to logits (N, ...) with the mean of their probabilities."""
        return mean_of_findings(outputs) if self.overlapping else mean_of_classes(outputs)

    def alternatives(self, outputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of the alternatives that a model chooses among.

        They are the classes of each voxel, (N, C, *spatial). For overlapping labels they are the absence and presence
        of each label, (N, 2, C, *spatial).
        """
        return torch.stack([torch.zeros_like(outputs), outputs], dim=1) if self.overlapping else outputs

    def true_alternatives(self, targets: torch.Tensor) -> torch.Tensor:
        """Return the correct alternatives: the class of each voxel, (N, *spatial).

        For overlapping labels they are 0 (absent) or 1 (present), (N, C, *spatial).
        """
        return targets.long() if self.overlapping else targets[:, 0].long()

    def case_accuracy(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Compute the accuracy of each case as its mean Dice over the classes, (N,), float64, in [0, 1]."""
        pairs = zip(self.masks(outputs), self.references(targets), strict=True)
        return torch.stack([dice(ours, theirs).mean() for ours, theirs in pairs])


_SCORE_KINDS = ("dice", "hd95", "surface_dice", "lesion_f1")
"""Names of the scores per case, in the order of their columns."""


def _mean_of_columns(
    columns: slice, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Average the scores in the given columns over classes, then over cases."""
    return mean_over_cases(predictions[:, columns].double(), weights)


def _mean_of_column(
    place: int, predictions: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Average the scores in one column over cases."""
    return class_means(predictions[:, place : place + 1].double(), weights)[0]
