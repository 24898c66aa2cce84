"""Checks of a site's images before a run: faults of labels, intensities and voxel sizes that training would not detect.

The checks read a sample of the training cases. Each check returns a sentence with its finding, or raises an error if a
run will fail. A `Caution` is a finding after which a run may fail later. A finding never describes a single case.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import torch

from medfl.types import Dataset, is_augmenting
from medfl_flare.sites.preflight import Caution

SAMPLE_CASES = 32
"""Number of cases that are read, evenly spaced over the split."""

SPACING_RANGE_MM = (0.01, 20.0)
"""Smallest and largest plausible distance between two voxels in millimetres. A value outside is an error of the header:
no scanner is finer and no image coarser."""

MAX_SPACING_RATIO = 5.0
"""Largest plausible ratio between the spacing of a case and the median spacing."""

MAX_SHARE_OUT_OF_RANGE = 0.01
"""Share of the values that may lie outside the bundle's range."""


def check_labels(classes: Sequence[str], counts: Sequence[int]) -> str:
    """Check that every declared class has training cases.

    Labels outside the declared classes are refused earlier, when the data are read.

    Args:
        classes: Names of the declared classes, from label 0.
        counts: Number of training cases of each class.
    """
    lacking = [name for name, number in zip(classes, counts, strict=True) if not number]
    if lacking and len(lacking) < len(classes):
        return Caution(
            f"no training case is labelled {', '.join(lacking)} of the {len(classes)} declared classes. If this site "
            "has such cases, check how labels are mapped (`medfl prep`); otherwise nothing needs to be done"
        )
    return f"all labels are among the {len(classes)} declared classes"


def declared_range(bundle: Path) -> tuple[float, float] | None:
    """Return the range of inputs in a bundle's metadata, or None if it declares none."""
    metadata = json.loads((bundle / "configs" / "metadata.json").read_text(encoding="utf-8"))
    try:
        low, high = metadata["network_data_format"]["inputs"]["image"]["value_range"]
        return float(low), float(high)
    except (KeyError, TypeError, ValueError):
        return None


def check_intensities(data: Dataset, bundle: Path) -> str:
    """Check that image values lie in the range that the bundle declares, and that images are not constant.

    Args:
        data: Training cases, at least one.
        bundle: Folder of the bundle; its metadata declare the range.
    """
    inputs, _ = _read_sample(data)
    flat = inputs.flatten(1).double()
    declared = declared_range(bundle)
    low, high = float(flat.min()), float(flat.max())
    text = f"{len(flat)} training images have values from {low:.3g} to {high:.3g}"
    empty = int((flat.amin(1) == flat.amax(1)).sum())
    if 2 * empty > len(flat):
        return Caution(f"{text}; most images are constant. Check how they were read and windowed")
    if declared is None:
        return f"{text}; the bundle declares no range"
    words = f"the bundle declares {declared[0]:g} to {declared[1]:g}"
    outside = float(((flat < declared[0] - 1e-3) | (flat > declared[1] + 1e-3)).double().mean())
    if outside > MAX_SHARE_OUT_OF_RANGE:
        return Caution(
            f"{text}, {outside:.0%} of them out of range: {words}. Check scaling and windowing, and prepare the images "
            "in the same way as the other sites"
        )
    if high - low < 0.01 * (declared[1] - declared[0]):
        return Caution(f"{text}, almost no contrast: {words}. Check whether 16-bit images were read with fewer bits")
    return f"{text}; {words}"


def check_spacings(data: Dataset, declared: Sequence[float] | None) -> str:
    """Check that voxel sizes are plausible for a scanner.

    Args:
        data: Training cases, at least one.
        declared: Spacing in millimetres along each axis that the task declares for all images, or None if each image
            has its own spacing.
    """
    if declared is not None:
        sizes = torch.tensor([list(declared)], dtype=torch.float64)
    else:
        _, read = _read_sample(data)
        if read is None or bool(read.isnan().any(1).all()):
            return "no image declares its spacing"
        sizes = read[~read.isnan().any(1)]
    low, high, usual = float(sizes.min()), float(sizes.max()), sizes.median(0).values
    text = f"voxels of {low:.3g} to {high:.3g} mm"
    smallest, largest = SPACING_RANGE_MM
    if not (smallest <= low and high <= largest and math.isfinite(high)):
        return Caution(
            f"{text}; expected {smallest:g} to {largest:g} mm. The headers are wrong, or use another unit (cm, m)"
        )
    ratio = (sizes / usual).log().abs().max().exp()
    if float(ratio) > MAX_SPACING_RATIO:
        return Caution(
            f"{text}: one size differs from the median by a factor of {float(ratio):.0f}. Check how images were read"
        )
    return text


def _read_sample(data: Dataset) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return the images of a sample, and the spacing of each if it is known."""
    rows = torch.linspace(0, len(data) - 1, min(SAMPLE_CASES, len(data))).long()
    if is_augmenting(data):
        loaded = [batch for row in rows for batch in data.visits([row[None]], 0)]
        smallest = min(batch.inputs[0].numel() for batch in loaded)
        sizes = [batch.spacing for batch in loaded if batch.spacing is not None]
        inputs = torch.stack([batch.inputs[0].flatten()[:smallest] for batch in loaded])
        return inputs, torch.cat(sizes) if sizes else None
    return data.batch(rows)[0], None
