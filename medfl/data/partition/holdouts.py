"""What is held out for tests and validation: shares, folds, and images of each class; always by unit."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.datalists import subjects_of
from medfl.data.partition.iid import iid
from medfl.data.partition.schemes import Scheme, deal
from medfl.data.partition.shares import holdout
from medfl.data.partition.units import any_of, column_of, find_units, majority
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord
from medfl.utils.seeds import seed_of
from medfl.utils.text import names_and_more

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan


def fold_of(
    labels: np.ndarray,
    folds: int,
    fold: int,
    rng: np.random.Generator,
    strata: np.ndarray | None = None,
    sets: np.ndarray | None = None,
) -> np.ndarray:
    """Choose one of several folds that have equal sizes and are stratified.

    Each unit is in exactly one fold, as long as the generator begins alike for each. Sizes of folds, of a class in
    them, and of a class of one stratum in them, differ by at most 1; so those of a stratum differ by at most the number
    of classes. A stratum with fewer units than folds is in some folds only.

    Args:
        labels: Label of each unit, shape (n,); none, or at least `folds`.
        folds: Number of folds, >= 2.
        fold: Which one, from 0.
        rng: Source of randomness.
        strata: What else to stratify by, a number >= 0 for each unit, shape (n,); None means nothing.
        sets: As in `medfl.data.partition.shares.holdout`; then sizes of folds differ by at most 1, those of labels
            mostly.

    Returns:
        Mask of the chosen units, shape (n,), bool.
    """
    chosen = np.zeros(len(labels), dtype=bool)
    if len(labels):
        cells = labels if strata is None else labels * (strata.max() + 1) + strata  # a class's cells follow each other
        chosen[iid(cells, folds, sets=sets, rng=rng)[fold]] = True
    return chosen


def class_balanced(labels: np.ndarray, fraction: float, rng: np.random.Generator) -> np.ndarray:
    """Choose a share of units in which classes are alike.

    With n units of c classes each class gives floor(floor(fraction n) / c) units, or floor(fraction) of its own where
    it has fewer; where that is none of any, a share of all is drawn whatever their classes. So a rare class counts as
    much as a common one, and guessing the commonest is right less often than with `holdout`. A class with no more than
    its quota is then missing in the training.

    Args:
        labels: Label of each unit, shape (n,).
        fraction: Share to choose, in [0, 1).
        rng: Source of randomness.

    Returns:
        Mask of the chosen units, shape (n,), bool.

    Source: the released code of FedKPer (Fowler and AlRegib, ICIP 2026), which draws its sites' test sets so.
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


def per_class(units: np.ndarray, labels: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Choose whole units such that each class has `count` images among them, or as many as units allow.

    The units of each class come in a random order; one is taken if it brings no class above `count`. Without groups
    each class has exactly `count` images.

    Args:
        units: Unit of each image, shape (n,), from 0 without gaps.
        labels: Label of each image, shape (n,).
        count: Images of each class, >= 1.
        rng: Source of randomness.

    Returns:
        Mask of the chosen units, shape (u,), bool.

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
    majorities = majority(units, codes)
    content = np.zeros((len(majorities), len(classes)), dtype=np.int64)
    np.add.at(content, (units, codes), 1)
    chosen, taken = np.zeros(len(majorities), dtype=bool), np.zeros(len(classes), dtype=np.int64)
    for number in range(len(classes)):
        for unit in rng.permutation(np.flatnonzero(majorities == number)):
            if (taken + content[unit] <= count).all():
                chosen[unit] = True
                taken += content[unit]
    return chosen


def local_splits(
    records: Sequence[CaseRecord],
    plan: PartitionPlan,
    name: str,
    units: np.ndarray | None = None,
    strata: np.ndarray | None = None,
    labels: np.ndarray | None = None,
    sets: np.ndarray | None = None,
) -> dict[str, list[CaseRecord]]:
    """Split one site's records into training, validation and test; keyed by (seed, site), whatever others have.

    Args:
        records: The site's records.
        plan: The plan.
        name: The site's name.
        units: What stays together: a number for each record, shape (n,); None means the records of a subject.
        strata: What to stratify by besides labels: a number >= 0 for each record, shape (n,); None means nothing.
        labels: What to keep in proportion (`Datalist.strata`), shape (n,); None means the labels of the
            records.
        sets: Which of several labels each record has (`medfl.data.partition.units.label_sets`), shape (n, C), bool;
            None if each has one.

    Raises:
        SettingsError: If a site has fewer units than folds.
    """
    units = find_units(subjects_of(records) if units is None else units.tolist())
    own = np.array([record["label"] for record in records], dtype=np.int64) if labels is None else labels
    labels = majority(units, own)
    strata = None if strata is None else majority(units, strata)
    if sets is not None:
        sets = any_of(units, sets)
        if strata is not None:
            sets = np.concatenate([sets, strata[:, None] == np.unique(strata)], axis=1)
    test, rng = _local_test(labels, strata, sets, plan, name)
    rest = np.flatnonzero(~test)
    share = min(plan.val_fraction * len(labels) / max(len(rest), 1), 1.0)
    val = np.zeros_like(test)
    own_strata, own_sets = (None if values is None else values[rest] for values in (strata, sets))
    val[rest[holdout(labels[rest], share, rng, strata=own_strata, sets=own_sets)]] = True
    masks = {"training": ~test & ~val, "validation": val, "test": test}
    return {split: [records[row] for row in np.flatnonzero(mask[units]).tolist()] for split, mask in masks.items()}


def official_tests(
    records: Sequence[CaseRecord], names: Sequence[str], scheme: Scheme, plan: PartitionPlan
) -> dict[str, list[CaseRecord]]:
    """The parts of a pooled test split that belong to sites, as a scheme tells them by its column.

    Args:
        records: The pooled test split.
        names: The sites.
        scheme: The function of `plan.scheme`.
        plan: The plan; it names a column.

    Returns:
        Site to its records; sites without any are left out.

    Raises:
        DataError: If a record has no entry in the column, or is of another site.
    """
    if not records or plan.column is None:
        return {}
    values = column_of(records, plan.column)
    parts = deal(scheme, np.zeros(len(records), dtype=np.int64), values, replace(plan, sites=None))
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


def _local_test(
    labels: np.ndarray, strata: np.ndarray | None, sets: np.ndarray | None, plan: PartitionPlan, name: str
) -> tuple[np.ndarray, np.random.Generator]:
    """Mask of a site's test units, and the generator for what comes after."""
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
        return fold_of(labels, plan.folds, plan.fold, rng, strata, sets), rng
    rng = np.random.default_rng(seed_of(plan.seed, name, "holdout"))
    if plan.test == "class_balanced":
        return class_balanced(labels, plan.test_fraction, rng), rng
    share = plan.test_fraction if plan.test == "fraction" else 0.0
    return holdout(labels, share, rng, strata=strata, sets=sets), rng
