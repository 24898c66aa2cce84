"""Search for good settings of a study's rows: each row has the same number of trials.

A row of a study is a method with settings; a trial is a run of the row with other parameters. Trials are compared by
their scores on validation images. A nested study has a search for each split of the data, that is, each seed and fold.
"""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from medfl.engine.runs.provenance import bundle_values
from medfl.engine.runs.records import read_run
from medfl.errors import DataError, SettingsError, StoreError, check_choice
from medfl.plugins import Registry
from medfl.utils.formats import join_words
from medfl.utils.text import Say
from medfl_studies.checks import check_options, check_rows
from medfl_studies.jobs import RunJob, expand_study, is_adopted_bundle
from medfl_studies.launchers.local_launcher import CommandRunner, LocalLauncher
from medfl_studies.records.study_files import PrivacyCost, SearchDefinition, Trial, TrialResult
from medfl_studies.runner import lock_study_folder, run_jobs, study_progress
from medfl_studies.schema import FULL_SCALE, Study, split_name
from medfl_studies.study import default_output_dir, load_study
from medfl_studies.study_data import make_data
from medfl_studies.study_reader import read_study
from medfl_studies.tune.history import SearchHistory
from medfl_studies.tune.privacy_cost import check_privacy_budget, compute_privacy_costs, with_privacy_ledgers
from medfl_studies.tune.samplers import TrialSampler, count_trials, load_optuna, make_sampler
from medfl_studies.tune.space import SearchSpace, read_space, with_parameters
from medfl_studies.tune.trials import (
    FINAL_STATUSES,
    TrialJob,
    best_result,
    check_validation_images,
    fix_partition,
    read_result,
    score_to_maximize,
    trial_job,
)
from medfl_studies.tuning_section import Tuning

NOT_IDENTIFYING: dict[str, Any] = {
    "about": True,
    "bundle": True,
    "resources": True,
    "rows": {"__all__": {"resources": True}},
}
"""Parts of a study that change no score of a search."""


@dataclass(frozen=True)
class Search:
    """A search that was checked and is ready to run.

    Attributes:
        study: The study with one data set, with a fixed partition if necessary (`fix_partition`), and with a privacy
            budget ledger (which adds up the privacy losses of several runs) for rows with privacy.
        tuning: Section ``tune`` of the study.
        jobs: Maps each row to its run in the untuned study whose data and seed the trials have.
        spaces: Maps each row to its search space.
        metric: Metric to optimize.
        trials: Number of trials of each row.
        rounds: Number of rounds of each trial, unless its row states its own.
        registry: Plugins that are loaded for the search.
        source: Folder of the source data, or None.
        out: Folder with the prepared data and the tuned study.
        folder: Folder with the trials and the report: `out`, or a folder in it for each split of a nested study.
        notes: Notes for the user before the search runs.
    """

    study: Study
    tuning: Tuning
    jobs: dict[str, RunJob]
    spaces: dict[str, SearchSpace]
    metric: str
    trials: int
    rounds: int
    registry: Registry
    source: Path | None
    out: Path
    folder: Path
    notes: tuple[str, ...]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return next(iter(self.study.data))

    def job(self, row: str, trial: Trial) -> TrialJob:
        """Return the job that runs a trial of a row."""
        return trial_job(self.study, row, trial, self.jobs[row], self.source, self.out, self.folder)

    def samplers(self) -> dict[str, TrialSampler]:
        """Return a new sampler for each row."""
        return {row: make_sampler(space, self.tuning) for row, space in self.spaces.items()}

    def definition(self) -> SearchDefinition:
        """Return everything that determines the trials and their scores."""
        return SearchDefinition(
            study=self.study.model_dump(mode="json", exclude=NOT_IDENTIFYING),
            bundle=self.jobs[next(iter(self.jobs))].bundle.name,
            metric=self.metric,
            optuna=importlib.metadata.version("optuna"),
            split=self.split,
        )

    @property
    def split(self) -> str | None:
        """Name of the split that the search belongs to; None if the search is not nested."""
        job = next(iter(self.jobs.values()))
        return split_name(job.seed, job.fold) if self.tuning.nested else None

    @property
    def seed(self) -> int:
        """Seed of all trials."""
        return next(iter(self.jobs.values())).seed


@dataclass(frozen=True)
class SearchResult:
    """Result of a search.

    Attributes:
        results: Result of every trial, in the order of the search.
        winners: Maps each row to the result of its best trial.
        privacy_costs: Privacy budget that all trials spent together, one entry for each kind of guarantee (unit,
            adjacency and delta); empty without privacy.
    """

    results: list[TrialResult]
    winners: dict[str, TrialResult]
    privacy_costs: list[PrivacyCost]


def load_searches(
    file: Path,
    source: Path | None = None,
    out: Path | None = None,
    scale: str = FULL_SCALE,
    workers: int | None = None,
    data: str | None = None,
) -> list[Search]:
    """Read and check the searches of a study: one, or one for each split of a nested study. Nothing is written.

    Args:
        file: Study file with the section ``tune``.
        source: Folder of the source data; None means the folder in the environment variable ``MEDFL_DATA``.
        out: Output folder; None means the study's folder with the suffix ``-tune``.
        scale: One of the study's scales, or ``full``.
        workers: Number of processes that train sites, in each run.
        data: Name of the data set, required if the study has several.

    Raises:
        MedflError: If the file, a field, a value or the data are not valid, or privacy does not allow the search.
    """
    load_optuna()
    named = _read_tuned_study(file, scale, data)
    place = out or default_output_dir(named, scale).with_name(f"{default_output_dir(named, scale).name}-tune")
    prepared = load_study(file, source, place, scale, None, workers, [data] if data else ())
    if not prepared.jobs:
        raise SettingsError("no_rows", f"The study '{file}' has no rows, so there is nothing to tune.", path=file)
    tuning = prepared.study.tune
    assert tuning is not None
    study, note = (prepared.study, "") if tuning.nested else fix_partition(prepared.study)
    study = with_privacy_ledgers(study, prepared.out)
    bundle = prepared.jobs[0].bundle
    splits = _jobs_by_split(study, expand_study(study, bundle, prepared.source, prepared.out, workers))
    if not tuning.nested:
        splits = splits[:1]
    jobs = splits[0]
    rounds, own_rounds = _common_rounds(jobs, study, bundle)
    spaces = {
        row: read_space(row, study.rows[row], tuning, job.options, prepared.registry) for row, job in jobs.items()
    }
    count = _common_trial_count(spaces, tuning)
    check_privacy_budget(study, count * len(splits), rounds, is_adopted_bundle(bundle), bundle)
    search = Search(
        study=study,
        tuning=tuning,
        jobs=jobs,
        spaces=spaces,
        metric=_metric_to_optimize(tuning, study, bundle),
        trials=count,
        rounds=rounds,
        registry=prepared.registry,
        source=prepared.source,
        out=prepared.out,
        folder=prepared.out,
        notes=tuple(text for text in (prepared.note, note, own_rounds) if text),
    )
    _check_first_trials(search)
    if not tuning.nested:
        return [search]
    return [
        replace(search, jobs=jobs, folder=prepared.out / split_name(first.seed, first.fold))
        for jobs in splits
        for first in [next(iter(jobs.values()))]
    ]


def _read_tuned_study(file: Path, scale: str, data: str | None) -> Study:
    """Read a study with one data set and the section ``tune``.

    Raises:
        SettingsError: If the study has no such section, or several data sets and `data` is None.
    """
    study = read_study(file, scale, None, [data] if data else ())
    if study.tune is None:
        raise SettingsError(
            "missing_setting",
            f"The study '{file}' has no section 'tune' with a search space, such as: tune: {{sampler: random, "
            "trials: 9, settings: {'optimizer#lr': {low: 0.001, high: 0.1, log: true}}}.",
            setting="tune",
            path=file,
        )
    if len(study.data) > 1:
        raise SettingsError(
            "several_datasets",
            f"A search uses one data set, but the study has {sorted(study.data)}. Choose one with --data.",
            datasets=sorted(study.data),
        )
    return study


def first_trials(search: Search) -> dict[str, list[Trial]]:
    """Return a mapping from each row to the first trials that the row's sampler proposes."""
    return {row: next(sampler) for row, sampler in search.samplers().items()}


def run_search(search: Search, run: CommandRunner | None = None, at_once: int = 1) -> SearchResult:
    """Run a search. A repeated call continues it, with the same outcome.

    Args:
        search: The search, from `load_searches`.
        run: Function that runs a command line; None starts a process.
        at_once: Number of runs at the same time, >= 1.

    Returns:
        The results, the best trials and the privacy cost.

    Raises:
        StoreError: If a trial fails, another process works in the folder, or the folder contains another search.
        DataError: If no site has validation images, or no trial of a row has a score.
    """
    with lock_study_folder(search.out), study_progress(search.trials * len(search.spaces)) as (say, show):
        history = SearchHistory(search.folder, search.definition())
        make_data(search.study, search.source, search.out, search.registry, say)
        job = next(iter(search.jobs.values()))
        if not is_adopted_bundle(job.bundle):  # the data of an adopted bundle are in its own format
            check_validation_images(job.dataset_dir)
        samplers = search.samplers()
        waiting = {row: next(sampler) for row, sampler in samplers.items()}
        while waiting:
            results = _run_trials(search, waiting, history, say, LocalLauncher(run, at_once))
            show(len(history.results))
            for row, sampler in samplers.items():
                if row not in waiting:
                    continue
                try:
                    waiting[row] = sampler.send(
                        [score_to_maximize(result.score, search.metric) for result in results[row]]
                    )
                except StopIteration:
                    del waiting[row]
        return _summarize_search(search, history)


def _run_trials(
    search: Search,
    waiting: dict[str, list[Trial]],
    history: SearchHistory,
    say: Say,
    launcher: LocalLauncher,
) -> dict[str, list[TrialResult]]:
    """Return the results of trials in their order.

    Trials without a result in the history are run first. The history is then written.
    """
    jobs: dict[tuple[str, int], TrialJob] = {}
    for row, trials in waiting.items():
        first_of_equals = {str(trial.parameters): trial for trial in reversed(trials)}.values()
        unknown = [trial for trial in first_of_equals if history.find_result(row, trial) is None]
        jobs |= {(row, trial.number): search.job(row, trial) for trial in reversed(unknown)}
    fresh: dict[tuple[str, int], TrialResult] = {}
    if jobs:
        outcome = run_jobs(list(jobs.values()), say, lambda runs, job: None, launcher, "trial")
        trials_by_key = {(row, trial.number): trial for row, trials in waiting.items() for trial in trials}
        ended = {
            key: job
            for key, job in jobs.items()
            if job.status() in FINAL_STATUSES and outcome.status[job] in FINAL_STATUSES
        }
        over = search.tuning.score
        fresh = {key: read_result(job, trials_by_key[key], search.metric, over) for key, job in ended.items()}
        if failed := [job for key, job in jobs.items() if key not in ended]:
            lines = "\n".join(f"  {outcome.status[job]}: {job.title}; see {job.log}" for job in failed)
            raise StoreError(
                "failed_trials",
                f"The search can't continue without these trials:\n{lines}\nFix the problems in the logs, and run the "
                "same command again: finished trials are kept.",
                trials={job.title: outcome.status[job] for job in failed},
            )
    results: dict[str, list[TrialResult]] = {}
    for row, trials in waiting.items():
        for trial in trials:
            result = fresh.get((row, trial.number)) or history.find_result(row, trial)
            assert result is not None
            history.add(result)
            results.setdefault(row, []).append(result)
    history.write()
    return results


def _summarize_search(search: Search, history: SearchHistory) -> SearchResult:
    """Return the best trials and the privacy cost of a search that has ended."""
    winners = {}
    for row in search.spaces:
        best = best_result(history.row_results(row), search.metric)
        if best is None:
            raise DataError(
                "no_score",
                f"No trial of row '{row}' has a validation score of '{search.metric}': all trials diverged, or the "
                "metric is undefined at all sites. Change the values, the metric or the partition, and choose another "
                "folder with --out.",
                row=row,
                metric=search.metric,
            )
        winners[row] = best
    runs = dict.fromkeys((result.row, result.run) for result in history.results)
    folders = [search.job(row, Trial(number=run, parameters={})).folder for row, run in runs]
    summaries = [read_run(folder).summary for folder in folders]
    accounts = [{} if summary is None else summary.privacy for summary in summaries]
    return SearchResult(results=history.results, winners=winners, privacy_costs=compute_privacy_costs(accounts))


def _jobs_by_split(study: Study, jobs: list[RunJob]) -> list[dict[str, RunJob]]:
    """Return the runs of each split by row, with the rows in the order of the study."""
    splits: dict[tuple[int, int | None], dict[str, RunJob]] = {}
    for job in jobs:
        splits.setdefault((job.seed, job.fold), {})[job.row] = job
    return [{row: by_row[row] for row in study.rows if row in by_row} for by_row in splits.values()]


def _common_rounds(jobs: dict[str, RunJob], study: Study, bundle: Path) -> tuple[int, str]:
    """Return the largest number of rounds of a run, and a note on rows that state their own number.

    A row states its own number if a part of its budget is not spent in rounds, such as steps of fine-tuning at the end.
    """
    usual = bundle_values(bundle).get("rounds")
    own = {row: job.options["rounds"] for row, job in jobs.items() if "rounds" in study.rows[row].settings}
    note = (
        ""
        if not own
        else f"These rows have their own number of rounds: {join_words([f'{r} {n}' for r, n in own.items()])}."
    )
    return max(int(job.options.get("rounds", usual) or 1) for job in jobs.values()), note


def _common_trial_count(spaces: dict[str, SearchSpace], tuning: Tuning) -> int:
    """Return the number of trials of a row; raise SettingsError unless it is the same for all rows."""
    counts = {row: count_trials(space, tuning) for row, space in spaces.items()}
    if len(set(counts.values())) > 1:
        raise SettingsError(
            "unequal_trials",
            f"Every row must have the same number of trials, but the grids have {counts} points. Make them equal, or "
            "choose the sampler random or tpe.",
            trials=counts,
        )
    count = next(iter(counts.values()))
    if tuning.trials not in (None, count):
        raise SettingsError(
            "wrong_trials",
            f"Each grid has {count} points, but 'trials' is {tuning.trials}. Remove 'trials'.",
            expected=count,
            found=tuning.trials,
        )
    return count


def _metric_to_optimize(tuning: Tuning, study: Study, bundle: Path) -> str:
    """Return the metric to optimize."""
    computed = study.metrics or list(bundle_values(bundle).get("metrics", ()))
    if tuning.metric is None:
        return str(computed[0])
    check_choice("tune.metric", tuning.metric, computed)
    return tuning.metric


def _check_first_trials(search: Search) -> None:
    """Check the methods of the first trials, and that the bundle has all options."""
    jobs: list[RunJob] = []
    for row, trials in first_trials(search).items():
        for trial in trials:
            tried = with_parameters(search.study.rows[row], trial.parameters)
            check_rows(search.study.model_copy(update={"rows": {row: tried}}), search.registry)
        jobs.append(search.job(row, trials[-1]))  # the first one may be the row as it is
    check_options(jobs[0].bundle, jobs)
