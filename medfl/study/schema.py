"""What a study file says, validated; a key that is not known is an error that names the nearest known one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from medfl.errors import SettingsError, did_you_mean
from medfl.nested import texts
from medfl.partition.plan import Plan
from medfl.report.claims import CLAIMABLE
from medfl.settings import Strict, read_settings
from medfl.strict_yaml import read_yaml
from medfl.study.preps import Prep

FULL = "full"
"""The scale of the file as it stands."""

FOLDS = Plan.folds
"""Number of folds where a partition names none."""

RESERVED = ("bundle_root", "dataset_dir", "output_dir", "method", "method_args", "metrics", "seed")
"""Options of a run that the study itself gives."""


class DataSet(Strict):
    """One data set of a study.

    Attributes:
        prep: How to prepare it; or
        folder: a folder relative to the source: a pooled data set if there is a `partition`, else a partitioned one.
        partition: ``scheme``, fields of `medfl.partition.plan.Plan`, and options of the scheme, in one mapping.
            Without a ``seed`` each seed of the study draws its own partition. ``test: k_fold`` without a ``fold``
            stands for all ``folds``: a run for each of them.
        public: How to prepare data that the server may train on in every run (``--public``); see
            `medfl.study.jobs.drops_public`.
        options: Options of the run for this data set, for example ``epochs``.
        rows: Names of the rows that are run on it; none means all.
    """

    prep: Prep | None = None
    public: Prep | None = None
    folder: str | None = None
    partition: dict[str, Any] | None = None
    options: dict[str, Any] = {}
    rows: list[str] = []

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


class Row(Strict):
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
        measure: One of `medfl.report.claims.CLAIMABLE`.
        better: The row that is said to be better.
        than: The row that it is compared with.
    """

    measure: str
    better: str
    than: str


class Scale(Strict):
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
        without_weights: What replaces `settings` where that file is not there (`medfl.study.weights`); None refuses.
        scales: Name to scale.
    """

    name: str = Field(pattern=r"^[\w.-]+$")
    about: str = ""
    bundle: str
    data: dict[str, DataSet] = Field(min_length=1)
    rows: dict[str, Row] = {}
    seeds: int | list[int] = 1
    metrics: list[str] = []
    baseline: str | None = None
    claims: list[Claim] = []
    attacks: dict[Literal["membership", "inversion"], Attack] = {}
    settings: dict[str, Any] = {}
    without_weights: dict[str, Any] | None = None
    scales: dict[str, Scale] = {}

    def seed_list(self) -> list[int]:
        """The seeds, in order."""
        return list(range(self.seeds)) if isinstance(self.seeds, int) else list(self.seeds)

    def repetitions(self, data: DataSet) -> list[tuple[int, int | None]]:
        """Seed and fold of the runs that a row has on a data set, in order; the fold is None where there are none."""
        return [(seed, fold) for seed in self.seed_list() for fold in data.fold_list()]


def slug(name: str) -> str:
    """A name as part of a path: ``fedprox mu=0.1`` becomes ``fedprox-mu-0.1``."""
    return re.sub(r"[^\w.]+", "-", name.lower()).strip("-.")


def read_study(path: Path, scale: str = FULL, seeds: int | None = None, data: Sequence[str] = ()) -> Study:
    """Read a study file at a scale.

    Args:
        path: The file.
        scale: Name of one of its scales; ``full`` is the file as it stands.
        seeds: Number of seeds that replaces those of the file, >= 1.
        data: Names of the data sets to use; none means all.

    Raises:
        SettingsError: If the file or the scale is not as expected; all problems of a kind at once.
    """
    study = read_settings(Study, read_yaml(path, "study file"), f"the study '{path}'")
    if FULL in study.scales:
        raise SettingsError(f"a scale of the study '{path}' is called '{FULL}', which is the file as it stands.")
    if scale != FULL and scale not in study.scales:
        raise SettingsError(f"the study '{path}' has no scale '{scale}'. {did_you_mean(scale, [FULL, *study.scales])}")
    for name in data:
        if name not in study.data:
            raise SettingsError(f"the study '{path}' has no data set '{name}'. {did_you_mean(name, study.data)}")
    _check_names(study)
    chosen = study.scales.get(scale, Scale())
    rows = _changed(study.rows, chosen.methods)
    seed_choice = study.seeds if chosen.seeds is None else chosen.seeds
    study = study.model_copy(
        update={
            "settings": study.settings | chosen.settings,
            "seeds": seed_choice if seeds is None else seeds,
            "data": {name: _sized(one, chosen.size) for name, one in study.data.items() if not data or name in data},
            "rows": rows,
            "scales": {},
        }
    )
    _check_seeds(study)
    _check_options(study)
    return study


def _sized(data: DataSet, size: int | None) -> DataSet:
    """The data set with images of a scale's size, if it has a size at all."""
    preps = {"prep": data.prep, "public": data.public}
    sized = {name: prep for name, prep in preps.items() if prep is not None and "size" in type(prep).model_fields}
    if size is None:
        return data
    return data.model_copy(update={name: prep.model_copy(update={"size": size}) for name, prep in sized.items()})


def _changed(rows: dict[str, Row], changes: dict[str, Change]) -> dict[str, Row]:
    """The rows with what a scale changes for their methods."""
    known = {row.method for row in rows.values()}
    for method in changes:
        if method not in known:
            raise SettingsError(f"a scale changes '{method}', the method of no row. {did_you_mean(method, known)}")
    found = {}
    for name, row in rows.items():
        change = changes.get(row.method, Change())
        new = {"method_args": row.method_args | change.method_args, "settings": row.settings | change.settings}
        found[name] = row.model_copy(update=new)
    return found


def _check_names(study: Study) -> None:
    _check_slugs("rows", study.rows)
    _check_slugs("data", study.data)
    if study.baseline is not None and study.baseline not in study.rows:
        raise SettingsError(
            f"the baseline '{study.baseline}' is no row of the study. {did_you_mean(study.baseline, study.rows)}"
        )
    for name, row in study.rows.items():
        _check_known(f"rows.{name}.baseline", [row.baseline] if row.baseline else [], study.rows, "row")
    for claim in study.claims:
        _check_known("claims", (claim.better, claim.than), study.rows, "row")
        if claim.measure not in CLAIMABLE:
            hint = did_you_mean(claim.measure, CLAIMABLE)
            raise SettingsError(f"'claims' names the measure '{claim.measure}', which is no measure to claim. {hint}")
    for kind, attack in study.attacks.items():
        _check_known(f"attacks.{kind}", attack.rows, study.rows, "row")
        _check_known(f"attacks.{kind}", attack.data, study.data, "data set")
    for name, data in study.data.items():
        _check_known(f"data.{name}", data.rows, study.rows, "row")


def _check_seeds(study: Study) -> None:
    seeds = study.seed_list()
    if not seeds or min(seeds) < 0 or len(set(seeds)) != len(seeds):
        raise SettingsError(f"expected at least one seed, all >= 0 and unlike each other, got {study.seeds!r}.")


def _check_known(place: str, names: Iterable[str], known: Iterable[str], what: str) -> None:
    for name in names:
        if name not in known:
            raise SettingsError(f"'{place}' names '{name}', no {what} of the study. {did_you_mean(name, known)}")


def _check_slugs(part: str, names: Iterable[str]) -> None:
    found: dict[str, str] = {}
    for name in names:
        short = slug(name)
        if not short:
            raise SettingsError(f"'{part}': the name '{name}' has neither a letter nor a digit. Rename it.")
        if short in found:
            raise SettingsError(
                f"'{part}': '{found[short]}' and '{name}' would share the folder '{short}'. Rename one of them."
            )
        found[short] = name


def _check_options(study: Study) -> None:
    """Refuse options that the study gives itself, and values that a bundle would take for code or references."""
    places = {"settings": study.settings, "without_weights": study.without_weights or {}}
    parts = ("settings", "method_args")
    places |= {f"rows.{name}.{part}": getattr(row, part) for name, row in study.rows.items() for part in parts}
    places |= {f"data.{name}.options": data.options for name, data in study.data.items()}
    for place, options in places.items():
        for key, value in options.items():
            if not place.endswith("method_args") and key in RESERVED:
                raise SettingsError(f"'{place}.{key}': the study gives each run its own '{key}'. Remove it there.")
            if any(text.startswith(("$", "@", "%")) for text in texts(value)):
                raise SettingsError(f"'{place}.{key}': expected a plain value, got an expression: {value!r}.")
