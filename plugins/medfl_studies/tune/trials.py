"""A trial: a run of a row with other parameters, that opens no test image, and its validation score."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from medfl.engine.runs.records import RunRecord, read_run
from medfl.errors import DataError
from medfl.metrics import LOWER_IS_BETTER, worst
from medfl.types import Meta
from medfl_studies.jobs import Job, expand
from medfl_studies.records.study_files import Result, Trial
from medfl_studies.schema import DataSet, Study, slug
from medfl_studies.tune.space import with_parameters

CLOSED: Meta = {"open_test": False, "cross_site_evaluation": False, "shared_test": False}
"""Options of every trial: no test image is opened, so no model is scored on one."""

SCORED = ("finished", "diverged")
"""Statuses that end a trial; of one that diverged there is no score."""

SAFE = ("official", "none")
"""Test sets of a partition that are the same images whatever the seed."""


@dataclass(frozen=True, eq=False)
class TrialJob(Job):
    """A run of a search.

    Attributes:
        trial: Its number in the row.
    """

    trial: int = 0

    @property
    def title(self) -> str:
        """How to call it."""
        return f"{self.data} / {self.row} / trial {self.trial}"


def pinned(study: Study) -> tuple[Study, str]:
    """The study with one partition for all runs, where another would test on images that a trial has seen.

    Args:
        study: With one data set.

    Returns:
        The study, and a sentence that says what changed; empty if nothing did.
    """
    (name, data), *_ = study.data.items()
    seed, fold = study.repetitions(data)[0]
    if not _varies(study, data):
        return study, ""
    fixed = {"seed": seed} | ({} if fold is None else {"fold": fold})
    fixed = {key: value for key, value in fixed.items() if key not in (data.partition or {})}
    draw = " and ".join(f"{key} {value}" for key, value in fixed.items())
    note = (
        f"Test images of this partition are drawn, so another draw would test on images that trials trained on or were "
        f"scored on: all runs of the tuned study have the partition of {draw}."
    )
    drawn = data.model_copy(update={"partition": (data.partition or {}) | fixed})
    return study.model_copy(update={"data": {name: drawn}}), note


def _varies(study: Study, data: DataSet) -> bool:
    """Whether runs of the study have unlike test images."""
    plan = data.partition
    if plan is None or (("seed" in plan or len(study.seed_list()) == 1) and len(data.fold_list()) == 1):
        return False
    tests = (plan.get("test", "fraction"), plan.get("global_test", "official"))
    return any(test not in SAFE for test in tests) or plan.get("public_test_fraction", 0) > 0


def trial_job(study: Study, row: str, trial: Trial, like: Job, source: Path | None, out: Path) -> TrialJob:
    """Return the run of a trial; it has the study's first seed.

    Args:
        study: With one data set.
        row: Name of the row.
        trial: The trial.
        like: A run of the same row.
        source: Folder of the data as they are.
        out: Folder of the search.
    """
    tried = study.model_copy(update={"rows": {row: with_parameters(study.rows[row], trial.parameters)}})
    tried = tried.model_copy(update={"seeds": [study.seed_list()[0]]})
    job = expand(tried, like.bundle, source, out, like.workers)[0]
    options = job.options | {"given_by": f"tune {study.name}"} | CLOSED
    folder = out / "trials" / slug(row) / f"trial-{trial.number:03d}"
    fields = {name: getattr(job, name) for name in ("data", "seed", "bundle", "dataset_dir", "workers", "fold")}
    return TrialJob(row=row, folder=folder, options=options, trial=trial.number, **fields)


def read_result(job: TrialJob, trial: Trial, metric: str, over: str) -> Result:
    """Return the result of a run that is over.

    Args:
        job: The run.
        trial: What it was for.
        metric: What is compared.
        over: ``mean`` of the sites, or the ``worst``.

    Raises:
        DataError: If no site has validation images.
    """
    run = read_run(job.folder)
    costs = () if run.summary is None else run.summary.costs.values()
    seconds = sum(cost.train_seconds + cost.evaluate_seconds for cost in costs)
    score = validation_score(run, metric, over) if run.status == "finished" else None
    return Result(
        row=job.row, trial=trial, run=trial.number, status=run.status, score=score, seconds=round(float(seconds), 3)
    )


def validation_score(run: RunRecord, metric: str, over: str) -> float | None:
    """The score, on validation images, of the models that sites take home; sites where it is not defined don't count.

    Args:
        run: A run that is over.
        metric: Its name.
        over: ``mean`` of the sites, or the ``worst``.

    Returns:
        None where it is defined at no site.

    Raises:
        DataError: If no site has validation images.
    """
    if not any("val" in splits for splits in run.scores.values()):
        raise DataError(
            "no_validation_images",
            f"no site of '{run.folder}' has validation images, and trials are compared on nothing else: give the "
            "partition a 'val_fraction', such as 0.2, in a new --out.",
            path=run.folder,
        )
    scores = [run.score(site, metric, "val") for site in run.sites]
    defined = [score for score in scores if score is not None and not math.isnan(score)]
    if not defined:
        return None
    return worst(metric, defined) if over == "worst" else math.fsum(defined) / len(defined)


def goodness(score: float | None, metric: str) -> float | None:
    """A score as a number of which more is better."""
    return None if score is None else -score if metric in LOWER_IS_BETTER else score


def winner(results: Sequence[Result], metric: str) -> Result | None:
    """Return the best of the results, the first of equals; None if none of them has a score."""
    scored = [result for result in results if result.score is not None]
    return max(scored, key=lambda result: goodness(result.score, metric) or 0.0) if scored else None
