"""Which trials a row has: Optuna's samplers name them.

A sampler draws from its own seed alone, so the same scores lead to the same trials: a search that was killed is told
again what is known, and goes on as it would have.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from medfl.errors import SettingsError, pip_install
from medfl.utils.seeds import seed_of
from medfl_studies.records.study_files import Trial
from medfl_studies.tune.space import Axis, Space
from medfl_studies.tuning import Tuning

Goodness = float | None
"""A score of which more is better; None for a trial without one, as after a training that diverged."""


Sampler = Generator[list[Trial], list[Goodness], None]
"""Yields trials that may be carried out at the same time, and is sent their scores in the same order."""


def make_sampler(space: Space, tuning: Tuning) -> Sampler:
    """Return the sampler of a row.

    Args:
        space: What may be tried.
        tuning: The section of the study file.

    Raises:
        SettingsError: If Optuna is not installed.
    """
    optuna, count = load_optuna(), trials_of(space, tuning)
    seed = seed_of(tuning.seed, space.row, tuning.sampler) % 2**32
    if tuning.sampler == "grid":
        axes = tuple(Axis(axis.name, axis.grid()) for axis in space.axes)
        places = {axis.name: list(range(len(axis.grid()))) for axis in axes}
        sampler = optuna.samplers.GridSampler(places, seed=seed)
    elif tuning.sampler == "random":
        axes, sampler = space.axes, optuna.samplers.RandomSampler(seed=seed)
    else:
        axes, sampler = space.axes, optuna.samplers.TPESampler(seed=seed, n_startup_trials=max(2, count // 4))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    return _conversation(optuna, study, axes, count, 1 if tuning.sampler == "tpe" else count)


def trials_of(space: Space, tuning: Tuning) -> int:
    """Return the number of trials of a row."""
    return len(space.grid()) if tuning.trials is None or tuning.sampler == "grid" else tuning.trials


def _conversation(optuna: Any, study: Any, axes: tuple[Axis, ...], count: int, at_once: int) -> Sampler:
    """Ask for some trials at a time, and tell their scores. The scores of the last ones change nothing."""
    for first in range(0, count, at_once):
        batch = [study.ask() for _ in range(at_once)]
        points = [{axis.name: _suggested(trial, axis) for axis in axes} for trial in batch]
        scores = yield [Trial(number=first + place, parameters=point) for place, point in enumerate(points)]
        if first + at_once < count:
            for trial, score in zip(batch, scores, strict=True):
                study.tell(trial, score, state=optuna.trial.TrialState.FAIL if score is None else None)


def _suggested(trial: Any, axis: Axis) -> Any:
    if axis.values is not None:
        return axis.values[trial.suggest_categorical(axis.name, list(range(len(axis.values))))]
    assert axis.range is not None
    suggest = trial.suggest_int if axis.whole else trial.suggest_float
    return axis.fitting(suggest(axis.name, axis.range.low, axis.range.high, log=axis.range.log))


def load_optuna() -> Any:
    """Return Optuna, which is loaded when it is needed first.

    Raises:
        SettingsError: If it is not installed.
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
