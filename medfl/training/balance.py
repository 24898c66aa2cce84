"""Class balancing (setting ``balance``) for a bundle's own trainer, to train one site with plain MONAI."""

from __future__ import annotations

import torch
from torch import nn

from medfl.objectives import Objective
from medfl.objectives.balance import class_weights, sampling_weights
from medfl.types import Dataset


def bundle_weights(labels: torch.Tensor, num_classes: int, balance: str) -> torch.Tensor | None:
    """Return the class weights (num_classes,) for a bundle's own loss, or None unless `balance` is ``loss``."""
    return class_weights(labels, num_classes) if balance == "loss" else None


def bundle_loss(loss: nn.Module, objective: Objective, data: Dataset, balance: str, device: str) -> nn.Module:
    """Return the loss of a bundle's own trainer, with class weights if `balance` is ``loss``."""
    if balance != "loss":
        return loss
    return objective.balanced_loss(loss, data.targets(torch.arange(len(data))), device)


def bundle_sampler(labels: torch.Tensor, balance: str, seed: int) -> torch.utils.data.Sampler[int] | None:
    """Return the sampler of a bundle's own data loader, or None unless `balance` is ``sampling``."""
    if balance != "sampling":
        return None
    generator = torch.Generator().manual_seed(seed)
    weights = sampling_weights(labels).tolist()
    return torch.utils.data.WeightedRandomSampler(weights, len(labels), generator=generator)
