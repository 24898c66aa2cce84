"""Loss modules that torch and MONAI lack, for survival, partially labelled findings, and overlapping masks.

Each loss is the mean over a batch of B samples. For masks of exclusive classes use MONAI's `DiceCELoss`; for classes
and numbers use torch's losses.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from medfl.errors import SettingsError

Ties = Literal["efron", "breslow"]
"""Treatment of events at the same time (ties) in the partial likelihood: Efron's or Breslow's, see `CoxLoss`."""


def has_events(targets: torch.Tensor) -> bool:
    """Return True if there is any event. Without one, the loss of a Cox model and its gradient are 0.

    Args:
        targets: Targets (N, 2): time, and 1 for an event or 0 for a censored time.
    """
    return bool((targets[:, 1] == 1).any())


class CoxLoss(nn.Module):
    """Negative log partial likelihood of the Cox model, divided by the number of events.

    An event at time t contributes log sum of exp(risk) over all rows under observation at t or later, minus its own
    risk. A constant added to all risks does not change the loss. The rows of a batch are each other's risk set, so a
    batch needs several rows. With one row, or without an event, the loss and its gradient are 0.

    With equal risks in a batch and events at different times, the loss is the mean of log n_t, with n_t rows at risk.

    Sources: Cox 1972, Regression models and life-tables; ties by Breslow 1974, Covariance analysis of censored survival
    data, or Efron 1977, The efficiency of Cox's likelihood function for censored data. Without ties both are equal.

    Args:
        ties: With ``efron``, the l-th (from 0) of d events at one time subtracts l / d of their sum from its risk set;
            with ``breslow``, all of them use the whole sum.

    Raises:
        SettingsError: If `ties` is unknown.
    """

    def __init__(self, ties: Ties = "efron") -> None:
        super().__init__()
        if ties not in get_args(Ties):
            raise SettingsError(
                "unknown_choice",
                f"CoxLoss expected ties to be one of {', '.join(get_args(Ties))}, got {ties!r}",
                what="ties",
                choice=ties,
            )
        self.ties = ties

    def forward(self, risks: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar >= 0.

        Args:
            risks: Predicted risks (B, 1) or (B,), floating; a higher risk means an earlier event.
            targets: Targets (B, 2), floating: time > 0, and 1 for an event or 0 for a censored time.
        """
        risks, times, events = _sort_by_decreasing_time(risks, targets)
        if not events.any():
            return risks.sum() * 0
        _, instants, counts = times.unique_consecutive(return_inverse=True, return_counts=True)
        at_risk = risks.logcumsumexp(0)[counts.cumsum(0) - 1][instants][events]
        if self.ties == "efron":
            at_risk = at_risk + _efron_correction(risks[events], instants[events], at_risk)
        return (at_risk - risks[events]).mean()


def _sort_by_decreasing_time(
    risks: torch.Tensor, targets: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Sort by decreasing time, keeping the order of equal times.

    Returns:
        Risks (B,), at least float32; times (B,); and whether each row is an event (B,), bool.
    """
    times, order = targets[:, 0].sort(descending=True, stable=True)
    risks = risks.reshape(-1)[order]
    return risks.to(torch.promote_types(risks.dtype, torch.float32)), times, targets[order, 1] == 1


def _efron_correction(risks: torch.Tensor, instants: torch.Tensor, at_risk: torch.Tensor) -> torch.Tensor:
    """Return the correction of the logarithm of each event's risk set, log(1 - l / d * tied / at risk); 0 without ties.

    Args:
        risks: Risks (E,) of the events, by decreasing time.
        instants: Number of each event's time (E,), int64, increasing.
        at_risk: Logarithm of the sum over each event's risk set, (E,).
    """
    _, groups, counts = instants.unique_consecutive(return_inverse=True, return_counts=True)
    place = torch.arange(len(groups), device=groups.device) - (counts.cumsum(0) - counts)[groups]
    shares = (risks - at_risk).exp()  # events at the same time have the same risk set
    tied = torch.zeros_like(shares[: len(counts)]).index_add(0, groups, shares)[groups]
    return torch.log1p(-place.to(tied.dtype) / counts[groups] * tied)


class FlambyCoxLoss(nn.Module):
    """Loss of FLamby's Fed-TCGA-BRCA, which its published results use; for anything else use `CoxLoss`.

    Rows are sorted by decreasing time. Row i, if it is an event, contributes the logarithm of the sum of exp(risk) over
    rows 0 to i, minus its own risk; row 0 contributes nothing. The sum is divided by the number of rows, not of events.
    Of rows with equal times, each is at risk only for later rows of the batch, while Breslow's form includes all of
    them.

    Without ties it equals `CoxLoss` times the share of events.

    Source: Ogier du Terrail et al. 2022, FLamby, NeurIPS Datasets and Benchmarks; its code of that data set.
    """

    def forward(self, risks: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar >= 0, of risks (B, 1) and targets (B, 2), as in `CoxLoss.forward`."""
        risks, _, events = _sort_by_decreasing_time(risks, targets)
        return ((risks.logcumsumexp(0) - risks) * events).mean()


class OneLogitCrossEntropy(nn.CrossEntropyLoss):
    """Binary cross entropy of one logit z, computed as the cross entropy of the two logits 0 and z.

    It supports the options of `torch.nn.CrossEntropyLoss`: class weights, label smoothing. A logit of 0 gives log 2.
    """

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar.

        Args:
            logits: Logits (B, 1), floating.
            targets: Targets (B,), int64, 0 or 1.
        """
        return super().forward(torch.cat([torch.zeros_like(logits), logits], dim=1), targets)


class LabelledBCELoss(nn.Module):
    """Mean binary cross entropy over the labelled findings: log(1 + exp(-z)) or log(1 + exp(z)) for a logit z.

    A target of NaN means that the finding is not labelled in that image; it has no loss and no gradient. Without any
    labelled finding, the loss and its gradient are 0. Logits of 0 give log 2.

    Args:
        pos_weight: Weight of each finding's positive targets, (C,); None is 1.
    """

    def __init__(self, pos_weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.pos_weight: torch.Tensor | None
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar >= 0.

        Args:
            logits: Logits (B, C), floating.
            targets: Targets (B, C), or (B,) for C = 1: 0, 1, or NaN for a finding that is not labelled.
        """
        targets = targets.reshape(logits.shape).to(logits.dtype)
        known = ~targets.isnan()
        losses = F.binary_cross_entropy_with_logits(
            logits, targets.nan_to_num(0.0), reduction="none", pos_weight=self.pos_weight
        )
        return (losses * known).sum() / known.sum().clamp(min=1)


class DiceBCELoss(nn.Module):
    """Sum of MONAI's Dice loss and binary cross entropy, for masks that may overlap: one sigmoid per channel.

    MONAI's `DiceCELoss` differs even with ``sigmoid=True``: its cross entropy uses a softmax over the channels, which
    is for exclusive classes. Use `DiceCELoss` for those.

    Attributes:
        dice: MONAI's Dice loss with a sigmoid.
    """

    def __init__(self) -> None:
        super().__init__()
        from monai.losses import DiceLoss  # MONAI takes seconds to import

        self.dice = DiceLoss(sigmoid=True)

    def forward(self, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """Return the loss, a scalar >= 0.

        Args:
            logits: Logits (B, C, *spatial), floating.
            masks: Masks (B, C, *spatial), 0 or 1.
        """
        masks = masks.to(logits.dtype)
        loss: torch.Tensor = self.dice(logits, masks) + F.binary_cross_entropy_with_logits(logits, masks)
        return loss
