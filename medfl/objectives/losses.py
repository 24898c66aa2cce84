"""Losses of tasks that are no choice among classes, as modules that a bundle names; each gives the mean of a batch.

For masks of classes MONAI has `DiceCELoss`, and for classes and numbers torch has them.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch
from torch import nn
from torch.nn import functional as F

from medfl.errors import SettingsError

Ties = Literal["efron", "breslow"]
"""How events at the same time share their risk set."""


def has_events(targets: torch.Tensor) -> bool:
    """Whether a Cox model can learn anything from these: without an event every loss here is 0, with a gradient of 0.

    Args:
        targets: (N, 2): time, and 1 for an event or 0 where the time is cut short.
    """
    return bool((targets[:, 1] == 1).any())


class CoxLoss(nn.Module):
    """Minus the logarithm of Cox's partial likelihood, divided by the number of events.

    An event at time t adds log sum of exp(risk) over all who are under observation at t or later, minus its own risk.
    It knows no scale: a number added to all risks changes nothing. Rows of one batch are each other's risk set, so a
    batch needs several; with one row, or without an event, the loss and its gradient are 0.

    With equal risks in a batch and events at different times it is the mean of log n_t, with n_t rows at risk.

    Sources: Cox 1972, Regression models and life-tables; ties by Breslow 1974, Covariance analysis of censored survival
    data, or Efron 1977, The efficiency of Cox's likelihood function for censored data. Without ties all are the same.

    Args:
        ties: ``efron`` takes of d events at one time the l-th one (from 0) with l / d of their sum out of its risk set;
            ``breslow`` leaves the sum in for all of them.

    Raises:
        SettingsError: If `ties` is neither.
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
        """The loss (), >= 0.

        Args:
            risks: (B, 1) or (B,), floating: larger means earlier.
            targets: (B, 2), floating: time > 0, and 1 for an event or 0 where the time is cut short.
        """
        risks, times, events = _by_falling_time(risks, targets)
        if not events.any():
            return risks.sum() * 0
        _, instants, counts = times.unique_consecutive(return_inverse=True, return_counts=True)
        at_risk = risks.logcumsumexp(0)[counts.cumsum(0) - 1][instants][events]
        if self.ties == "efron":
            at_risk = at_risk + _efron(risks[events], instants[events], at_risk)
        return (at_risk - risks[events]).mean()


def _by_falling_time(risks: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Risks (B,), at least float32, times (B,), and whether each is an event (B,), bool; equal times stay in order."""
    times, order = targets[:, 0].sort(descending=True, stable=True)
    risks = risks.reshape(-1)[order]
    return risks.to(torch.promote_types(risks.dtype, torch.float32)), times, targets[order, 1] == 1


def _efron(risks: torch.Tensor, instants: torch.Tensor, at_risk: torch.Tensor) -> torch.Tensor:
    """What to add to the logarithm of each event's risk set: log(1 - l / d * tied / at risk); 0 without ties.

    Args:
        risks: (E,), of the events, by falling time.
        instants: (E,), int64: the number of each one's time, rising.
        at_risk: (E,): logarithm of the sum over each one's risk set.
    """
    _, groups, counts = instants.unique_consecutive(return_inverse=True, return_counts=True)
    place = torch.arange(len(groups), device=groups.device) - (counts.cumsum(0) - counts)[groups]
    shares = (risks - at_risk).exp()  # of one time all have the same risk set
    tied = torch.zeros_like(shares[: len(counts)]).index_add(0, groups, shares)[groups]
    return torch.log1p(-place.to(tied.dtype) / counts[groups] * tied)


class FlambyCoxLoss(nn.Module):
    """The loss of FLamby's Fed-TCGA-BRCA, with which its published numbers were made; for anything else take `CoxLoss`.

    Rows are sorted by falling time. Row i adds, if it is an event, the logarithm of the sum of exp(risk) over rows 0 to
    i, minus its own risk; row 0 adds nothing. The sum is divided by all rows, not by the events. So of rows at one time
    each is at risk only for those that come after it in the batch, where Breslow's form has all of them.

    Without ties it is `CoxLoss` times the share of the events.

    Source: Ogier du Terrail et al. 2022, FLamby, NeurIPS Datasets and Benchmarks; its code of that data set.
    """

    def forward(self, risks: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss (), >= 0; arguments as for `CoxLoss`."""
        risks, _, events = _by_falling_time(risks, targets)
        return ((risks.logcumsumexp(0) - risks) * events).mean()


class OneLogitCrossEntropy(nn.CrossEntropyLoss):
    """Binary cross entropy of one logit z, which is the cross entropy of the two logits 0 and z.

    So it takes what `torch.nn.CrossEntropyLoss` takes: class weights, label smoothing. A logit of 0 gives log 2.
    """

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss ().

        Args:
            logits: (B, 1), floating.
            targets: (B,), int64, 0 or 1.
        """
        return super().forward(torch.cat([torch.zeros_like(logits), logits], dim=1), targets)


class LabelledBCELoss(nn.Module):
    """Binary cross entropy of logits over the targets that are known: mean of log(1 + exp(-z)) or log(1 + exp(z)).

    A target of NaN says that nobody looked for that finding in that image; it has neither loss nor gradient. Where no
    target is known both are 0. Logits of 0 give log 2.

    Args:
        pos_weight: (C,): how often each finding's presence counts; None is once.
    """

    def __init__(self, pos_weight: torch.Tensor | None = None) -> None:
        super().__init__()
        self.pos_weight: torch.Tensor | None
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss (), >= 0.

        Args:
            logits: (B, C), floating.
            targets: (B, C), or (B,) for C = 1: 0, 1, or NaN where a finding is not labelled.
        """
        targets = targets.reshape(logits.shape).to(logits.dtype)
        known = ~targets.isnan()
        losses = F.binary_cross_entropy_with_logits(
            logits, targets.nan_to_num(0.0), reduction="none", pos_weight=self.pos_weight
        )
        return (losses * known).sum() / known.sum().clamp(min=1)


class DiceBCELoss(nn.Module):
    """MONAI's Dice loss and binary cross entropy, added, for masks that may overlap: a sigmoid for each channel.

    MONAI's `DiceCELoss` is not that, even with ``sigmoid=True``: its cross entropy is that of a softmax over the
    channels, which is for classes that exclude each other. For those it is the loss to take.
    """

    def __init__(self) -> None:
        super().__init__()
        from monai.losses import DiceLoss  # MONAI takes seconds to import

        self.dice = DiceLoss(sigmoid=True)

    def forward(self, logits: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
        """The loss (), >= 0.

        Args:
            logits: (B, C, *spatial), floating.
            masks: (B, C, *spatial), 0 or 1.
        """
        masks = masks.to(logits.dtype)
        loss: torch.Tensor = self.dice(logits, masks) + F.binary_cross_entropy_with_logits(logits, masks)
        return loss
