"""Schema of study files. An unknown key is an error whose message suggests the nearest known key.

A study compares methods. Each row of the study is a method with settings; a row has one run for each data set, seed and
fold. A scale is a named variant of the study, for example with fewer rounds. A release is a data set as its authors
publish it; the source folder holds the user's downloads.
"""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medfl.data.partition.plan import PartitionPlan
from medfl.settings import StrictModel
from medfl_studies.launchers.resources import Resources
from medfl_studies.preparation import PreparationSpec
from medfl_studies.tuning_section import Tuning

FULL_SCALE = "full"
"""Name of the scale that leaves the study file unchanged."""

DEFAULT_FOLDS = PartitionPlan.folds
"""Number of folds if a partition gives none."""


class DataSet(StrictModel):
    """One data set of a study.

    Attributes:
        prep: Preparation of the data set from its release; exactly one of `prep` and `folder` is given.
        folder: Folder relative to the source folder: a pooled data set if there is a `partition`, else a partitioned
            one.
        partition: ``scheme``, fields of `medfl.data.partition.plan.PartitionPlan` and options of the scheme, in one
            mapping. Without a ``seed`` each seed of the study draws its own partition. ``test: k_fold`` without a
            ``fold`` means one run for each of the ``folds``.
        public: Preparation of public data, which the server may use for training in every run (option ``--public``).
        options: Options of the run for this data set, for example ``epochs``.
        rows: Names of the rows that are run on the data set; empty means all.
        size: Image size that replaces the sizes in `prep` and `public`; set by a scale, not by the file.
    """

    prep: PreparationSpec | None = None
    public: PreparationSpec | None = None
    folder: str | None = None
    partition: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    rows: list[str] = []
    size: int | None = Field(None, ge=1, exclude=True, repr=False)

    @model_validator(mode="after")
    def _check_origin(self) -> DataSet:
        """Check that the data set has exactly one origin, and a partition if it is prepared."""
        if (self.prep is None) == (self.folder is None):
            raise ValueError("expected either 'prep' or 'folder'")
        if self.prep is not None and self.partition is None:
            raise ValueError("expected a 'partition': 'prep' makes a pooled data set")
        return self

    @field_validator("partition")
    @classmethod
    def _check_partition(cls, partition: dict[str, Any] | None) -> dict[str, Any] | None:
        """Check the scheme and the number of folds of the partition."""
        if partition is not None and not isinstance(partition.get("scheme"), str):
            raise ValueError("expected a 'scheme' in the partition (see `medfl list partitions`)")
        folds = (partition or {}).get("folds", DEFAULT_FOLDS)
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
            raise ValueError(f"expected a whole number of at least 2 'folds', got {folds!r}")
        return partition

    def fold_list(self) -> list[int | None]:
        """Return the folds that have a run each, counted from 0.

        The list is [None] if the test sets are not folds, or if the partition names one fold.
        """
        plan = self.partition or {}
        if plan.get("test") != "k_fold" or "fold" in plan:
            return [None]
        return list(range(plan.get("folds", DEFAULT_FOLDS)))


class RowChange(StrictModel):
    """Changes of a row.

    Attributes:
        method_args: Settings of the method that are replaced or added.
        settings: Options of the run that are replaced or added.
    """

    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class StudyRow(StrictModel):
    """One row of the study's table: a method with its settings.

    Attributes:
        method: Name of the method.
        method_args: Settings of the method.
        settings: Options of the run for this row; they override all others.
        splits: Maps a split of the data, such as ``seed-0`` or ``seed-0-fold-1``, to changes of the row for its run.
            ``medfl tune`` writes it if it searches in each split.
        baseline: Row that this row is compared with; None means the study's baseline.
        resources: Resources of the row's jobs on a cluster, which override the study's resources.
    """

    method: str
    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    splits: dict[str, RowChange] = {}
    baseline: str | None = None
    resources: Resources = Resources()

    def changed(self, change: RowChange | None) -> StudyRow:
        """Return the row with changes of its settings."""
        if change is None:
            return self
        args, settings = self.method_args | change.method_args, self.settings | change.settings
        return self.model_copy(update={"method_args": args, "settings": settings})


class StudyAttack(StrictModel):
    """An attack (``medfl attack``) on the finished runs of some rows.

    Attributes:
        rows: Names of the rows; empty means all.
        data: Names of the data sets; empty means all.
        options: Options of the command, spelled with ``-`` as on the command line or with ``_``.
    """

    rows: list[str] = []
    data: list[str] = []
    options: dict[str, int | float | str] = {}


class StudyClaim(StrictModel):
    """A claim of a paper that one row is better than another; the study's page reports whether it holds.

    Attributes:
        measure: Name of the measure of the comparison, such as ``local_test``: a key of
            `medfl_report.claims.CLAIMABLE`.
        better: Row that is claimed to be better.
        than: Row that is claimed to be worse.
    """

    measure: str
    better: str
    than: str


class StudyScale(StrictModel):
    """A smaller (or larger) version of a study.

    Attributes:
        settings: Options of the run that override the study's options.
        seeds: Seeds that replace the study's seeds.
        size: Edge length in pixels or voxels to which images are prepared, for the data sets that have such an option.
        methods: Maps the name of a method to the changes of its rows.
    """

    settings: dict[str, Any] = {}
    seeds: int | list[int] | None = None
    size: int | None = Field(None, ge=1)
    methods: dict[str, RowChange] = {}


class Study(StrictModel):
    """A study file.

    Attributes:
        name: Name of the study.
        about: Description of the study, with the paper and table that it reproduces.
        bundle: Folder of a bundle, relative to the study file, or name of a bundle that comes with medfl.
        data: Maps names to data sets; each has its own table.
        rows: Maps names to rows. A study without rows has no runs; its tables describe the sites.
        seeds: A number N, for the seeds 0 to N-1, or a list of seeds.
        metrics: Metrics that the runs compute and the tables show; empty means the bundle's metrics.
        baseline: Row that the other rows are compared with.
        claims: Claims to check.
        attacks: Maps the name of an attack to the rows whose finished runs are attacked.
        settings: Options of every run. They are overridden by those of a scale, a data set, a row, and a scale's
            changes of a method, in this order. A file of weights in ``start`` is in the source folder.
        without_weights: Settings that override `settings` if the file of weights does not exist
            (`medfl_studies.pretrained_weights`). None means that the file is required.
        scales: Maps names to scales.
        tune: Search space of ``medfl tune``, or None.
        unseen: Sites that are left out in turn: each row has a further run without the site for each seed, whose model
            is evaluated there. ``each`` means every site; None means no such runs.
        unseen_split: Images of such a site on which models are evaluated: ``test``, or ``all`` for all splits.
        resources: Resources of each job on a cluster (``--launcher slurm``). Rows can override them.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    about: str = ""
    bundle: str
    data: dict[str, DataSet] = Field(min_length=1)
    rows: dict[str, StudyRow] = {}
    seeds: int | list[int] = 1
    metrics: list[str] = []
    baseline: str | None = None
    claims: list[StudyClaim] = []
    attacks: dict[str, StudyAttack] = {}
    settings: dict[str, Any] = {}
    without_weights: dict[str, Any] | None = None
    scales: dict[str, StudyScale] = {}
    tune: Tuning | None = None
    unseen: Literal["each"] | list[str] | None = None
    unseen_split: Literal["test", "all"] = "test"
    resources: Resources = Resources()

    def seed_list(self) -> list[int]:
        """Return the seeds of the study as a list: 0 to N-1 if `seeds` is a number N."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    def repetitions(self, data: DataSet) -> list[tuple[int, int | None]]:
        """Return seed and fold of each run that a row has on a data set, in order; the fold is None without folds."""
        return [(seed, fold) for seed in self.seed_list() for fold in data.fold_list()]


def split_name(seed: int, fold: int | None) -> str:
    """Return the name of a split of the data, which is also the name of its run's folder.

    Args:
        seed: Seed of the run.
        fold: Fold of the run, or None without folds.
    """
    return f"seed-{seed}" + ("" if fold is None else f"-fold-{fold}")


def slug(name: str) -> str:
    """Convert a name to a part of a path: ``fedprox mu=0.1`` becomes ``fedprox-mu-0.1``."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-.")
