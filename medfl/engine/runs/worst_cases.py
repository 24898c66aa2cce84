"""Pictures of the test cases whose masks a site's model gets worst, made at the site and kept beside its bundle.

They show patients' images, so there are none unless the setting ``pictures`` asks for them, and none of a site on
another machine. Of a case they hold its row in the test split, one slice, and nothing else.
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
from medfl.training.predict import look_at
from medfl.types import Dataset
from medfl.utils import wire
from medfl.utils.files import write_atomic

FILE = "worst_cases.safetensors"
"""In a site's bundle."""

FIGURE = "masks"
"""What an objective has in its `figures` if its cases have masks."""

CASES = 3
"""Pictures of a site."""

SIDE = 96
"""Most cells of a picture along each side; larger images are averaged down."""


@dataclass(frozen=True)
class WorstCase:
    """A case in one slice.

    Attributes:
        row: Its place in the test split.
        dice: Mean over the classes, in [0, 1].
        slice: Number of the slice along the last axis, from 0; None for a plane image.
        image: (H, W), float32, in [0, 1].
        reference: (L, H, W), bool.
        prediction: (L, H, W), bool.
    """

    row: int
    dice: float
    slice: int | None
    image: torch.Tensor
    reference: torch.Tensor
    prediction: torch.Tensor


def keep_worst(
    target: Path,
    predictor: nn.Module,
    test: Dataset,
    task: Task,
    settings: Settings,
    judged: torch.Tensor,
    wanted: bool,
) -> None:
    """Write `FILE` beside a site's bundle, or remove what an earlier run left there if it is not wanted.

    Args:
        target: The bundle's folder.
        predictor: Of the model.
        test: The site's test images.
        task: The learning problem.
        settings: The run's.
        judged: What the model says of them, (n, K), as `Objective.judged` has it.
        wanted: Whether there should be pictures.
    """
    if not wanted or FIGURE not in task.objective.figures or not task.objective.gave_numbers(judged):
        (target / FILE).unlink(missing_ok=True)
        return
    columns = [place for place, name in enumerate(task.objective.columns(())) if name.startswith("dice_")]
    dice = judged[:, columns].mean(1)
    rows = dice.argsort(stable=True)[:CASES]
    tensors, facts = {}, []
    for place, (loaded, outputs) in enumerate(look_at(predictor, test, rows, settings, task.device, task.inferer)):
        prediction, reference = task.objective.masks(outputs)[0], task.objective.references(loaded.targets)[0]
        number = widest_error(prediction, reference)
        parts = {"image": loaded.inputs[0].mean(0, keepdim=True), "reference": reference, "prediction": prediction}
        for name, part in parts.items():
            tensors[f"{place}/{name}"] = small(part if number is None else part[..., number])
        row = int(rows[place])
        facts.append({"row": row, "dice": float(dice[row]), "slice": number})
    write_atomic(target / FILE, wire.encode(tensors, {"cases": facts}))


def widest_error(prediction: torch.Tensor, reference: torch.Tensor) -> int | None:
    """The slice across the last axis with the most voxels that only one of both masks has; None for plane masks.

    Of several such slices the middle one; where all is right, that with the most of the reference.

    Args:
        prediction: (L, *spatial), bool.
        reference: (L, *spatial), bool.
    """
    if prediction.dim() == 3:
        return None
    wrong = (prediction != reference).sum((0, 1, 2))
    counts = wrong if bool(wrong.any()) else reference.sum((0, 1, 2))
    widest = torch.nonzero(counts == counts.max())[:, 0]
    return int(widest[len(widest) // 2])


def small(planes: torch.Tensor) -> torch.Tensor:
    """Planes of at most `SIDE` cells along each side, as bytes: an image from its darkest to its brightest value.

    Args:
        planes: (L, H, W): an image, floating, or masks, bool, of which a cell has what at least half of it has.

    Returns:
        (L, h, w), uint8: 0 to 255 for an image, 0 or 1 for masks.
    """
    height, width = (min(edge, SIDE) for edge in planes.shape[1:])
    values = adaptive_avg_pool2d(planes.float(), (height, width))
    if planes.dtype == torch.bool:
        return (values >= 0.5).to(torch.uint8)
    low, high = values.min(), values.max()
    return ((values - low) / (high - low).clamp(min=1e-12) * 255).round().to(torch.uint8)


def read_worst(bundle: Path) -> list[WorstCase]:
    """The pictures beside a site's bundle, the worst first; none where the site kept none.

    Raises:
        StoreError: If the file is damaged.
    """
    path = bundle / FILE
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
            f"expected pictures of the worst cases in '{path}'; it is damaged ({error}). Give the command of that run "
            "again: it writes the file anew.",
            path=path,
        ) from None
