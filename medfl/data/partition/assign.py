"""Who gets which image: the server's test set, the sites, and what is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.datalists import Datalist, subjects_of
from medfl.data.partition.holdouts import local_splits, official_tests, per_class
from medfl.data.partition.overlap import (
    OF_PUBLIC,
    OF_SITES,
    OF_TRAINING,
    PublicPool,
    Sides,
    find_overlap,
    images,
    refuse,
)
from medfl.data.partition.schemes import Scheme, check_column, deal
from medfl.data.partition.units import any_of, column_of, find_units, label_sets, majority, strata_of
from medfl.data.partition.writing import Notes, not_distributed
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, Exclusion
from medfl.types import GLOBAL, PUBLIC, LeakKind
from medfl.utils.seeds import seed_of
from medfl.utils.text import names_and_more

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan

NOBODY = -1
"""Owner of a unit that is at no site."""

HELD = -2
"""Owner of a unit that the server holds as a test set."""

DROPPED = -3
"""Owner of a unit that was left out."""

Splits = dict[str, dict[str, list[CaseRecord]]]
"""Site, or ``global``, to splits to records."""


class Distribution:
    """A pooled training split whose units find owners, step by step; `splits` is the result.

    Args:
        source: The pooled data list.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: How.

    Attributes:
        owner: Number of the site of each unit in the order of `names`, or `NOBODY`, `HELD` or `DROPPED`, shape (u,).
        names: The sites.
        tests: The part of the pooled test split of each site that has one, if it is the sites'.
        notes: What there is to say.

    Raises:
        DataError: If rows or labels of the list are wrong, or there are no training images.
    """

    def __init__(self, source: Datalist, hashes: Sequence[bytes], plan: PartitionPlan) -> None:
        self.source, self.hashes, self.plan = source, hashes, plan
        self.records, self.test = source.splits["training"], source.splits["test"]
        if not self.records:
            raise DataError(
                "no_images",
                f"expected training images in the pooled data set '{source.name}', there are none to deal. "
                "Prepare it again with images in its training split.",
                dataset=source.name,
                split="training",
            )
        self.place = f"pooled data set '{source.name}'"
        rows, self.labels = source.rows_and_labels("training", self.place)
        self.sets = label_sets(source, self.records, self.place)
        alike = [] if plan.test == "official" else [[hashes[row] for row in rows]]
        self.units = find_units(subjects_of(self.records), *alike)
        self.owner = np.full(self.units.max(initial=-1) + 1, NOBODY, dtype=np.int64)
        self.names: list[str] = []
        self.tests: dict[str, list[CaseRecord]] = {}
        self.notes = Notes(warnings=list(source.warnings))
        self._compare_labels(rows)

    def hold(self) -> None:
        """Set the server's test set apart, if it comes out of the training split."""
        plan = self.plan
        if plan.global_test != "per_class":
            return
        rng = np.random.default_rng(seed_of(plan.seed, "per_class"))
        self.owner[per_class(self.units, self.labels, plan.per_class, rng)] = HELD
        for label, count in self._by_class(HELD).items():
            if count < plan.per_class and int(label) in self.labels:
                self._warn(
                    f"the server's test set has {count} of {plan.per_class} images of class {label}, because images "
                    "that stay together were not torn apart"
                )

    def deal(self, scheme: Scheme) -> None:
        """Let the scheme deal what nobody has yet."""
        check_column(scheme, self.plan)
        free = np.flatnonzero(self.owner == NOBODY)
        labels, values = majority(self.units, self.labels), self._values()
        sets = None if self.sets is None else any_of(self.units, self.sets)[free]
        parts = deal(scheme, labels[free], None if values is None else values[free], self.plan, sets)
        self.names = list(parts)
        for number, positions in enumerate(parts.values()):
            self.owner[free[positions]] = number
        if self.plan.test == "official":
            self.tests = official_tests(self.test, self.names, scheme, self.plan)
        if self.plan.global_test == "remainder":
            if not (self.owner == NOBODY).any():
                raise SettingsError(
                    "no_images",
                    f"partition '{self.plan.scheme}' left no image for the server's test set. Choose another "
                    "--global-test than remainder.",
                    scheme=self.plan.scheme,
                    setting="global_test",
                )
            self.owner[self.owner == NOBODY] = HELD

    def part_from_test(self) -> None:
        """Refuse, drop or allow training images that are in the pooled test split, if the server or sites hold it.

        Raises:
            DataError: If there are any and they are neither dropped nor allowed.
        """
        plan = self.plan
        if "official" not in (plan.global_test, plan.test):
            return
        sides = OF_SITES if plan.test == "official" else OF_TRAINING
        at_site = self.owner[self.units] >= 0
        overlap = find_overlap(self.records, self.test, self.hashes)
        masks = {kind: mask & at_site for kind, mask in overlap.items()}
        copies = self._copies(masks, sides)
        if copies.any():
            self._drop(copies, sides)
        self._allow(masks, self.owner[self.units] >= 0, sides)

    def part_from_private(self, public: PublicPool, private: Splits) -> dict[str, list[CaseRecord]]:
        """Refuse, drop or allow public images that are at a site or in the server's test set.

        Args:
            public: The public data.
            private: The records of the sites and of the server.

        Returns:
            The public records that stay, by split.

        Raises:
            DataError: If there are any that are neither dropped nor allowed, or none is left.
        """
        others = [record for splits in private.values() for records in splits.values() for record in records]
        records = [(split, record) for split, records in public.splits.items() for record in records]
        other_hashes = None if public.same_pool else self.hashes
        masks = find_overlap([record for _, record in records], others, public.hashes, other_hashes)
        copies = self._copies(masks, OF_PUBLIC)
        self._allow(masks, ~copies, OF_PUBLIC)
        if copies.any():
            self.notes.exclusions[PUBLIC] = [Exclusion(reason=OF_PUBLIC.reason, count=int(copies.sum()))]
        if copies.all():
            raise DataError(
                "no_images",
                "no public image is left: all of them are in the private sets too. Name other public data.",
                split=PUBLIC,
            )
        kept: dict[str, list[CaseRecord]] = {split: [] for split in public.splits}
        for number in np.flatnonzero(~copies).tolist():
            split, record = records[number]
            kept[split].append(record)
        return kept

    def _copies(self, masks: Mapping[LeakKind, np.ndarray], sides: Sides) -> np.ndarray:
        """Mask of the images to drop; where the plan does not say so, they are refused."""
        refused = {kind: mask for kind, mask in masks.items() if mask.any() and kind not in self.plan.allow_leaks}
        if refused and self.plan.duplicates == "refuse":
            refuse({kind: int(mask.sum()) for kind, mask in refused.items()}, sides)
        return np.logical_or.reduce([np.zeros_like(masks["pixels"]), *refused.values()])

    def _allow(self, masks: Mapping[LeakKind, np.ndarray], kept: np.ndarray, sides: Sides) -> None:
        """Note leaks that are allowed by name."""
        counts = {kind: int((masks[kind] & kept).sum()) for kind in masks if kind in self.plan.allow_leaks}
        self.notes.allowed_leaks += [sides.sentence(kind, count) for kind, count in counts.items() if count]

    def splits(self) -> Splits:
        """The records of each site's splits, and of the server's."""
        by_site: Splits = {}
        columns = self.plan.stratify
        strata = strata_of(self.records, columns) if columns else None
        for number, name in enumerate(self.names):
            mine = np.flatnonzero(self.owner[self.units] == number)
            records = [self.records[image] for image in mine.tolist()]
            chosen = None if strata is None else strata[mine]
            sets = None if self.sets is None else self.sets[mine]
            by_site[name] = local_splits(records, self.plan, name, self.units[mine], chosen, self.labels[mine], sets)
            if self.plan.test == "official":
                by_site[name]["test"] = self.tests.get(name, [])
        self._look_back(by_site)
        held = self.test if self.plan.global_test == "official" else self._records_of(HELD)
        if held:
            by_site[GLOBAL] = {"test": held}
        return by_site

    def public_of_pool(self, private: Splits) -> dict[str, list[CaseRecord]]:
        """The pooled validation split, as public data with a test set, as far as it may be.

        Args:
            private: The records of the sites and of the server.
        """
        records = self.source.splits["validation"]
        if not records:
            raise DataError(
                "no_images",
                f"expected a validation split in the pooled data set '{self.source.name}' to make it public, there is "
                "none. Leave --public out, or prepare it again with one.",
                dataset=self.source.name,
                split="validation",
            )
        pool = PublicPool({"training": records}, self.hashes, same_pool=True)
        kept = self.part_from_private(pool, private)["training"]
        units = find_units(subjects_of(kept), [self.hashes[record["image"]] for record in kept])
        share = self.plan.public_test_fraction
        plan = replace(self.plan, test="fraction", test_fraction=share, val_fraction=0.0)
        labels, sets = self.source.strata(kept, self.place), label_sets(self.source, kept, self.place)
        return local_splits(kept, plan, PUBLIC, units, labels=labels, sets=sets)

    def _compare_labels(self, rows: np.ndarray) -> None:
        """Note identical images whose labels differ: one of them is wrong."""
        pixels = find_units([self.hashes[row] for row in rows])
        lowest = np.full(pixels.max(initial=-1) + 1, self.source.num_classes)
        highest = np.full(len(lowest), -1)
        np.minimum.at(lowest, pixels, self.labels)
        np.maximum.at(highest, pixels, self.labels)
        count = int((lowest != highest)[pixels].sum())
        if count:
            self._warn(f"{count} training images are identical to others that have another label")

    def _values(self) -> np.ndarray | None:
        """Each unit's entry in the column, if the plan names one."""
        if self.plan.column is None:
            return None
        entries = column_of(self.records, self.plan.column)
        values = majority(self.units, entries)
        moved = int((values[self.units] != entries).sum())
        if moved:
            self._warn(
                f"{images(moved)} at another site than the column '{self.plan.column}' says, because a patient's "
                "images and identical images stay together"
            )
        return values

    def _drop(self, copies: np.ndarray, sides: Sides) -> None:
        """Leave images out, given as a mask, with all that stays together with them."""
        dropped = np.unique(self.units[copies])
        owners = self.owner[self.units][np.isin(self.units, dropped)]
        for number in np.unique(owners).tolist():
            entry = Exclusion(reason=sides.reason, count=int((owners == number).sum()))
            self.notes.exclusions[self.names[number]] = [entry]
        self.owner[dropped] = DROPPED

    def _look_back(self, by_site: Splits) -> None:
        """Note what is at no site, and sites that can't train."""
        notes = self.notes
        notes.unassigned = {label: count for label, count in self._by_class(NOBODY).items() if count}
        if notes.unassigned:
            classes = ", ".join(f"{count} of class {label}" for label, count in notes.unassigned.items())
            self._warn(f"the scheme left {sum(notes.unassigned.values())} training images at no site: {classes}")
        for split, count in not_distributed(self.source, self.plan).items():
            self._warn(f"the {count} {split} images of the pooled data set are at no site")
        if self.plan.global_test == "official" and not self.test:
            self._warn("the pooled data set has no test images, so the server has no test set")
        if self.plan.test == "official" and (bare := [name for name in by_site if not by_site[name]["test"]]):
            self._warn(f"{len(bare)} sites have no test images: {names_and_more(bare, 8)}")
        empty = [name for name, splits in by_site.items() if not splits["training"]]
        if empty:
            self._warn(f"{len(empty)} sites have no training images: {names_and_more(empty, 8)}")

    def _by_class(self, owner: int) -> dict[str, int]:
        counts = np.bincount(self.labels[self.owner[self.units] == owner], minlength=self.source.num_classes)
        return {str(label): int(count) for label, count in enumerate(counts)}

    def _records_of(self, owner: int) -> list[CaseRecord]:
        return [self.records[image] for image in np.flatnonzero(self.owner[self.units] == owner).tolist()]

    def _warn(self, sentence: str) -> None:
        self.notes.warnings.append(sentence)


def distribute(
    source: Datalist, hashes: Sequence[bytes], plan: PartitionPlan, scheme: Scheme, public: PublicPool | None = None
) -> tuple[Splits, Notes]:
    """Find out who gets which image.

    Args:
        source: The pooled data list.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: How.
        scheme: The function of `plan.scheme`.
        public: Public data of another data set, if the plan names one.

    Returns:
        The records of all sites, of the server and of the public data, and what there is to say about them.

    Raises:
        DataError: If the pooled data set is wrong, or training images are in the server's test set as well.
        SettingsError: If the scheme can't do what is asked.
    """
    steps = Distribution(source, hashes, plan)
    steps.hold()
    steps.deal(scheme)
    steps.part_from_test()
    splits = steps.splits()
    if plan.public == "validation":
        splits |= {PUBLIC: steps.public_of_pool(splits)}
    elif public is not None:
        splits |= {PUBLIC: steps.part_from_private(public, splits)}
    return splits, steps.notes
