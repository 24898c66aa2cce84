"""Images of the test cases with the lowest Dice scores, written at the site into its exported bundle.

The images show patients, so they are written only with the setting ``worst_case_images``, and never for a site on
another machine. For each case, the file has the row of the case in the test split, its Dice score, and one slice of the
image and the masks.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import adaptive_avg_pool2d

from medfl.errors import DamagedError, StoreError
from medfl.settings import Settings
from medfl.task import Task
from medfl.training.predict import predict_cases
from medfl.types import Dataset
from medfl.utils import wire
from medfl.utils.files import write_atomic

WORST_CASES_FILE = "worst_cases.safetensors"
"""Name of the file with the images of the worst cases in an exported bundle."""

MASK_FIGURE = "masks"
"""Keyword in `Objective.figures` that marks an objective whose cases have masks; only these have worst cases."""

MAX_CASES = 3
"""Maximum number of cases of a site in the file."""

MAX_SIDE = 96
"""Maximum number of pixels of a written image along each side; larger images are averaged down."""


@dataclass(frozen=True)
class WorstCase:
    """One slice of a test case with a low Dice score.

    Attributes:
        row: Row of the case in the test split.
        dice: Mean Dice score over the classes, in [0, 1].
        slice: Number of the slice along the last axis, from 0; None for a two-dimensional image.
        image: Slice of the image, shape (H, W) (height, width), float32, in [0, 1].
        reference: Reference masks of the slice, one for each of L structures, shape (L, H, W), bool.
        prediction: Predicted masks of the slice, one for each structure, shape (L, H, W), bool.
    """

    row: int
    dice: float
    slice: int | None
    image: torch.Tensor
    reference: torch.Tensor
    prediction: torch.Tensor


def write_worst_cases(
    target: Path,
    predictor: nn.Module,
    test: Dataset,
    task: Task,
    settings: Settings,
    predictions: torch.Tensor,
    wanted: bool,
) -> None:
    """Write the images of the worst cases into a bundle, or delete the file of an earlier run if they are not wanted.

    Args:
        target: Path of the bundle.
        predictor: Network that predicts with the site's model.
        test: Test images of the site.
        task: The learning problem.
        settings: Settings of the run.
        predictions: Inputs of the objective's metrics for the N test images, shape (N, K). Some of the K columns are
            Dice scores of the classes.
        wanted: Whether to write the images.
    """
    if not wanted or MASK_FIGURE not in task.objective.figures or not task.objective.is_without_nan(predictions):
        (target / WORST_CASES_FILE).unlink(missing_ok=True)
        return
    columns = [place for place, name in enumerate(task.objective.columns(())) if name.startswith("dice_")]
    dice = predictions[:, columns].mean(1)
    rows = dice.argsort(stable=True)[:MAX_CASES]
    tensors, facts = {}, []
    for place, (loaded, outputs) in enumerate(
        predict_cases(predictor, test, rows, settings, task.device, task.inferer)
    ):
        prediction, reference = task.objective.masks(outputs)[0], task.objective.references(loaded.targets)[0]
        number = widest_error(prediction, reference)
        parts = {"image": loaded.inputs[0].mean(0, keepdim=True), "reference": reference, "prediction": prediction}
        for name, part in parts.items():
            tensors[f"{place}/{name}"] = shrink_planes(part if number is None else part[..., number])
        row = int(rows[place])
        facts.append({"row": row, "dice": float(dice[row]), "slice": number})
    write_atomic(target / WORST_CASES_FILE, wire.encode(tensors, {"cases": facts}))


def widest_error(prediction: torch.Tensor, reference: torch.Tensor) -> int | None:
    """Return the slice along the last axis with the most voxels that differ between two masks.

    Of several such slices, the middle one is returned. If no voxel differs, the slice with the most voxels of the
    reference is returned.

    Args:
        prediction: Predicted masks of L structures, shape (L, *spatial), bool.
        reference: Reference masks, shape (L, *spatial), bool.

    Returns:
        None for two-dimensional masks.
    """
    if prediction.dim() == 3:
        return None
    wrong = (prediction != reference).sum((0, 1, 2))
    counts = wrong if bool(wrong.any()) else reference.sum((0, 1, 2))
    widest = torch.nonzero(counts == counts.max())[:, 0]
    return int(widest[len(widest) // 2])


def shrink_planes(planes: torch.Tensor) -> torch.Tensor:
    """Average planes down to at most `MAX_SIDE` pixels along each side, and convert them to bytes.

    Args:
        planes: L planes of an image (floating) or of masks (bool), shape (L, H, W) (height, width).

    Returns:
        Bytes, uint8, of the reduced shape (L, h, w). An image is scaled from its minimum and maximum to 0 and 255. A
        pixel of a mask is 1 if at least half of its area is in the mask, else 0.
    """
    height, width = (min(edge, MAX_SIDE) for edge in planes.shape[1:])
    values = adaptive_avg_pool2d(planes.float(), (height, width))
    if planes.dtype == torch.bool:
        return (values >= 0.5).to(torch.uint8)
    low, high = values.min(), values.max()
    return ((values - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)


def read_worst_cases(bundle: Path) -> list[WorstCase]:
    """Read the images of the worst cases from a site's exported bundle, lowest Dice score first.

    Args:
        bundle: Path of the bundle.

    Returns:
        An empty list if the bundle has no such file.

    Raises:
        StoreError: If the file is damaged.
    """
    path = bundle / WORST_CASES_FILE
    if not path.is_file():
        return []
    try:
        tensors, meta = wire.decode(path.read_bytes())
        return [
            WorstCase(
                int(facts["row"]),
                float(facts["dice"]),
                facts["slice"],
                tensors[f"{place}/image"][0].float() / 255,
                tensors[f"{place}/reference"] > 0,
                tensors[f"{place}/prediction"] > 0,
            )
            for place, facts in enumerate(meta["cases"])
        ]
    except (DamagedError, KeyError, OSError) as error:
        raise StoreError(
            "damaged_file",
            f"expected images of the worst cases in '{path}', but the file is damaged ({error}). Run the command of "
            "that run again: it writes the file again.",
            path=path,
        ) from None
