"""Assign each image of a pooled data set to the server's test set, to a site, or to neither.

A unit is one image, or a group of images that must stay together; see `medfl.data.partition`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from medfl.data.datalists import Datalist, subjects_of
from medfl.data.partition.holdouts import choose_per_class, official_tests, split_site_records
from medfl.data.partition.overlap import (
    OF_PUBLIC,
    OF_SITES,
    OF_TRAINING,
    ComparedSets,
    PublicPool,
    find_overlap,
    image_count_text,
    raise_overlap,
)
from medfl.data.partition.pooled_splits import arrange_splits
from medfl.data.partition.schemes import Scheme, assign_units, check_column
from medfl.data.partition.units import (
    column_entries,
    find_units,
    label_sets,
    majority_by_unit,
    strata_by_columns,
    union_by_unit,
)
from medfl.data.partition.writing import PartitionNotes, count_undistributed
from medfl.errors import DataError, SettingsError
from medfl.records.datalist import CaseRecord, Exclusion
from medfl.types import GLOBAL, PUBLIC, LeakKind
from medfl.utils.seeds import seed_of
from medfl.utils.text import names_and_more

if TYPE_CHECKING:
    from medfl.data.partition.plan import PartitionPlan

UNASSIGNED = -1
"""Owner number of a unit that is at no site."""

SERVER_TEST = -2
"""Owner number of a unit in the server's test set."""

DROPPED = -3
"""Owner number of a unit that was left out as a duplicate."""

SplitsBySite = dict[str, dict[str, list[CaseRecord]]]
"""Maps each site, ``global`` or ``public`` to a mapping from split to records."""


class UnitAssignment:
    """Assignment of the units of a pooled training split to owners, built up step by step.

    `distribute` calls the steps in order; `splits` returns the result.

    Args:
        pooled: Pooled data list.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: Settings of the partition.

    Attributes:
        pooled: Pooled data list.
        source: The same with the splits that the plan asks for.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: Settings of the partition.
        records: Records of the pooled training split, n of them.
        test: Records of the pooled test split.
        place: Name of the pooled data set, for messages.
        labels: Label (or stratum) of each training record, shape (n,).
        sets: Labels of each training record if it may have several, shape (n, C), bool; None if each has one.
        units: Unit of each training record, shape (n,), a number from 0.
        owner: Owner of each of the u units, shape (u,): the index of its site in `names`, or `UNASSIGNED`,
            `SERVER_TEST` or `DROPPED`.
        names: Names of the sites.
        tests: Maps each site to its records of the pooled test split, if the plan gives this split to the sites (test
            ``official``); otherwise empty.
        notes: Warnings and counts for the report.

    Raises:
        DataError: If rows or labels of the list are wrong, or there are no training images.
    """

    def __init__(self, pooled: Datalist, hashes: Sequence[bytes], plan: PartitionPlan) -> None:
        self.pooled, self.hashes, self.plan = pooled, hashes, plan
        self.source = source = arrange_splits(pooled, hashes, plan)
        self.records, self.test = source.splits["training"], source.splits["test"]
        if not self.records:
            raise DataError(
                "no_images",
                f"expected training images in the pooled data set '{source.name}', there are none. "
                "Prepare it again with images in its training split.",
                dataset=source.name,
                split="training",
            )
        self.place = f"pooled data set '{source.name}'"
        rows, self.labels = source.rows_and_labels("training", self.place)
        self.sets = label_sets(source, self.records, self.place)
        pixel_keys = [] if plan.test == "official" else [[hashes[row] for row in rows]]
        self.units = find_units(subjects_of(self.records), *pixel_keys)
        self.owner = np.full(self.units.max(initial=-1) + 1, UNASSIGNED, dtype=np.int64)
        self.names: list[str] = []
        self.tests: dict[str, list[CaseRecord]] = {}
        self.notes = PartitionNotes(warnings=list(source.warnings))
        self._warn_about_label_conflicts(rows)

    def hold_out_server_test(self) -> None:
        """Assign units to the server's test set if the plan takes it from the training split (``per_class``)."""
        plan = self.plan
        if plan.server_test != "per_class":
            return
        rng = np.random.default_rng(seed_of(plan.seed, "per_class"))
        self.owner[choose_per_class(self.units, self.labels, plan.per_class, rng)] = SERVER_TEST
        for label, count in self._count_by_class(SERVER_TEST).items():
            if count < plan.per_class and int(label) in self.labels:
                self._warn(
                    f"the server's test set has {count} of {plan.per_class} images of class {label}, because images "
                    "that must stay together were not separated"
                )

    def assign_to_sites(self, scheme: Scheme) -> None:
        """Assign the unassigned units to sites by the scheme, and the remainder to the server if the plan says so.

        Raises:
            DataError: If the scheme's result breaks the rules, or test images belong to an unknown site.
            SettingsError: If scheme and plan do not fit together, or no image is left for the server's test set.
        """
        check_column(scheme, self.plan)
        free = np.flatnonzero(self.owner == UNASSIGNED)
        labels, values = majority_by_unit(self.units, self.labels), self._column_values()
        sets = None if self.sets is None else union_by_unit(self.units, self.sets)[free]
        parts = assign_units(scheme, labels[free], None if values is None else values[free], self.plan, sets)
        self.names = list(parts)
        for number, positions in enumerate(parts.values()):
            self.owner[free[positions]] = number
        if self.plan.test == "official":
            self.tests = official_tests(self.test, self.names, scheme, self.plan)
        if self.plan.server_test == "remainder":
            if not (self.owner == UNASSIGNED).any():
                raise SettingsError(
                    "no_images",
                    f"partition '{self.plan.scheme}' left no image for the server's test set. Choose another "
                    "--server-test than remainder.",
                    scheme=self.plan.scheme,
                    setting="server_test",
                )
            self.owner[self.owner == UNASSIGNED] = SERVER_TEST

    def separate_from_test(self) -> None:
        """Refuse, drop or tolerate training images that also occur in the pooled test split.

        Do nothing if neither the sites nor the server use that split.

        Raises:
            DataError: If there are any, and the plan neither drops nor allows them.
        """
        plan = self.plan
        if "official" not in (plan.server_test, plan.test):
            return
        sides = OF_SITES if plan.test == "official" else OF_TRAINING
        at_site = self.owner[self.units] >= 0
        overlap = find_overlap(self.records, self.test, self.hashes)
        masks = {kind: mask & at_site for kind, mask in overlap.items()}
        copies = self._find_copies(masks, sides)
        if copies.any():
            self._drop_units(copies, sides)
        self._record_allowed(masks, self.owner[self.units] >= 0, sides)

    def separate_from_private(self, public: PublicPool, private: SplitsBySite) -> dict[str, list[CaseRecord]]:
        """Refuse, drop or tolerate public images that also occur at a site or in the server's test set.

        Args:
            public: Public data.
            private: Records of the sites and of the server.

        Returns:
            The remaining public records of each split.

        Raises:
            DataError: If there are any, and the plan neither drops nor allows them, or no public image remains.
        """
        others = [record for splits in private.values() for records in splits.values() for record in records]
        records = [(split, record) for split, records in public.splits.items() for record in records]
        other_hashes = None if public.same_pool else self.hashes
        masks = find_overlap([record for _, record in records], others, public.hashes, other_hashes)
        copies = self._find_copies(masks, OF_PUBLIC)
        self._record_allowed(masks, ~copies, OF_PUBLIC)
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

    def _find_copies(self, masks: Mapping[LeakKind, np.ndarray], sides: ComparedSets) -> np.ndarray:
        """Return the mask of the images to drop. Raise if there are any and the plan does not drop duplicates."""
        refused = {kind: mask for kind, mask in masks.items() if mask.any() and kind not in self.plan.allow_leaks}
        if refused and self.plan.duplicates == "refuse":
            raise_overlap({kind: int(mask.sum()) for kind, mask in refused.items()}, sides)
        return np.logical_or.reduce([np.zeros_like(masks["pixels"]), *refused.values()])

    def _record_allowed(self, masks: Mapping[LeakKind, np.ndarray], remaining: np.ndarray, sides: ComparedSets) -> None:
        """Add a sentence to the notes for each allowed kind of leak that occurs in the `remaining` images."""
        counts = {kind: int((masks[kind] & remaining).sum()) for kind in masks if kind in self.plan.allow_leaks}
        self.notes.allowed_leaks += [sides.sentence(kind, count) for kind, count in counts.items() if count]

    def splits(self) -> SplitsBySite:
        """Return the records of each site's splits and of the server's test set.

        Add warnings about unassigned images, and about sites without training or test images, to the notes.
        """
        by_site: SplitsBySite = {}
        columns = self.plan.stratify
        strata = strata_by_columns(self.records, columns) if columns else None
        for number, name in enumerate(self.names):
            rows = np.flatnonzero(self.owner[self.units] == number)
            by_site[name] = split_site_records(
                [self.records[row] for row in rows.tolist()],
                self.plan,
                name,
                units=self.units[rows],
                strata=None if strata is None else strata[rows],
                labels=self.labels[rows],
                sets=None if self.sets is None else self.sets[rows],
            )
            if self.plan.test == "official":
                by_site[name]["test"] = self.tests.get(name, [])
        self._record_gaps(by_site)
        server_test = self.test if self.plan.server_test == "official" else self._records_of(SERVER_TEST)
        if server_test:
            by_site[GLOBAL] = {"test": server_test}
        return by_site

    def make_validation_public(self, private: SplitsBySite) -> dict[str, list[CaseRecord]]:
        """Return the pooled validation split as public data, divided into training, validation and test records.

        Images that also occur in private data are refused, dropped or tolerated.

        Args:
            private: Records of the sites and of the server.

        Raises:
            DataError: If there is no validation split, or as in `separate_from_private`.
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
        kept = self.separate_from_private(pool, private)["training"]
        units = find_units(subjects_of(kept), [self.hashes[record["image"]] for record in kept])
        share = self.plan.public_test_fraction
        plan = replace(self.plan, test="fraction", test_fraction=share, val_fraction=0.0)
        labels, sets = self.source.strata(kept, self.place), label_sets(self.source, kept, self.place)
        return split_site_records(kept, plan, PUBLIC, units, labels=labels, sets=sets)

    def _warn_about_label_conflicts(self, rows: np.ndarray) -> None:
        """Add a warning if identical images have different labels, since one of the labels must be wrong."""
        pixels = find_units([self.hashes[row] for row in rows])
        lowest = np.full(pixels.max(initial=-1) + 1, self.source.num_classes)
        highest = np.full(len(lowest), -1)
        np.minimum.at(lowest, pixels, self.labels)
        np.maximum.at(highest, pixels, self.labels)
        count = int((lowest != highest)[pixels].sum())
        if count:
            self._warn(f"{count} training images are identical to others that have another label")

    def _column_values(self) -> np.ndarray | None:
        """Return each unit's entry in the plan's column, or None without a column.

        Add a warning if images get another site than their own entry states.
        """
        if self.plan.column is None:
            return None
        entries = column_entries(self.records, self.plan.column)
        values = majority_by_unit(self.units, entries)
        moved = int((values[self.units] != entries).sum())
        if moved:
            self._warn(
                f"{image_count_text(moved)} at another site than the column '{self.plan.column}' states, because a "
                "patient's images and identical images stay together"
            )
        return values

    def _drop_units(self, copies: np.ndarray, sides: ComparedSets) -> None:
        """Drop the images in the mask, with all other images of their units, and record the exclusions."""
        dropped = np.unique(self.units[copies])
        owners = self.owner[self.units][np.isin(self.units, dropped)]
        for number in np.unique(owners).tolist():
            entry = Exclusion(reason=sides.reason, count=int((owners == number).sum()))
            self.notes.exclusions[self.names[number]] = [entry]
        self.owner[dropped] = DROPPED

    def _record_gaps(self, by_site: SplitsBySite) -> None:
        """Add warnings about images that are at no site, and about sites without training or test images."""
        notes = self.notes
        notes.unassigned = {label: count for label, count in self._count_by_class(UNASSIGNED).items() if count}
        if notes.unassigned:
            classes = ", ".join(f"{count} of class {label}" for label, count in notes.unassigned.items())
            self._warn(f"the scheme left {sum(notes.unassigned.values())} training images at no site: {classes}")
        for split, count in count_undistributed(self.pooled, self.plan).items():
            self._warn(f"the {count} {split} images of the pooled data set are at no site")
        if self.plan.server_test == "official" and not self.test:
            self._warn("the pooled data set has no test images, so the server has no test set")
        untested = [name for name in by_site if not by_site[name]["test"]]
        if self.plan.test == "official" and untested:
            self._warn(f"{len(untested)} sites have no test images: {names_and_more(untested, 8)}")
        empty = [name for name, splits in by_site.items() if not splits["training"]]
        if empty:
            self._warn(f"{len(empty)} sites have no training images: {names_and_more(empty, 8)}")

    def _count_by_class(self, owner: int) -> dict[str, int]:
        counts = np.bincount(self.labels[self.owner[self.units] == owner], minlength=self.source.num_classes)
        return {str(label): int(count) for label, count in enumerate(counts)}

    def _records_of(self, owner: int) -> list[CaseRecord]:
        return [self.records[image] for image in np.flatnonzero(self.owner[self.units] == owner).tolist()]

    def _warn(self, sentence: str) -> None:
        self.notes.warnings.append(sentence)


def distribute(
    source: Datalist, hashes: Sequence[bytes], plan: PartitionPlan, scheme: Scheme, public: PublicPool | None = None
) -> tuple[SplitsBySite, PartitionNotes]:
    """Assign each image of a pooled data set to a site, to the server or to the public data.

    Args:
        source: Pooled data list.
        hashes: Hash of the pixels of each row of the pooled array.
        plan: Settings of the partition.
        scheme: Function that `plan.scheme` names.
        public: Public data from another data set, if the plan names one.

    Returns:
        Records of all sites, of the server and of the public data, and the notes for the report.

    Raises:
        DataError: If the pooled data set is wrong, or training images are also in the server's test set.
        SettingsError: If the scheme can't fulfil the settings.
    """
    assignment = UnitAssignment(source, hashes, plan)
    assignment.hold_out_server_test()
    assignment.assign_to_sites(scheme)
    assignment.separate_from_test()
    splits = assignment.splits()
    if plan.public in ("validation", "training"):
        splits |= {PUBLIC: assignment.make_validation_public(splits)}
    elif public is not None:
        splits |= {PUBLIC: assignment.separate_from_private(public, splits)}
    return splits, assignment.notes
