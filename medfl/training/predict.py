"""What a model says of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from medfl.objectives import Objective
from medfl.settings import Settings
from medfl.training.batches import SCORING, load, on_device
from medfl.training.precision import autocast
from medfl.types import Dataset, Loaded, Visited

EVALUATION_BATCH = 256
"""Images in a batch of evaluation; larger ones are not faster on a CPU."""

SPATIAL_BATCH = 8
"""The same where outputs are as large as the images, many times over within a network."""

Inferer = Callable[[torch.Tensor, nn.Module], torch.Tensor]
"""Applies a model to inputs (B, C, *spatial), for example patch by patch; outputs as those of the model."""


def evaluation_batch(objective: Objective) -> int:
    """Images in a batch of evaluation."""
    return SPATIAL_BATCH if objective.in_space else EVALUATION_BATCH


def logits(
    model: nn.Module, data: Dataset, settings: Settings, device: str = "cpu", batch: int = EVALUATION_BATCH
) -> torch.Tensor:
    """What a model puts out, (n, C, ...), float32 on the CPU; every image is seen once.

    Args:
        model: Put into evaluation mode.
        data: May be empty, which gives shape (0, 0).
        settings: For the precision.
        device: Where `model` is.
        batch: Images at a time (`evaluation_batch`).
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
    """What scores need to know of each case: what the model says of it, and its target.

    Args:
        model: Put into evaluation mode.
        data: May be empty, which gives shape (0, 0) for both.
        objective: Of the task.
        metrics: What will be scored.
        settings: For the precision.
        device: Where `model` is.
        inferer: Applies the model to one case at a time, such as MONAI's `SlidingWindowInferer`; None applies it to
            whole cases, in batches where all have one shape.
        cases: The first case, a multiple of `evaluation_batch`, and that after the last; None means all. Parts one
            after the other have the bits of the whole.

    Returns:
        `Objective.judged`, (n, K), float32, and `Objective.kept`, (n, ...), on the CPU.

    Raises:
        ContractError: If the model's outputs are not as the objective says.
    """
    judged, kept = [], []
    for loaded, outputs in _outputs(model, data, settings, device, evaluation_batch(objective), inferer, cases):
        objective.check_outputs(outputs, loaded.targets)
        judged.append(objective.judged(outputs, loaded.targets, metrics, loaded.spacing))
        kept.append(objective.kept(loaded.targets))
    return (torch.cat(judged), torch.cat(kept)) if judged else (torch.empty(0, 0), torch.empty(0, 0))


def mean_loss(
    model: nn.Module,
    data: Dataset,
    objective: Objective,
    loss: nn.Module,
    settings: Settings,
    device: str = "cpu",
    inferer: Inferer | None = None,
) -> float:
    """The mean loss of a model over the cases of a data set; nan for an empty one.

    Args:
        model: Put into evaluation mode.
        data: The data set.
        objective: Of the task; batches with fewer cases than its loss needs are left out.
        loss: Of outputs and targets of a batch, a scalar; it counts as often as the batch has cases.
        settings: For the precision.
        device: Where `model` and `loss` are.
        inferer: As in `predict`.
    """
    total, cases = 0.0, 0
    for loaded, outputs in _outputs(model, data, settings, device, evaluation_batch(objective), inferer):
        if len(outputs) >= objective.smallest_batch:
            total += float(loss(outputs.to(device), on_device(loaded.targets, device))) * len(outputs)
            cases += len(outputs)
    return total / cases if cases else float("nan")


def look_at(
    model: nn.Module,
    data: Dataset,
    rows: torch.Tensor,
    settings: Settings,
    device: str = "cpu",
    inferer: Inferer | None = None,
) -> Iterator[tuple[Loaded, torch.Tensor]]:
    """Some cases one by one, each with what a model puts out for it, (1, C, ...), float32 on the CPU.

    Args:
        model: Put into evaluation mode.
        data: The data set.
        rows: Which cases, each in [0, n), shape (M,).
        settings: For the precision.
        device: Where `model` is.
        inferer: As in `predict`.
    """
    return _applied(model, data, rows.split(1) if len(rows) else (), settings, device, inferer)


def _outputs(
    model: nn.Module,
    data: Dataset,
    settings: Settings,
    device: str,
    batch: int,
    inferer: Inferer | None = None,
    cases: tuple[int, int] | None = None,
) -> Iterator[tuple[Loaded, torch.Tensor]]:
    """The cases, and outputs, float32 on the CPU, batch by batch."""
    size = 1 if inferer is not None or isinstance(data, Visited) else batch
    rows = torch.arange(*(cases or (0, len(data))))
    batches = rows.split(size) if len(rows) else ()
    return _applied(model, data, batches, settings, device, inferer)


def _applied(
    model: nn.Module,
    data: Dataset,
    batches: Sequence[torch.Tensor],
    settings: Settings,
    device: str,
    inferer: Inferer | None,
) -> Iterator[tuple[Loaded, torch.Tensor]]:
    model.eval()
    with torch.no_grad(), autocast(settings, device):
        for loaded in load(data, batches, doing=SCORING, total=len(batches)):
            images = loaded.inputs.to(device)
            outputs = model(images) if inferer is None else inferer(images, model)
            yield loaded, outputs.float().cpu()
