"""Made-up data for a drill: cases of the shape and the targets that a bundle's own files say."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.arrays import channels_of
from medfl.data.datalists import Datalist, write_datalist
from medfl.data.targets import STRUCTURES
from medfl.errors import SettingsError
from medfl.objectives import Objective
from medfl.records.datalist import CaseRecord
from medfl_flare.offered_bundle import own_shape, source_of
from medfl_flare.sites.file import SiteBundle

IMAGES, MASKS = "images.npy", "masks.npy"


def make_site(bundle: SiteBundle, folder: Path, cases: int) -> tuple[int, ...]:
    """Write a site's folder of made-up cases, all for training.

    Args:
        bundle: Says of what shape they are, and what is learned.
        folder: Is made.
        cases: How many.

    Returns:
        The shape of a case: channels and edges, or the number of features.

    Raises:
        SettingsError: If the bundle reads files of its own (an adopted one), or images that no array of medfl holds.
    """
    shape, (_, objective) = own_shape(bundle), source_of(bundle, bundle.folder / "no-data")
    rng = np.random.default_rng(0)
    stored = shape if len(shape) == 1 else shape[1:] if shape[0] == 1 else (*shape[1:], shape[0])
    if len(shape) > 1 and channels_of((cases, *stored)) != (None if shape[0] == 1 else shape[0]):
        raise SettingsError(
            "unsupported_shape",
            f"no array holds images of shape {list(shape)} (channels, edges); correct the bundle",
            shape=shape,
        )
    folder.mkdir(parents=True)
    images = rng.integers(0, 256, (cases, *stored), dtype=np.uint8)
    np.save(folder / IMAGES, rng.random((cases, *stored), dtype=np.float32) if len(shape) == 1 else images)
    datalist = Datalist("made up for a drill", IMAGES, max(len(objective.stratum_names), 1))
    if objective.has_class_labels:
        datalist.num_classes = objective.classes
    else:
        datalist.objective = objective.facts
    if not objective.has_class_labels and not objective.target_columns:
        target = objective.target_shape(shape)
        masks = rng.integers(0, 2, (cases, *target), dtype=np.uint8)
        np.save(folder / MASKS, masks if target[0] > 1 else masks[:, 0])
        datalist.mask_array = MASKS
        datalist.extra[STRUCTURES] = [f"structure {number}" for number in range(objective.outputs)]
    datalist.splits = {"training": [_record(objective, row) for row in range(cases)]}
    write_datalist(folder, datalist)
    return shape


def _record(objective: Objective, row: int) -> CaseRecord:
    record: CaseRecord = {"image": row, "subject_id": f"drill-{row}"}
    if objective.has_class_labels:
        record["label"] = row % objective.classes
        return record
    columns = objective.target_columns
    if not columns:
        return record
    target: list[float | None] = [float((row + number) % 2) for number in range(len(columns))]
    if "time" in columns:
        target[0] = 1.0 + row
    record["target"] = target
    return record
