"""Change the splits of a pooled data set before a partition: join them, or draw public data from the training split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.datalists import Datalist, subjects_of
from medfl.data.partition.shares import holdout
from medfl.data.partition.units import find_units, label_sets, majority_by_unit, union_by_unit
from medfl.errors import SettingsError
from medfl.utils.seeds import seed_of

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan


def arrange_splits(source: Datalist, hashes: Sequence[bytes], plan: PartitionPlan) -> Datalist:
    """Return the pooled data list with the splits that a plan asks for.

    Args:
        source: Pooled data list.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: Settings of the partition. With `join_splits`, all images become training images. With ``training`` as
            `public`, `public_images` training images become the validation split, which is then public.

    Raises:
        SettingsError: If there are not more training images than public images are asked for.
    """
    if plan.join_splits:
        joined = [record for split in ("training", "validation", "test") for record in source.splits[split]]
        source = replace(source, splits={"training": joined, "validation": [], "test": []})
    if plan.public == "training":
        source = _draw_public_images(source, hashes, plan)
    return source


def _draw_public_images(source: Datalist, hashes: Sequence[bytes], plan: PartitionPlan) -> Datalist:
    """Move a stratified random part of the training split to the validation split, in whole units."""
    records, place = source.splits["training"], f"pooled data set '{source.name}'"
    assert plan.public_images is not None  # checked by the plan
    if len(records) <= plan.public_images:
        raise SettingsError(
            "too_few_images",
            f"{place}: {plan.public_images} public images were asked for, but there are only {len(records)} training "
            "images. Ask for fewer with --public-images.",
            expected=plan.public_images,
            found=len(records),
        )
    rows, labels = source.rows_and_labels("training", place)
    units = find_units(subjects_of(records), [hashes[row] for row in rows])
    sets = label_sets(source, records, place)
    public = holdout(
        majority_by_unit(units, labels),
        plan.public_images / len(records),
        np.random.default_rng(seed_of(plan.seed, "public images")),
        sets=None if sets is None else union_by_unit(units, sets),
    )[units]
    parts: dict[bool, list] = {False: [], True: []}
    for record, chosen in zip(records, public.tolist(), strict=True):
        parts[chosen].append(record)
    return replace(source, splits={**source.splits, "training": parts[False], "validation": parts[True]})
