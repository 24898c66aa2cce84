"""Choose the trials of a row with Optuna's samplers.

A row of a study is a method with settings; a trial is a run of the row with other parameters. A search space is the set
of values that the parameters may have. Trial 0 of a random or TPE search runs the row as it is, so that no row becomes
worse on validation images by a search with few trials. A grid has only its own points.

A sampler uses only its own seed, so the same scores lead to the same trials. If a search was killed, the sampler
receives the known scores again and continues as it would have.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from medfl.errors import SettingsError, pip_install
from medfl.utils.seeds import seed_of
from medfl_studies.records.study_files import Trial
from medfl_studies.tune.space import SearchAxis, SearchSpace
from medfl_studies.tuning_section import Tuning

MaximizedScore = float | None
"""Score to maximize; None for a trial without a score, for example after a training that diverged."""


TrialSampler = Generator[list[Trial], list[MaximizedScore], None]
"""Generator of trials.

It yields trials that may run at the same time, and receives their scores in the same order.
"""


def make_sampler(space: SearchSpace, tuning: Tuning) -> TrialSampler:
    """Return a new generator of the trials of a row.

    Args:
        space: Search space of the row.
        tuning: Section ``tune`` of the study file.

    Raises:
        SettingsError: If Optuna is not installed.
    """
    optuna, count = load_optuna(), count_trials(space, tuning)
    seed = seed_of(tuning.seed, space.row, tuning.sampler) % 2**32
    if tuning.sampler == "grid":
        axes = tuple(SearchAxis(axis.name, axis.grid()) for axis in space.axes)
        indices_by_name = {axis.name: list(range(len(axis.grid()))) for axis in axes}
        sampler = optuna.samplers.GridSampler(indices_by_name, seed=seed)
    elif tuning.sampler == "random":
        axes, sampler = space.axes, optuna.samplers.RandomSampler(seed=seed)
    else:
        axes, sampler = space.axes, optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(2, count // 4))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    if tuning.sampler == "grid":
        return _generate_trials(optuna, study, axes, 0, count, count)
    return _generate_trials(optuna, study, axes, 1, count, 1 if tuning.sampler == "tpe" else count - 1)


def count_trials(space: SearchSpace, tuning: Tuning) -> int:
    """Return the number of trials of a row: the size of the grid, or the number in the study file."""
    return len(space.grid()) if tuning.trials is None or tuning.sampler == "grid" else tuning.trials


def _generate_trials(
    optuna: Any, study: Any, axes: tuple[SearchAxis, ...], own: int, count: int, at_once: int
) -> TrialSampler:
    """Yield trials in batches: the row as it is, and the trials of an Optuna study. Report their scores to Optuna.

    The scores of the row as it is and of the last batch have no effect on further trials.

    Args:
        optuna: The module.
        study: Study of Optuna.
        axes: Fields that the search varies.
        own: Number of trials of the row as it is: 0 or 1. They belong to the first batch.
        count: Number of all trials, > `own`.
        at_once: Number of Optuna's trials in a batch, a divisor of `count` - `own`.
    """
    waiting = [Trial(number=number, parameters={}) for number in range(own)]
    for first in range(own, count, at_once):
        batch = [study.ask() for _ in range(at_once)]
        points = [{axis.name: _suggest_value(trial, axis) for axis in axes} for trial in batch]
        waiting += [Trial(number=first + place, parameters=point) for place, point in enumerate(points)]
        scores = yield waiting
        waiting = []
        if first + at_once < count:
            for trial, score in zip(batch, scores[-at_once:], strict=True):
                study.tell(trial, score, state=optuna.trial.TrialState.FAIL if score is None else None)


def _suggest_value(trial: Any, axis: SearchAxis) -> Any:
    """Return Optuna's value of an axis for a trial."""
    if axis.values is not None:
        return axis.values[trial.suggest_categorical(axis.name, list(range(len(axis.values))))]
    assert axis.range is not None
    suggest = trial.suggest_int if axis.whole else trial.suggest_float
    return axis.round_into_range(suggest(axis.name, axis.range.low, axis.range.high, log=axis.range.log))


def load_optuna() -> Any:
    """Import Optuna and return the module.

    Raises:
        SettingsError: If Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise SettingsError(
            "missing_package",
            f"`medfl tune` needs Optuna, which is not installed. Install the extra: {pip_install('tune')}.",
            package="optuna",
            extra="tune",
        ) from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
