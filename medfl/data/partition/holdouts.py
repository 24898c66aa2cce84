"""Choose the units that are held out for tests and validation: by fraction, by fold, or by number of each class.

A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.datalists import subjects_of
from medfl.data.partition.iid import iid
from medfl.data.partition.schemes import Scheme, assign_units
from medfl.data.partition.shares import holdout
from medfl.data.partition.units import column_entries, find_units, majority_by_unit, union_by_unit
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord
from medfl.utils.seeds import seed_of
from medfl.utils.text import names_and_more

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan


def choose_fold(
    labels: np.ndarray,
    folds: int,
    fold: int,
    rng: np.random.Generator,
    strata: np.ndarray | None = None,
    sets: np.ndarray | None = None,
) -> np.ndarray:
    """Choose one of several stratified folds of equal size.

    Each unit is in exactly one fold if the generator has the same initial state for each fold. Between folds, the sizes
    differ by at most 1, and so do the counts of each class and the counts of each class within a stratum. The counts of
    a stratum therefore differ by at most the number of classes. A stratum with fewer units than folds is missing in
    some folds.

    Args:
        labels: Label of each unit, shape (n,); n is 0 or at least `folds`.
        folds: Number of folds, >= 2.
        fold: Number of the fold to choose, from 0.
        rng: Source of randomness.
        strata: Further stratum of each unit, an integer >= 0, shape (n,); None stratifies by labels only.
        sets: Labels of each unit if a unit may have several, as in `medfl.data.partition.shares.holdout`. Fold sizes
            then differ by at most 1; label counts mostly do.

    Returns:
        Mask of the chosen units, shape (n,), bool.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    if len(labels):
        # the strata of a class get consecutive numbers, so that the fold sizes of a class differ by at most 1
        cells = labels if strata is None else labels * (strata.max() + 1) + strata
        chosen[iid(cells, folds, sets=sets, rng=rng)[fold]] = True
    return chosen


def choose_class_balanced(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a fraction of the units with equal numbers of all classes.

    With n units of c classes, each class gives floor(floor(fraction n) / c) units. A class with fewer units than that
    gives floor(fraction times its units). If no class gives any unit, a random fraction of all units is chosen.

    In such a test set a rare class counts as much as a common one, and always predicting the most common class scores
    lower than with `holdout`. A class with no more units than its quota is missing in training.

    Args:
        labels: Label of each unit, shape (n,).
        fraction: Fraction to choose, in [0, 1).
        rng: Source of randomness.

    Returns:
        Mask of the chosen units, shape (n,), bool.

    Source: the released code of FedKPer (Fowler and AlRegib, ICIP 2026), which draws the test sets of its sites in this
    way.
    """
    classes, sizes = np.unique(labels, return_counts=True)
    total = math.floor(fraction * len(labels))
    quota = total // max(len(classes), 1)
    chosen = np.zeros(len(labels), dtype=bool)
    for label, size in zip(classes, sizes.tolist(), strict=True):
        count = quota if size >= quota else math.floor(fraction * size)
        chosen[rng.permutation(np.flatnonzero(labels == label))[:count]] = True
    if not chosen.any():
        chosen[rng.permutation(len(labels))[:total]] = True
    return chosen


def choose_per_class(units: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose whole units such that they contain `count` images of each class, or as many as whole units permit.

    The units of each class come in random order. A unit is taken if no class then exceeds `count`. If each unit is one
    image, each class has exactly `count` images.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        labels: Label of each image, shape (n,).
        count: Number of images of each class, >= 1.
        rng: Source of randomness.

    Returns:
        Mask of the chosen units, shape (u,) for u units, bool.

    Raises:
        SettingsError: If a class has no more than `count` images.
    """
    classes, codes, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    if sizes.min(initial=count + 1) <= count:
        raise SettingsError(
            "too_few_images",
            f"{count} images of each class for the server's test set need more than {count} in the training split, "
            f"but class {classes[sizes.argmin()]} has {sizes.min()}. Ask for fewer with --per-class.",
            label=classes[sizes.argmin()].item(),
            count=count,
            found=int(sizes.min()),
        )
    majorities = majority_by_unit(units, codes)
    content = np.zeros((len(majorities), len(classes)), dtype=np.int64)
    np.add.at(content, (units, codes), 1)
    chosen, taken = np.zeros(len(majorities), dtype=bool), np.zeros(len(classes), dtype=np.int64)
    for number in range(len(classes)):
        for unit in rng.permutation(np.flatnonzero(majorities == number)):
            if (taken + content[unit] <= count).all():
                chosen[unit] = True
                taken += content[unit]
    return chosen


def split_site_records(
    records: Sequence[CaseRecord],
    plan: PartitionPlan,
    name: str,
    units: np.ndarray | None = None,
    strata: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    sets: np.ndarray | None = None,
) -> dict[str, list[CaseRecord]]:
    """Split one site's records into training, validation and test records.

    The random draws depend on the plan's seed and the site's name only, not on other sites.

    Args:
        records: Records of the site.
        plan: Settings of the partition.
        name: Name of the site.
        units: Unit of each record, shape (n,); None makes the records of each subject a unit.
        strata: Further stratum of each record, an integer >= 0, shape (n,); None stratifies by labels only.
        labels: Stratum of each record (`Datalist.strata`), shape (n,); None uses the labels of the records.
        sets: Labels of each record if it may have several (`medfl.data.partition.units.label_sets`), shape (n, C),
            bool; None if each has one.

    Returns:
        Maps ``training``, ``validation`` and ``test`` to records.

    Raises:
        SettingsError: If a site has fewer units than folds.
    """
    units = find_units(subjects_of(records) if units is None else units.tolist())
    if labels is None:
        labels = np.array([record["label"] for record in records], dtype=np.int64)
    labels = majority_by_unit(units, labels)
    strata = None if strata is None else majority_by_unit(units, strata)
    if sets is not None:
        sets = union_by_unit(units, sets)
        if strata is not None:
            sets = np.concatenate([sets, strata[:, None] == np.unique(strata)], axis=1)
    test, rng = _choose_test(labels, strata, sets, plan, name)
    rest = np.flatnonzero(~test)
    share = min(plan.val_fraction * len(labels) / max(len(rest), 1), 1.0)
    val = np.zeros_like(test)
    rest_strata, rest_sets = (None if values is None else values[rest] for values in (strata, sets))
    val[rest[holdout(labels[rest], share, rng, strata=rest_strata, sets=rest_sets)]] = True
    masks = {"training": ~test & ~val, "validation": val, "test": test}
    return {split: [records[row] for row in np.flatnonzero(mask[units]).tolist()] for split, mask in masks.items()}


def official_tests(
    records: Sequence[CaseRecord], names: Sequence[str], scheme: Scheme, plan: PartitionPlan
) -> dict[str, list[CaseRecord]]:
    """Assign the records of the pooled test split to sites by the plan's column.

    Args:
        records: Records of the pooled test split.
        names: Names of the sites.
        scheme: Function that `plan.scheme` names.
        plan: Settings of the partition, with a column.

    Returns:
        Maps each site to its test records; sites without any are left out.

    Raises:
        DataError: If a record has no entry in the column, or belongs to a site without training images.
    """
    if not records or plan.column is None:
        return {}
    values = column_entries(records, plan.column)
    parts = assign_units(scheme, np.zeros(len(records), dtype=np.int64), values, replace(plan, sites=None))
    unknown = sorted(parts.keys() - set(names))
    if unknown:
        raise DataError(
            "unknown_site",
            f"the pooled test split has images of {len(unknown)} sites that have no training images: "
            f"{names_and_more(unknown, 8)}. Correct the column '{plan.column}'.",
            sites=unknown,
            column=plan.column,
        )
    return {name: [records[row] for row in positions.tolist()] for name, positions in parts.items()}


def _choose_test(
    labels: np.ndarray, strata: np.ndarray | None, sets: np.ndarray | None, plan: PartitionPlan, name: str
) -> tuple[np.ndarray, np.random.Generator]:
    """Return the mask of a site's test units, and the generator for the draws that follow."""
    if plan.test == "k_fold":
        if 0 < len(labels) < plan.folds:
            raise SettingsError(
                "too_few_images",
                f"site '{name}' has {len(labels)} images (those that stay together count as one), too few for "
                f"{plan.folds} folds. Ask for fewer folds, or for sites with more images.",
                site=name,
                folds=plan.folds,
                found=len(labels),
            )
        rng = np.random.default_rng(seed_of(plan.seed, name, "folds"))
        return choose_fold(labels, plan.folds, plan.fold, rng, strata, sets), rng
    rng = np.random.default_rng(seed_of(plan.seed, name, "holdout"))
    if plan.test == "class_balanced":
        return choose_class_balanced(labels, plan.test_fraction, rng), rng
    share = plan.test_fraction if plan.test == "fraction" else 0.0
    return holdout(labels, share, rng, strata=strata, sets=sets), rng
