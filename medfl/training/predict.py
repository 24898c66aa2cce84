"""What a model says of a data set."""

from __future__ import annotations

import torch
from torch import nn

from medfl.settings import Settings
from medfl.training.loop import autocast
from medfl.types import Dataset

EVALUATION_BATCH = 256
"""Images in a batch of evaluation; larger ones are not faster on a CPU."""


def logits(model: nn.Module, data: Dataset, settings: Settings, device: str = "cpu") -> torch.Tensor:
    """Logits (n, num_classes), float32 on the CPU; every image is seen once.

    Args:
        model: Maps images to logits; put into evaluation mode.
        data: May be empty, which gives shape (0, 0).
        settings: For the precision.
        device: Where `model` is.
    """
    if not len(data):
        return torch.empty(0, 0)
    model.eval()
    parts = []
    with torch.no_grad(), autocast(settings, device):
        for rows in torch.arange(len(data)).split(EVALUATION_BATCH):
            images, _ = data.batch(rows)
            parts.append(model(images.to(device)).float().cpu())
    return torch.cat(parts)


def predict(model: nn.Module, data: Dataset, settings: Settings, device: str = "cpu") -> torch.Tensor:
    """Class probabilities (n, num_classes) of the `logits`; shape (0, 0) for an empty data set."""
    return logits(model, data, settings, device).softmax(dim=1)
