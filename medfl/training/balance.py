"""What a bundle's own loader and loss need for the setting ``balance``, to train one site with plain MONAI."""

from __future__ import annotations

import torch

from medfl.objectives.balance import class_weights, sampling_weights


def bundle_weights(labels: torch.Tensor, num_classes: int, balance: str) -> torch.Tensor | None:
    """The class weights of a bundle's own loss: None unless asked for."""
    return class_weights(labels, num_classes) if balance == "loss" else None


def bundle_sampler(labels: torch.Tensor, balance: str, seed: int) -> torch.utils.data.Sampler[int] | None:
    """The sampler of a bundle's own loader: None unless asked for."""
    if balance != "sampling":
        return None
    generator = torch.Generator().manual_seed(seed)
    weights = sampling_weights(labels).tolist()
    return torch.utils.data.WeightedRandomSampler(weights, len(labels), generator=generator)
