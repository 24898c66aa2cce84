"""What a study file says, validated; a key that is not known is an error that names the nearest known one."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medfl.data.partition.plan import PartitionPlan
from medfl.settings import Strict
from medfl_studies.preps import Prep
from medfl_studies.tuning import Tuning

FULL = "full"
"""The scale of the file as it stands."""

FOLDS = PartitionPlan.folds
"""Number of folds where a partition names none."""


class DataSet(Strict):
    """One data set of a study.

    Attributes:
        prep: How to prepare it; or
        folder: a folder relative to the source: a pooled data set if there is a `partition`, else a partitioned one.
        partition: ``scheme``, fields of `medfl.data.partition.plan.PartitionPlan`, and options of the scheme, in one
            mapping. Without a ``seed`` each seed of the study draws its own partition. ``test: k_fold`` without a
            ``fold`` stands for all ``folds``: a run for each of them.
        public: How to prepare data that the server may train on in every run (``--public``); see
            `medfl_studies.jobs.drops_public`.
        options: Options of the run for this data set, for example ``epochs``.
        rows: Names of the rows that are run on it; none means all.
        size: Of the images, in place of what `prep` and `public` say; a scale gives it.
    """

    prep: Prep | None = None
    public: Prep | None = None
    folder: str | None = None
    partition: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    rows: list[str] = []
    size: int | None = Field(None, ge=1, exclude=True, repr=False)

    @model_validator(mode="after")
    def _one_origin(self) -> DataSet:
        if (self.prep is None) == (self.folder is None):
            raise ValueError("give either 'prep' or 'folder'")
        if self.prep is not None and self.partition is None:
            raise ValueError("'prep' makes a pooled data set, which needs a 'partition'")
        return self

    @field_validator("partition")
    @classmethod
    def _has_scheme(cls, partition: dict[str, Any] | None) -> dict[str, Any] | None:
        if partition is not None and not isinstance(partition.get("scheme"), str):
            raise ValueError("a partition needs a 'scheme' (`medfl list partitions`)")
        folds = (partition or {}).get("folds", FOLDS)
        if isinstance(folds, bool) or not isinstance(folds, int) or folds < 2:
            raise ValueError(f"expected a whole number of at least 2 'folds', got {folds!r}")
        return partition

    def fold_list(self) -> list[int | None]:
        """The folds that have a run each, from 0; only None where the test sets are not folds, or one fold is named."""
        plan = self.partition or {}
        if plan.get("test") != "k_fold" or "fold" in plan:
            return [None]
        return list(range(plan.get("folds", FOLDS)))


class StudyRow(Strict):
    """One row of the table.

    Attributes:
        method: Name of the method.
        method_args: Its settings.
        settings: Options of the run for this row; they win over all others.
        baseline: The row that this one is compared with, if it is not that of the study.
    """

    method: str
    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    baseline: str | None = None


class Change(Strict):
    """What rows have at a scale in place of their own.

    Attributes:
        method_args: Settings of the method that are replaced or added.
        settings: Options of the run that are replaced or added.
    """

    method_args: dict[str, Any] = {}
    settings: dict[str, Any] = {}


class Attack(Strict):
    """What ``medfl attack`` does to the finished runs of some rows.

    Attributes:
        rows: Names of the rows; none means all.
        data: Names of the data sets; none means all.
        options: Options of the command, as they are spelt there or with ``_`` for ``-``.
    """

    rows: list[str] = []
    data: list[str] = []
    options: dict[str, int | float | str] = {}


class Claim(Strict):
    """What a paper says of two rows; the table tells whether it holds.

    Attributes:
        measure: One of `medfl_report.claims.CLAIMABLE`.
        better: The row that is said to be better.
        than: The row that it is compared with.
    """

    measure: str
    better: str
    than: str


class StudyScale(Strict):
    """A smaller (or larger) version of a study.

    Attributes:
        settings: Options of the run that replace those of the study.
        seeds: Seeds that replace those of the study.
        size: Edge of the images of all data sets that are prepared to a size.
        methods: Name of a method to what its rows have in place of their own.
    """

    settings: dict[str, Any] = {}
    seeds: int | list[int] | None = None
    size: int | None = Field(None, ge=1)
    methods: dict[str, Change] = {}


class Study(Strict):
    """A study file.

    Attributes:
        name: What it is called.
        about: What it shows, and which paper's table it answers.
        bundle: Folder of a bundle, relative to the study file, or name of one that comes with medfl.
        data: Name to data set; each yields a table of its own.
        rows: Name to row. A study without rows has no runs; its tables tell who is at the sites.
        seeds: A number N, for the seeds 0 to N-1, or a list of seeds.
        metrics: Metrics that the runs compute and the tables show; without them, those of the bundle.
        baseline: The row that the others are compared with.
        claims: Orderings to check.
        attacks: Attack to the rows whose runs are attacked once they are finished.
        settings: Options of every run. Weakest first: these, a scale's, a data set's, a row's, a scale's for a method.
            A file of ``weights`` is one of the source folder.
        without_weights: What replaces `settings` where that file is not there (`medfl_studies.weights`); None refuses.
        scales: Name to scale.
        tune: What ``medfl tune`` looks for; None leaves nothing to it.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    about: str = ""
    bundle: str
    data: dict[str, DataSet] = Field(min_length=1)
    rows: dict[str, StudyRow] = {}
    seeds: int | list[int] = 1
    metrics: list[str] = []
    baseline: str | None = None
    claims: list[Claim] = []
    attacks: dict[Literal["membership", "inversion", "poison"], Attack] = {}
    settings: dict[str, Any] = {}
    without_weights: dict[str, Any] | None = None
    scales: dict[str, StudyScale] = {}
    tune: Tuning | None = None

    def seed_list(self) -> list[int]:
        """The seeds, in order."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    def repetitions(self, data: DataSet) -> list[tuple[int, int | None]]:
        """Seed and fold of the runs that a row has on a data set, in order; the fold is None where there are none."""
        return [(seed, fold) for seed in self.seed_list() for fold in data.fold_list()]


def slug(name: str) -> str:
    """A name as part of a path: ``fedprox mu=0.1`` becomes ``fedprox-mu-0.1``."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-.")
