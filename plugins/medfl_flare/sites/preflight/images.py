"""A site's images before a run: labels, intensities and voxel sizes that no training would notice.

A sample of the training cases is read, and only what holds for several of them is told.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from medfl.types import Dataset, Visited
from medfl_flare.sites.preflight import Caution

SAMPLE = 32
"""Cases that are read, evenly over the split."""

SPACING = (0.01, 20.0)
"""Millimetres between two voxels, beyond which a header is wrong: no scanner is finer, no image coarser."""

UNLIKE = 5.0
"""How many times the cases' usual spacing the largest may be."""

OUTSIDE = 0.01
"""Share of the numbers that may lie outside the bundle's range."""


def labels(classes: Sequence[str], counts: Sequence[int]) -> str:
    """Whether all classes of the declared set are there. A label outside of it was refused when the data were read.

    Args:
        classes: Names of the declared classes, from 0.
        counts: Training cases of each.
    """
    lacking = [name for name, number in zip(classes, counts, strict=True) if not number]
    if lacking and len(lacking) < len(classes):
        return Caution(
            f"no training case is labelled {', '.join(lacking)} of the {len(classes)} declared classes. If this site "
            "has such cases, look at how labels are mapped (`medfl prep`); otherwise it may stay so"
        )
    return f"all are among the {len(classes)} declared classes"


def value_range(bundle: Path) -> tuple[float, float] | None:
    """The range of inputs that a bundle's metadata declare, or None."""
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
    try:
        low, high = metadata["network_data_format"]["inputs"]["image"]["value_range"]
        return float(low), float(high)
    except (KeyError, TypeError, ValueError):
        return None


def intensities(data: Dataset, bundle: Path) -> str:
    """Whether images hold what the bundle says of them, and more than one grey.

    Args:
        data: Training cases, at least one.
        bundle: Folder of the bundle; its metadata declare the range.
    """
    inputs, _ = _sample(data)
    flat = inputs.flatten(1).double()
    declared = value_range(bundle)
    low, high = float(flat.min()), float(flat.max())
    text = f"{len(flat)} training images hold numbers from {low:.3g} to {high:.3g}"
    empty = int((flat.amin(1) == flat.amax(1)).sum())
    if 2 * empty > len(flat):
        return Caution(f"{text}; most have one grey alone. Look at how they were read and windowed")
    if declared is None:
        return f"{text}; the bundle declares no range"
    words = f"the bundle declares {declared[0]:g} to {declared[1]:g}"
    outside = float(((flat < declared[0] - 1e-3) | (flat > declared[1] + 1e-3)).double().mean())
    if outside > OUTSIDE:
        return Caution(
            f"{text}, {outside:.0%} of them outside: {words}. Were they scaled or windowed in another way? Prepare "
            "them as the other sites do"
        )
    if high - low < 0.01 * (declared[1] - declared[0]):
        return Caution(f"{text}, hardly any contrast: {words}. Was a 16-bit image read as one of fewer bits?")
    return f"{text}; {words}"


def spacings(data: Dataset, declared: Sequence[float] | None) -> str:
    """Whether voxels have a size that a scanner can make.

    Args:
        data: Training cases, at least one.
        declared: Millimetres along each axis that the task declares for all, or None where each image says its own.
    """
    if declared is not None:
        sizes = torch.tensor([list(declared)], dtype=torch.float64)
    else:
        _, read = _sample(data)
        if read is None or bool(read.isnan().any(1).all()):
            return "no image says it"
        sizes = read[~read.isnan().any(1)]
    low, high, usual = float(sizes.min()), float(sizes.max()), sizes.median(0).values
    text = f"voxels of {low:.3g} to {high:.3g} mm"
    if not (SPACING[0] <= low and high <= SPACING[1] and math.isfinite(high)):
        return Caution(
            f"{text}; expected {SPACING[0]:g} to {SPACING[1]:g} mm. The headers are wrong, or in another unit (cm, m)"
        )
    ratio = (sizes / usual).log().abs().max().exp()
    if float(ratio) > UNLIKE:
        return Caution(
            f"{text}: a case's are {float(ratio):.0f} times unlike the usual ones. Look at how they were read"
        )
    return text


def _sample(data: Dataset) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Images of a sample, and the spacing of each where that is known."""
    rows = torch.linspace(0, len(data) - 1, min(SAMPLE, len(data))).long()
    if isinstance(data, Visited):
        loaded = [batch for row in rows for batch in data.visits([row[None]], 0)]
        smallest = min(batch.inputs[0].numel() for batch in loaded)
        sizes = [batch.spacing for batch in loaded if batch.spacing is not None]
        inputs = torch.stack([batch.inputs[0].flatten()[:smallest] for batch in loaded])
        return inputs, torch.cat(sizes) if sizes else None
    return data.batch(rows)[0], None
