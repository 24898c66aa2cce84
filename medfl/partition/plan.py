"""Carry a partition out: from a pooled data set to one folder for each site.

In this order: the server's test set is set apart, the scheme deals the units, training copies of the server's images
are refused or dropped, and each site's own test and validation images are held out. Nothing is copied: every site's
list names the pooled array. `partition.json` beside the sites says how they were made.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from medfl.data.arrays import array_digest, check_finite, open_array
from medfl.data.datalists import FILE, Datalist, read_datalist
from medfl.data.folders import check_free, written_whole
from medfl.data.leaks import check_kinds, check_rows, row_digests
from medfl.errors import DataError, SettingsError, did_you_mean
from medfl.partition.deal import Scheme
from medfl.partition.distribute import distribute
from medfl.partition.overlap import PublicPool
from medfl.partition.writing import Pool, numbered, write_sites

TestPolicy = Literal["fraction", "class_balanced", "k_fold", "none"]
"""A site's own test set: a share of its units, the same with classes alike, a fold, or none."""

GlobalTest = Literal["official", "per_class", "remainder", "none"]
"""The server's test set: the pooled test split, images of each class from the training split, what the scheme leaves
over, or none."""

NO_PUBLIC, VALIDATION = "none", "validation"
"""What `Plan.public` says instead of a folder."""

Duplicates = Literal["refuse", "drop"]
"""What happens to training images that are in the server's test set as well, and to public ones that are private."""


@dataclass(frozen=True)
class Plan:
    """How a pooled data set becomes sites.

    A unit is what stays together, see `medfl.partition.units`; without groups it is one image.

    Attributes:
        scheme: Name of the partition.
        sites: Number of sites, >= 1; None leaves it to a scheme that goes by a column.
        seed: Seed of all draws, >= 0.
        options: Options of the scheme.
        test: How a site's own test set is chosen.
        test_fraction: With ``fraction`` and ``class_balanced``: the share of a site's units, in [0, 1).
        folds: With ``k_fold``: number of folds, >= 2.
        fold: With ``k_fold``: the fold that is the test set, in 0..folds-1.
        val_fraction: Share of a site's units that become its validation set, in [0, 1); with the test set below 1.
        stratify: Columns of the data list by which a site's test and validation sets are stratified, besides labels.
        global_test: What the server's test set is.
        per_class: With ``per_class``: images of each class, >= 1.
        public: Data that everybody may see, which only the server trains on: ``none``, ``validation`` for the pooled
            validation split, which is nobody's private data then, or the folder of another pooled data set.
        public_test_fraction: With ``validation``: share of its units that becomes its test set, in [0, 1).
        column: The column of the data list by which the scheme goes, if it does.
        duplicates: What happens to training images that are in the server's test set as well, and to public images that
            are at a site or in that test set.
        allow_leaks: Kinds of such leaks that stay: ``subjects``, ``pixels``.
    """

    scheme: str
    sites: int | None = None
    seed: int = 0
    options: Mapping[str, Any] = field(default_factory=dict)
    test: TestPolicy = "fraction"
    test_fraction: float = 0.2
    folds: int = 5
    fold: int = 0
    val_fraction: float = 0.0
    stratify: Sequence[str] = ()
    global_test: GlobalTest = "official"
    per_class: int = 30
    public: str = NO_PUBLIC
    public_test_fraction: float = 0.0
    column: str | None = None
    duplicates: Duplicates = "refuse"
    allow_leaks: Sequence[str] = ()

    def __post_init__(self) -> None:
        kinds = {"test": TestPolicy, "global_test": GlobalTest, "duplicates": Duplicates}
        for name, kind in kinds.items():
            if getattr(self, name) not in get_args(kind):
                hint = did_you_mean(str(getattr(self, name)), get_args(kind))
                raise SettingsError(f"unknown '{getattr(self, name)}' for {name}. {hint}")
        if isinstance(self.stratify, str) or not all(isinstance(column, str) for column in self.stratify):
            raise SettingsError(f"expected a list of columns to stratify by, such as [centre], got {self.stratify!r}")
        if self.seed < 0:
            raise SettingsError(f"expected a seed >= 0, got {self.seed}")
        if self.folds < 2 or not 0 <= self.fold < self.folds:
            raise SettingsError(f"expected at least 2 folds and a fold from 0, got fold {self.fold} of {self.folds}")
        if self.per_class < 1:
            raise SettingsError(f"expected at least 1 image of each class, got per_class {self.per_class}")
        fractions = (self.held_out, self.val_fraction)
        if not (min(fractions) >= 0 and sum(fractions) < 1):
            raise SettingsError(
                f"expected test and validation fractions >= 0 with a sum below 1, got {fractions[0]} and {fractions[1]}"
            )
        if not 0 <= self.public_test_fraction < 1:
            raise SettingsError(
                f"expected a share in [0, 1) of the public images as their test set, got {self.public_test_fraction}"
            )
        check_kinds(self.allow_leaks)

    @property
    def held_out(self) -> float:
        """The share of a site's units that is its test set."""
        return {"k_fold": 1 / self.folds, "none": 0.0}.get(self.test, self.test_fraction)

    def names(self) -> list[str]:
        """The names of numbered sites, zero-padded so that they sort as numbers do."""
        return numbered(self.sites or 0)


def partition(pool: Path, out: Path, plan: Plan, scheme: Scheme, *, force: bool = False) -> dict[str, Datalist]:
    """Distribute the training split of a pooled data set over sites and write their folders.

    Args:
        pool: The pooled data set, as written by ``medfl prep``.
        out: The folder to write; it is written whole or not at all.
        plan: How.
        scheme: The function of `plan.scheme`.
        force: Whether a partition that is there may be replaced.

    Returns:
        Name to data list of each site, ``global`` where the server has a test set, and ``public``.

    Raises:
        DataError: If the pooled data set is wrong, training images are in the server's test set as well, or `out` may
            not be written.
        SettingsError: If the scheme does not take an option, or can't do what is asked.
    """
    check_free(out, force, [pool])
    source, array = _read(pool)
    other = _public(plan, out, force)
    public = None if other is None else _comparable(*other, array)
    splits, notes = distribute(source, row_digests(array), plan, scheme, public)
    with written_whole(out, force) as folder:
        shown = None if other is None else _pool(*other, out)
        return write_sites(folder, _pool(source, array, out), splits, plan, notes, shown)


def _read(folder: Path) -> tuple[Datalist, Path]:
    """The list of a pooled data set and its image array, whose pixels are finite where the list names them."""
    datalist = read_datalist(folder)
    array = folder / datalist.image_array
    images, where = open_array(array), f"pooled data set '{datalist.name}'"
    for split in datalist.splits:
        rows, _ = datalist.rows_and_labels(split, where)
        check_rows(rows, len(images), f"{where}, split '{split}'")
        try:
            check_finite(images, rows)
        except DataError as error:
            raise DataError(f"{where}, split '{split}': {error}") from None
    return datalist, array


def _public(plan: Plan, out: Path, force: bool) -> tuple[Datalist, Path] | None:
    """The public data of another data set, if the plan names one."""
    if plan.public in (NO_PUBLIC, VALIDATION):
        return None
    folder = Path(plan.public)
    if not (folder / FILE).is_file():
        raise SettingsError(
            f"unknown '{plan.public}' for public: expected {NO_PUBLIC}, {VALIDATION}, or the folder of a pooled data "
            f"set, with its {FILE}."
        )
    check_free(out, force, [folder])
    return _read(folder)


def _comparable(datalist: Datalist, array: Path, pooled: Path) -> PublicPool:
    """Public data with the hashes of their images."""
    return PublicPool(datalist.splits, row_digests(array), array_digest(array) == array_digest(pooled))


def _pool(datalist: Datalist, array: Path, out: Path) -> Pool:
    """A pooled data set as sites in `out` name it."""
    way = Path(os.path.relpath(array.resolve(), out.resolve() / "site")).as_posix()  # '..' does not go back over a link
    return Pool(datalist, way, array_digest(array))
