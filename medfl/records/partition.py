"""Schemas of ``partition.json`` and ``case_partition.json``, in which ``medfl partition`` describes a partition.

A partition divides a pooled data set into the data of several sites, by a scheme such as a random or a class-skewed
division. A unit is the smallest part that is never divided: a patient, or an image if patients are not known. A leak is
a violation of the splits, such as a patient in both a training and a test set.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal, Self

from pydantic import JsonValue, NonNegativeInt, PositiveInt, model_validator

from medfl.errors import DataError, MedflError
from medfl.records.datalist import Exclusion
from medfl.records.record import FileRecord, Record
from medfl.types import LeakKind

TestPolicy = Literal["fraction", "class_balanced", "k_fold", "official", "none"]
"""Choice of a site's own test set.

``fraction``: a share of its units. ``class_balanced``: a share with the same number of each class. ``k_fold``: a fold.
``official``: its part of the pooled test split. ``none``: no test set.
"""


ServerTest = Literal["official", "per_class", "remainder", "none"]
"""Choice of the server's test set.

``official``: the pooled test split. ``per_class``: a number of images of each class from the training split.
``remainder``: the images that the scheme assigns to no site. ``none``: no test set.
"""


Duplicates = Literal["refuse", "drop"]
"""Treatment of training images that are also in the server's test set, and of public images that are also private.

``refuse``: raise an error. ``drop``: leave these images out.
"""


class LocatedExclusion(Exclusion):
    """Number of images that were left out of a data set for one reason and at one place.

    Attributes:
        where: Name of the site, ``public``, or ``pooled data set`` if the images were left out before the partition.
    """

    where: str


class TestFold(Record):
    """Fold of a cross-validation that is the test set of every site.

    Attributes:
        fold: Number of the fold, from 0.
        folds: Number of folds.
    """

    fold: NonNegativeInt
    folds: PositiveInt

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.fold >= self.folds:
            raise ValueError("expected 'fold' to be less than 'folds'")
        return self


class PartitionSettings(Record):
    """Settings of a partition, as the user gave them. Settings without an effect are None.

    Attributes:
        scheme: Name of the scheme.
        options: Options of the scheme.
        column: Column of the data list by which the scheme divides the images.
        sites: Number of sites.
        seed: Seed of all random draws.
        join_splits: Whether the splits of the release were joined first.
        test: Choice of a site's own test set.
        test_fraction: Share of a site's units in its test set.
        folds: Number of folds.
        fold: Number of the fold that is the test set, from 0.
        val_fraction: Share of a site's units in its validation set.
        stratify: Columns by which test and validation sets are stratified, besides labels.
        server_test: Choice of the server's test set.
        per_class: Images of each class in the server's test set.
        public: ``validation`` if the pooled validation split is public data, ``training`` if a random part of the
            pooled training split is.
        public_images: Number of images of that part.
        public_test_fraction: Share of the public units in the public test set.
        duplicates: Treatment of images that are in two places that must not share any.
        allow_leaks: Kinds of leaks that were allowed.
    """

    scheme: str
    options: dict[str, JsonValue] = {}
    column: str | None = None
    sites: PositiveInt
    seed: NonNegativeInt
    join_splits: bool = False
    test: TestPolicy
    test_fraction: float | None = None
    folds: PositiveInt | None = None
    fold: NonNegativeInt | None = None
    val_fraction: float
    stratify: tuple[str, ...] = ()
    server_test: ServerTest
    per_class: PositiveInt | None = None
    public: Literal["validation", "training"] | None = None
    public_images: PositiveInt | None = None
    public_test_fraction: float | None = None
    duplicates: Duplicates | None = None
    allow_leaks: tuple[LeakKind, ...] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.test == "k_fold") != (self.fold is not None) or (self.fold is None) != (self.folds is None):
            raise ValueError("expected 'fold' and 'folds' if 'test' is k_fold, and neither of them otherwise")
        self.test_fold()
        return self

    def test_fold(self) -> TestFold | None:
        """Return the fold that is the test set of every site, or None if the test sets are no folds."""
        return None if self.fold is None or self.folds is None else TestFold(fold=self.fold, folds=self.folds)


class Partition(FileRecord):
    """Content of ``partition.json``, in the folder that contains the folders of the sites.

    Attributes:
        dataset: Name of the pooled data set.
        public_dataset: Name of the pooled data set of the public images, if it differs from `dataset`.
        settings: Settings that had an effect.
        unassigned: Maps each class to its number of training images that are at no site and not in the server's test
            set.
        allowed_leaks: Sentences about leaks that were allowed.
        warnings: Sentences about problems of the partition.
        exclusions: Numbers of images that were left out, by reason and place.
        not_distributed: Maps each split of the pooled data set that is not in the partition to its number of images.
        sha256_by_file: Maps each data list and array, by its path relative to the partition, to its SHA-256.
    """

    NAME: ClassVar[str] = "partition.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Partition again."
    """Sentence that tells a user what to do about a damaged file."""
    ERROR: ClassVar[type[MedflError]] = DataError
    """Class of the errors that the reader raises."""

    dataset: str
    public_dataset: str | None = None
    settings: PartitionSettings
    unassigned: dict[str, PositiveInt] = {}
    allowed_leaks: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    exclusions: tuple[LocatedExclusion, ...] = ()
    not_distributed: dict[str, PositiveInt] = {}
    sha256_by_file: dict[str, str] = {}

    @classmethod
    def find(cls, dataset_dir: str | Path) -> Self | None:
        """Find and read ``partition.json`` of a partitioned data set.

        Args:
            dataset_dir: Path of the folder that contains one folder for each site.

        Returns:
            None if the folder has no such file, because the lists of the sites were written without ``medfl
            partition``.

        Raises:
            DataError: If the file can't be read, is damaged, or has another version.
        """
        path = Path(dataset_dir) / cls.NAME
        return cls.read(path) if path.is_file() else None


class CasePartition(FileRecord):
    """Content of ``case_partition.json``, which describes a partition of a list of cases instead of an image array.

    The file is in the folder that contains the folders of the sites.

    Attributes:
        case_list: Name of the file that lists the cases.
        scheme: Name of the scheme.
        options: Options of the scheme.
        column: Name of the entry of a case by which the scheme divides the cases.
        seed: Seed of all random draws.
        cases: Maps each site to the number of cases in each section of its list.
    """

    NAME: ClassVar[str] = "case_partition.json"
    """Name of the file in its folder."""
    REPAIR: ClassVar[str] = "Partition again."
    """Sentence that tells a user what to do about a damaged file."""
    ERROR: ClassVar[type[MedflError]] = DataError
    """Class of the errors that the reader raises."""

    case_list: str
    scheme: str
    options: dict[str, JsonValue] = {}
    column: str | None = None
    seed: NonNegativeInt
    cases: dict[str, dict[str, NonNegativeInt]]
