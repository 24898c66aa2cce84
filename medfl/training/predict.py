"""Predictions of a model for the cases of a data set: n cases, B of them in a batch, C output channels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from medfl.objectives import Objective
from medfl.settings import Settings
from medfl.training.batches import SCORING, load_batches, on_device
from medfl.training.precision import autocast
from medfl.types import Dataset, LoadedBatch, is_augmenting

EVALUATION_BATCH = 256
"""Number of images in a batch of evaluation. Larger batches are not faster on a CPU."""

SPATIAL_BATCH = 8
"""Number of images in a batch of evaluation for outputs as large as the images, which need much more memory."""

Inferer = Callable[[torch.Tensor, nn.Module], torch.Tensor]
"""Function that applies a model to inputs (B, C, *spatial), for example patch by patch, and returns the outputs."""


def evaluation_batch(objective: Objective) -> int:
    """Return the number of images in a batch of evaluation."""
    return SPATIAL_BATCH if objective.has_spatial_targets else EVALUATION_BATCH


def logits(
    model: nn.Module, data: Dataset, settings: Settings, device: str = "cpu", batch: int = EVALUATION_BATCH
) -> torch.Tensor:
    """Return a model's outputs (n, C, ...) for all images, float32 on the CPU.

    Args:
        model: The model on `device`; this function puts it into evaluation mode.
        data: The data set; an empty one gives shape (0, 0).
        settings: Settings of the run, for the precision.
        device: Device of `model`.
        batch: Number of images per forward pass (`evaluation_batch`).
    """
    parts = [outputs for _, outputs in _outputs(model, data, settings, device, batch)]
    return torch.cat(parts) if parts else torch.empty(0, 0)


def predict(
    model: nn.Module,
    data: Dataset,
    objective: Objective,
    metrics: Sequence[str],
    settings: Settings,
    device: str = "cpu",
    inferer: Inferer | None = None,
    cases: tuple[int, int] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the inputs of scores for each case: the model's predictions and the targets.

    Args:
        model: The model on `device`; this function puts it into evaluation mode.
        data: The data set; an empty one gives shape (0, 0) for both results.
        objective: Objective of the task.
        metrics: Names of the metrics to compute later.
        settings: Settings of the run, for the precision.
        device: Device of `model`.
        inferer: Function that applies the model to one case at a time, such as MONAI's `SlidingWindowInferer`. None
            applies it to whole cases, in batches if all cases have the same shape.
        cases: First case, a multiple of `evaluation_batch`, and end (exclusive); None means all. The results of
            consecutive parts have the same bits as the whole.

    Returns:
        The K values of each case that metrics need (`Objective.scoring_inputs`), (n, K), and the values of its target
        (`Objective.scoring_targets`), (n, ...), both on the CPU.

    Raises:
        ContractError: If the model's outputs don't match the objective.
    """
    predictions, kept = [], []
    for loaded, outputs in _outputs(model, data, settings, device, evaluation_batch(objective), inferer, cases):
        objective.check_outputs(outputs, loaded.targets)
        predictions.append(objective.scoring_inputs(outputs, loaded.targets, metrics, loaded.spacing))
        kept.append(objective.scoring_targets(loaded.targets))
    return (torch.cat(predictions), torch.cat(kept)) if predictions else (torch.empty(0, 0), torch.empty(0, 0))


def mean_loss(
    model: nn.Module,
    data: Dataset,
    objective: Objective,
    loss: nn.Module,
    settings: Settings,
    device: str = "cpu",
    inferer: Inferer | None = None,
) -> float:
    """Compute the mean loss of a model over the cases of a data set; NaN for an empty one.

    Args:
        model: The model on `device`; this function puts it into evaluation mode.
        data: The data set.
        objective: Objective of the task. Batches with fewer cases than its loss needs are left out.
        loss: Module that maps a batch's outputs and targets to a scalar. Batches are weighted by their numbers of
            cases.
        settings: Settings of the run, for the precision.
        device: Device of `model` and `loss`.
        inferer: Function that applies the model to one case at a time; None applies the model to whole cases.
    """
    total, cases = 0.0, 0
    for loaded, outputs in _outputs(model, data, settings, device, evaluation_batch(objective), inferer):
        if len(outputs) >= objective.smallest_batch:
            total += float(loss(outputs.to(device), on_device(loaded.targets, device))) * len(outputs)
            cases += len(outputs)
    return total / cases if cases else float("nan")


def predict_cases(
    model: nn.Module,
    data: Dataset,
    rows: torch.Tensor,
    settings: Settings,
    device: str = "cpu",
    inferer: Inferer | None = None,
) -> Iterator[tuple[LoadedBatch, torch.Tensor]]:
    """Yield selected cases one by one, each with the model's outputs (1, C, ...), float32 on the CPU.

    Args:
        model: The model on `device`; this function puts it into evaluation mode.
        data: The data set.
        rows: Row numbers of the cases, each in [0, n), shape (M,).
        settings: Settings of the run, for the precision.
        device: Device of `model`.
        inferer: Function that applies the model to one case at a time; None applies the model to whole cases.
    """
    return _apply(model, data, rows.split(1) if len(rows) else (), settings, device, inferer)


def _outputs(
    model: nn.Module,
    data: Dataset,
    settings: Settings,
    device: str,
    batch: int,
    inferer: Inferer | None = None,
    cases: tuple[int, int] | None = None,
) -> Iterator[tuple[LoadedBatch, torch.Tensor]]:
    """Yield each batch with the model's outputs, float32 on the CPU."""
    size = 1 if inferer is not None or is_augmenting(data) else batch
    rows = torch.arange(*(cases or (0, len(data))))
    batches = rows.split(size) if len(rows) else ()
    return _apply(model, data, batches, settings, device, inferer)


def _apply(
    model: nn.Module,
    data: Dataset,
    batches: Sequence[torch.Tensor],
    settings: Settings,
    device: str,
    inferer: Inferer | None,
) -> Iterator[tuple[LoadedBatch, torch.Tensor]]:
    """Yield the batches of the given rows with the model's outputs, float32 on the CPU."""
    model.eval()
    with torch.no_grad(), autocast(settings, device):
        for loaded in load_batches(data, batches, doing=SCORING, total=len(batches)):
            images = loaded.inputs.to(device)
            outputs = model(images) if inferer is None else inferer(images, model)
            yield loaded, outputs.float().cpu()
