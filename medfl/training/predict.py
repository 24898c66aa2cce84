"""What a model says of a data set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import nn

from medfl.objectives import Objective
from medfl.settings import Settings
from medfl.training.loop import autocast
from medfl.types import Dataset

EVALUATION_BATCH = 256
"""Images in a batch of evaluation; larger ones are not faster on a CPU."""


def logits(model: nn.Module, data: Dataset, settings: Settings, device: str = "cpu") -> torch.Tensor:
    """What a model puts out, (n, C, ...), float32 on the CPU; every image is seen once.

    Args:
        model: Put into evaluation mode.
        data: May be empty, which gives shape (0, 0).
        settings: For the precision.
        device: Where `model` is.
    """
    parts = [outputs for outputs, _ in _outputs(model, data, settings, device)]
    return torch.cat(parts) if parts else torch.empty(0, 0)


def predict(
    model: nn.Module,
    data: Dataset,
    objective: Objective,
    metrics: Sequence[str],
    settings: Settings,
    device: str = "cpu",
) -> tuple[torch.Tensor, torch.Tensor]:
    """What scores need to know of each case: what the model says of it, and its target.

    Args:
        model: Put into evaluation mode.
        data: May be empty, which gives shape (0, 0) for both.
        objective: Of the task.
        metrics: What will be scored.
        settings: For the precision.
        device: Where `model` is.

    Returns:
        `Objective.judged`, (n, K), float32, and `Objective.kept`, (n, ...), on the CPU.

    Raises:
        ContractError: If the model's outputs are not as the objective says.
    """
    judged, kept = [], []
    for outputs, targets in _outputs(model, data, settings, device):
        objective.check_outputs(outputs, targets)
        judged.append(objective.judged(outputs, targets, metrics))
        kept.append(objective.kept(targets))
    return (torch.cat(judged), torch.cat(kept)) if judged else (torch.empty(0, 0), torch.empty(0, 0))


def _outputs(
    model: nn.Module, data: Dataset, settings: Settings, device: str
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Outputs, float32, and targets on the CPU, batch by batch."""
    model.eval()
    with torch.no_grad(), autocast(settings, device):
        for rows in torch.arange(len(data)).split(EVALUATION_BATCH) if len(data) else ():
            images, targets = data.batch(rows)
            yield model(images.to(device)).float().cpu(), targets
