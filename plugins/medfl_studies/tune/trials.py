"""Trials of a search: runs of a row with other parameters, without test images, and their validation scores.

A row of a study is a method with settings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.data.datalists import read_datalist
from medfl.data.sites import site_names
from medfl.engine.runs.records import RunRecord, read_run
from medfl.errors import DataError
from medfl.metrics import LOWER_IS_BETTER_METRICS, worst
from medfl.types import Meta
from medfl_studies.jobs import RunJob, expand_study
from medfl_studies.records.study_files import Trial, TrialResult
from medfl_studies.schema import DataSet, Study, slug
from medfl_studies.tune.space import with_parameters

TRIAL_OPTIONS: Meta = {"open_test": False, "cross_site_evaluation": False, "shared_test": False}
"""Options of every trial, so that no test image is opened and no model is evaluated on one."""

FINAL_STATUSES = ("finished", "diverged")
"""Final statuses of a trial. A trial that diverged has no score."""

FIXED_TEST_SETS = ("official", "none")
"""Values of the field `test` of a partition with which the test images don't depend on the seed."""


@dataclass(frozen=True, eq=False)
class TrialJob(RunJob):
    """A run of a trial.

    Attributes:
        trial: Number of the trial in its row.
    """

    trial: int = 0

    @property
    def title(self) -> str:
        """Name of the trial in messages."""
        return f"{self.data} / {self.row} / trial {self.trial}"


def fix_partition(study: Study) -> tuple[Study, str]:
    """Return the study with the same partition for all seeds, if its test images would otherwise depend on the seed.

    With a partition for each seed, a test image of one seed could be a training or validation image of a trial.

    Args:
        study: Study with one data set.

    Returns:
        The study, and a sentence that describes the change; empty if nothing changed.
    """
    (name, data), *_ = study.data.items()
    seed, fold = study.repetitions(data)[0]
    if not _has_varying_test_images(study, data):
        return study, ""
    fixed = {"seed": seed} | ({} if fold is None else {"fold": fold})
    fixed = {key: value for key, value in fixed.items() if key not in (data.partition or {})}
    draw = " and ".join(f"{key} {value}" for key, value in fixed.items())
    note = (
        f"The test images of this partition are drawn at random, so another draw would test on images that trials used "
        f"for training or validation: all runs of the tuned study use the partition of {draw}."
    )
    drawn = data.model_copy(update={"partition": (data.partition or {}) | fixed})
    return study.model_copy(update={"data": {name: drawn}}), note


def _has_varying_test_images(study: Study, data: DataSet) -> bool:
    """Return whether the runs of the study have different test images."""
    plan = data.partition
    if plan is None or (("seed" in plan or len(study.seed_list()) == 1) and len(data.fold_list()) == 1):
        return False
    tests = (plan.get("test", "fraction"), plan.get("server_test", "official"))
    return any(test not in FIXED_TEST_SETS for test in tests) or plan.get("public_test_fraction", 0) > 0


def trial_job(
    study: Study, row: str, trial: Trial, like: RunJob, source: Path | None, out: Path, folder: Path
) -> TrialJob:
    """Return the job that runs a trial, on the data and with the seed of a run of the same row.

    Args:
        study: Study with one data set.
        row: Name of the row.
        trial: The trial.
        like: The run of the same row.
        source: Folder of the source data.
        out: Folder with the prepared data.
        folder: Folder of the trials.
    """
    trial_study = study.model_copy(update={"rows": {row: with_parameters(study.rows[row], trial.parameters)}})
    jobs = expand_study(trial_study, like.bundle, source, out, like.workers)
    job = next(job for job in jobs if (job.seed, job.fold) == (like.seed, like.fold))
    options = job.options | {"given_by": f"tune {study.name}"} | TRIAL_OPTIONS
    folder = folder / "trials" / slug(row) / f"trial-{trial.number:03d}"
    fields = {name: getattr(job, name) for name in ("data", "seed", "bundle", "dataset_dir", "workers", "fold")}
    return TrialJob(row=row, folder=folder, options=options, trial=trial.number, **fields)


def check_validation_images(dataset_dir: Path) -> None:
    """Raise if no site of a partitioned data set has validation images.

    Args:
        dataset_dir: Folder with a folder for each site, each with a data list.

    Raises:
        DataError: If no site has validation images, or a data list can't be read.
    """
    if not any(read_datalist(dataset_dir / site).splits.get("validation") for site in site_names(dataset_dir)):
        raise _no_validation_images(dataset_dir)


def _no_validation_images(folder: Path) -> DataError:
    """Return the error for a data set, or a run on one, without validation images."""
    return DataError(
        "no_validation_images",
        f"No site of '{folder}' has validation images, which trials are compared on. Add a 'val_fraction' to "
        "the partition, such as 0.2, and choose another folder with --out.",
        path=folder,
    )


def read_result(job: TrialJob, trial: Trial, metric: str, over: str) -> TrialResult:
    """Return the result of a trial whose run has ended.

    Args:
        job: The run.
        trial: The trial.
        metric: Metric to optimize.
        over: Aggregation over the sites, ``mean`` or ``worst``.

    Raises:
        DataError: If no site has validation images.
    """
    run = read_run(job.folder)
    costs = () if run.summary is None else run.summary.costs.values()
    seconds = sum(cost.train_seconds + cost.evaluate_seconds for cost in costs)
    scores = validation_scores(run, metric) if run.status == "finished" else []
    score = None
    if scores:
        score = worst(metric, scores) if over == "worst" else math.fsum(scores) / len(scores)
    return TrialResult(
        row=job.row,
        trial=trial,
        run=trial.number,
        status=run.status,
        score=score,
        seconds=round(float(seconds), 3),
        sites=len(scores),
    )


def validation_scores(run: RunRecord, metric: str) -> list[float]:
    """Return the validation scores of the models that the sites export.

    Sites at which the metric is undefined are left out, because of their images or because training diverged.

    Args:
        run: A run that has ended.
        metric: Name of the metric.

    Raises:
        DataError: If no site has validation images.
    """
    if not any("val" in splits for splits in run.scores.values()):
        raise _no_validation_images(run.folder)
    scores = [run.score(site, metric, "val") for site in run.sites]
    return [score for score in scores if score is not None and not math.isnan(score)]


def score_to_maximize(score: float | None, metric: str) -> float | None:
    """Return a score with the sign that makes larger values better, or None."""
    return None if score is None else -score if metric in LOWER_IS_BETTER_METRICS else score


def most_sites(results: Sequence[TrialResult]) -> int:
    """Return the largest number of sites with a score in a trial; 0 for records without these numbers."""
    return max((result.sites or 0 for result in results if result.score is not None), default=0)


def best_result(results: Sequence[TrialResult], metric: str) -> TrialResult | None:
    """Return the best result, the first among equals; None if no result has a score.

    All trials of a row have the same images, so a trial with a score at fewer sites than another has diverged at some
    sites. It is no candidate. In a search that an earlier version began, trials without the number count as complete.
    """
    most = most_sites(results)
    complete = [result for result in results if result.score is not None and result.sites in (None, most)]
    return max(complete, key=lambda result: score_to_maximize(result.score, metric) or 0.0) if complete else None
