"""A search from a study file to its winners: every row gets the same number of trials, and of rounds."""

from __future__ import annotations

import importlib.metadata
from dataclasses import dataclass
from pathlib import Path

from medfl.engine.runs.provenance import bundle_values
from medfl.engine.runs.records import read_run
from medfl.errors import DataError, SettingsError, StoreError, check_choice
from medfl.plugins import Registry
from medfl.utils.text import Say
from medfl_studies.checks import check_options, check_rows
from medfl_studies.cohorts import make_data
from medfl_studies.jobs import Job, expand, is_adopted
from medfl_studies.reading import read_study
from medfl_studies.records.study_files import Price, Result, SearchDefinition, Trial
from medfl_studies.runner import Launch, only_study, run_jobs, study_progress
from medfl_studies.schema import FULL, Study
from medfl_studies.study import default_out, load_study
from medfl_studies.tune.history import History
from medfl_studies.tune.price import check_price, prices, with_ledger
from medfl_studies.tune.samplers import Sampler, load_optuna, make_sampler, trials_of
from medfl_studies.tune.space import Space, read_space, with_parameters
from medfl_studies.tune.trials import SCORED, TrialJob, goodness, pinned, read_result, trial_job, winner
from medfl_studies.tuning import Tuning


@dataclass(frozen=True)
class Search:
    """A search that was checked, ready to run.

    Attributes:
        study: The study, with one data set, one partition where that matters, and a ledger under privacy.
        tuning: Its section ``tune``.
        jobs: Row to a run of it as the study has it.
        spaces: Row to what is tried.
        metric: What is compared.
        trials: Number of trials of each row.
        rounds: Number of rounds of each trial.
        registry: What the plugins offer.
        source: Folder of the data as they are, or None.
        out: Folder of the search.
        notes: What is to be said before anything runs.
    """

    study: Study
    tuning: Tuning
    jobs: dict[str, Job]
    spaces: dict[str, Space]
    metric: str
    trials: int
    rounds: int
    registry: Registry
    source: Path | None
    out: Path
    notes: tuple[str, ...]

    @property
    def data(self) -> str:
        """Name of the data set."""
        return next(iter(self.study.data))

    def job(self, row: str, trial: Trial) -> TrialJob:
        """Return the run of a trial."""
        return trial_job(self.study, row, trial, self.jobs[row], self.source, self.out)

    def samplers(self) -> dict[str, Sampler]:
        """A new sampler for each row."""
        return {row: make_sampler(space, self.tuning) for row, space in self.spaces.items()}

    def definition(self) -> SearchDefinition:
        """Return everything that decides the trials and their scores."""
        return SearchDefinition(
            study=self.study.model_dump(mode="json", exclude={"about", "bundle"}),
            bundle=self.jobs[next(iter(self.jobs))].bundle.name,
            metric=self.metric,
            optuna=importlib.metadata.version("optuna"),
        )


@dataclass(frozen=True)
class Tuned:
    """What a search came to.

    Attributes:
        results: Of every trial, in the order of the search.
        winners: Row to the result of its best trial.
        prices: What it cost under privacy; empty without.
    """

    results: list[Result]
    winners: dict[str, Result]
    prices: list[Price]


def load_search(
    file: Path,
    source: Path | None = None,
    out: Path | None = None,
    scale: str = FULL,
    workers: int | None = None,
    data: str | None = None,
) -> Search:
    """Read and check a search; nothing is written.

    Args:
        file: A study file with the section ``tune``.
        source: Folder of the data as they are; by default that of the environment variable ``MEDFL_DATA``.
        out: Folder of the search; by default that of the study with ``-tune`` behind it.
        scale: One of the study's scales, or ``full``.
        workers: Processes that train sites, in each run.
        data: Name of the study's data set, where it has several.

    Raises:
        MedflError: If anything is not as needed: the file, a field, a value, data, what privacy allows.
    """
    load_optuna()
    named = read_study(file, scale, None, [data] if data else ())
    if named.tune is None:
        raise SettingsError(
            "missing_setting",
            f"the study '{file}' has no section 'tune' that says what to try, such as: tune: {{sampler: random, "
            "trials: 9, settings: {'optimizer#lr': {low: 0.001, high: 0.1, log: true}}}.",
            setting="tune",
            path=file,
        )
    if len(named.data) > 1:
        raise SettingsError(
            "several_datasets",
            f"a search has one data set, and the study has {sorted(named.data)}. Name it with --data.",
            datasets=sorted(named.data),
        )
    place = out or default_out(named, scale).with_name(f"{default_out(named, scale).name}-tune")
    prepared = load_study(file, source, place, scale, None, workers, [data] if data else ())
    if not prepared.jobs:
        raise SettingsError("no_rows", f"the study '{file}' has no rows, so there is nothing to tune.", path=file)
    study, note = pinned(prepared.study)
    study, tuning = with_ledger(study, prepared.out), prepared.study.tune
    assert tuning is not None
    bundle = prepared.jobs[0].bundle
    jobs = {job.row: job for job in reversed(expand(study, bundle, prepared.source, prepared.out, workers))}
    jobs = {row: jobs[row] for row in study.rows if row in jobs}
    rounds = _rounds(jobs, bundle)
    spaces = {
        row: read_space(row, study.rows[row], tuning, job.options, prepared.registry) for row, job in jobs.items()
    }
    count = _trials(spaces, tuning)
    check_price(study, count, rounds, is_adopted(bundle), bundle)
    search = Search(
        study=study,
        tuning=tuning,
        jobs=jobs,
        spaces=spaces,
        metric=_metric(tuning, study, bundle),
        trials=count,
        rounds=rounds,
        registry=prepared.registry,
        source=prepared.source,
        out=prepared.out,
        notes=tuple(text for text in (prepared.note, note) if text),
    )
    _check_first(search)
    return search


def first_trials(search: Search) -> dict[str, list[Trial]]:
    """Map each row to the trials that its sampler names first."""
    return {row: next(sampler) for row, sampler in search.samplers().items()}


def run_search(search: Search, start: Launch | None = None, at_once: int = 1) -> Tuned:
    """Carry a search out; given again it continues, to the same winners.

    Args:
        search: From `load_search`.
        start: Runs a command line; by default as a process.
        at_once: How many runs are at work at the same time, >= 1.

    Raises:
        StoreError: If a trial fails, another process works in the folder, or the folder has another search.
        DataError: If there are no validation images, or no trial of a row has a score.
    """
    with only_study(search.out), study_progress(search.trials * len(search.spaces)) as (say, show):
        history = History(search.out, search.definition())
        make_data(search.study, search.source, search.out, search.registry, say)
        samplers = search.samplers()
        waiting = {row: next(sampler) for row, sampler in samplers.items()}
        while waiting:
            results = _carried_out(search, waiting, history, say, start, at_once)
            show(len(history.results))
            for row, sampler in samplers.items():
                if row not in waiting:
                    continue
                try:
                    waiting[row] = sampler.send([goodness(result.score, search.metric) for result in results[row]])
                except StopIteration:
                    del waiting[row]
        return _tuned(search, history)


def _carried_out(
    search: Search, waiting: dict[str, list[Trial]], history: History, say: Say, start: Launch | None, at_once: int
) -> dict[str, list[Result]]:
    """Return the results of trials, in their order: known ones, and those of runs that are carried out now."""
    jobs: dict[tuple[str, int], TrialJob] = {}
    for row, trials in waiting.items():
        first_of_equals = {str(trial.parameters): trial for trial in reversed(trials)}.values()
        unknown = [trial for trial in first_of_equals if history.known(row, trial) is None]
        jobs |= {(row, trial.number): search.job(row, trial) for trial in reversed(unknown)}
    fresh: dict[tuple[str, int], Result] = {}
    if jobs:
        outcome = run_jobs(list(jobs.values()), say, lambda runs, job: None, start, at_once, "trial")
        trials_by_key = {(row, trial.number): trial for row, trials in waiting.items() for trial in trials}
        ended = {key: job for key, job in jobs.items() if job.status() in SCORED and outcome.status[job] in SCORED}
        over = search.tuning.score
        fresh = {key: read_result(job, trials_by_key[key], search.metric, over) for key, job in ended.items()}
        if failed := [job for key, job in jobs.items() if key not in ended]:
            lines = "\n".join(f"  {outcome.status[job]}: {job.title}; see {job.log}" for job in failed)
            raise StoreError(
                "failed_trials",
                f"the search can't go on without these trials:\n{lines}\nMend what the logs name, and give the same "
                "command again: what is finished stays.",
                trials={job.title: outcome.status[job] for job in failed},
            )
    results: dict[str, list[Result]] = {}
    for row, trials in waiting.items():
        for trial in trials:
            result = fresh.get((row, trial.number)) or history.known(row, trial)
            assert result is not None
            history.add(result)
            results.setdefault(row, []).append(result)
    history.write()
    return results


def _tuned(search: Search, history: History) -> Tuned:
    """Winners and price."""
    winners = {}
    for row in search.spaces:
        best = winner(history.of(row), search.metric)
        if best is None:
            raise DataError(
                "no_score",
                f"no trial of row '{row}' has a validation score of '{search.metric}': all diverged, or it is "
                "defined at no site. Change its values, the metric or the partition, in a new --out.",
                row=row,
                metric=search.metric,
            )
        winners[row] = best
    runs = dict.fromkeys((result.row, result.run) for result in history.results)
    folders = [search.job(row, Trial(number=run, parameters={})).folder for row, run in runs]
    summaries = [read_run(folder).summary for folder in folders]
    accounts = [{} if summary is None else summary.privacy for summary in summaries]
    return Tuned(history.results, winners, prices(accounts))


def _rounds(jobs: dict[str, Job], bundle: Path) -> int:
    """The rounds of a run, the same for all rows."""
    usual = bundle_values(bundle).get("rounds")
    by_row = {row: job.options.get("rounds", usual) for row, job in jobs.items()}
    if len(set(by_row.values())) > 1:
        raise SettingsError(
            "unequal_rounds",
            f"every row gets the same budget of rounds, and the study has {by_row}. Make them equal.",
            rounds=by_row,
        )
    return int(next(iter(by_row.values())) or 1)


def _trials(spaces: dict[str, Space], tuning: Tuning) -> int:
    """The trials of a row, the same for all."""
    counts = {row: trials_of(space, tuning) for row, space in spaces.items()}
    if len(set(counts.values())) > 1:
        raise SettingsError(
            "unequal_trials",
            f"every row gets the same budget of trials, and the grids have {counts} points. Make them equal, or choose "
            "the sampler random or tpe.",
            trials=counts,
        )
    count = next(iter(counts.values()))
    if tuning.trials not in (None, count):
        raise SettingsError(
            "wrong_trials",
            f"the grids have {count} points each, and 'trials' is {tuning.trials}. Leave 'trials' out.",
            expected=count,
            found=tuning.trials,
        )
    return count


def _metric(tuning: Tuning, study: Study, bundle: Path) -> str:
    """What is compared."""
    computed = study.metrics or list(bundle_values(bundle).get("metrics", ()))
    if tuning.metric is None:
        return str(computed[0])
    check_choice("tune.metric", tuning.metric, computed)
    return tuning.metric


def _check_first(search: Search) -> None:
    """Make the method of every trial that is known already, and look for all options in the bundle."""
    jobs: list[Job] = []
    for row, trials in first_trials(search).items():
        for trial in trials:
            tried = with_parameters(search.study.rows[row], trial.parameters)
            check_rows(search.study.model_copy(update={"rows": {row: tried}}), search.registry)
        jobs.append(search.job(row, trials[0]))
    check_options(jobs[0].bundle, jobs)
