"""Which trials a row has: a conversation in which a sampler names trials and hears their scores.

A sampler draws from its own seed alone, so the same scores lead to the same trials: a search that was killed is told
again what is known, and goes on as it would have.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np

from medfl.errors import SettingsError, pip_install
from medfl.types import Meta
from medfl.utils.seeds import seed_of
from medfl_studies.records.study_files import Step
from medfl_studies.tune.space import Axis, Space
from medfl_studies.tuning import Tuning

Goodness = float | None
"""A score of which more is better; None for a trial without one, as after a training that diverged."""


Sampler = Generator[list[Step], list[Goodness], None]
"""Yields steps that may be carried out at the same time, and is sent their scores in the same order."""


def make_sampler(space: Space, tuning: Tuning, rounds: int) -> Sampler:
    """The sampler of a row.

    Args:
        space: What may be tried.
        tuning: The section of the study file.
        rounds: Of a whole run.
    """
    count = trials_of(space, tuning)
    if tuning.sampler == "tpe":
        return _tpe(space, count, rounds, seed_of(tuning.seed, space.row, "tpe"))
    if tuning.sampler == "grid":
        points = space.grid()
    else:
        points = space.draws(count, np.random.default_rng(seed_of(tuning.seed, space.row, "draws")))
    if tuning.sampler == "halving":
        return _halving(points, rungs(tuning, count, rounds))
    return _all(points, rounds)


def trials_of(space: Space, tuning: Tuning) -> int:
    """How many trials a row has."""
    return len(space.grid()) if tuning.trials is None or tuning.sampler == "grid" else tuning.trials


def rungs(tuning: Tuning, trials: int, rounds: int) -> list[tuple[int, int]]:
    """What each row spends: pairs of rounds and how many trials get that far, ascending.

    Args:
        tuning: The section of the study file.
        trials: Of a row.
        rounds: Of a whole run.

    Raises:
        SettingsError: If halving has no room between its first rounds and all.

    Example:
        >>> rungs(Tuning(sampler="halving", trials=9, factor=3, first_rounds=1), 9, 9)
        [(1, 9), (3, 3), (9, 1)]
    """
    if tuning.sampler != "halving":
        return [(rounds, trials)]
    if tuning.first_rounds >= rounds:
        raise SettingsError(
            "too_few_rounds",
            f"halving scores first after {tuning.first_rounds} rounds, and a run has {rounds}. Lower 'first_rounds', "
            "or give the runs more 'rounds'.",
            first_rounds=tuning.first_rounds,
            rounds=rounds,
        )
    steps, now, left = [], tuning.first_rounds, trials
    while now < rounds and left > 1:
        steps.append((now, left))
        now, left = now * tuning.factor, math.ceil(left / tuning.factor)
    return [*steps, (rounds, left)]


def best_first(scores: Sequence[Goodness]) -> list[int]:
    """Places of scores from the best to the worst; of equals the first comes first, those without a score last."""
    return sorted(range(len(scores)), key=lambda place: -_number(scores[place]))


def _number(score: Goodness) -> float:
    return -math.inf if score is None else score


def _all(points: list[Meta], rounds: int) -> Sampler:
    yield [Step(trial=number, parameters=point, rounds=rounds) for number, point in enumerate(points)]


def _halving(points: list[Meta], plan: list[tuple[int, int]]) -> Sampler:
    """Every rung continues the best of the one before."""
    alive = list(range(len(points)))
    for (rounds, _), after in zip(plan, [*(count for _, count in plan[1:]), 1], strict=True):
        scores = yield [Step(trial=number, parameters=points[number], rounds=rounds) for number in alive]
        alive = sorted(alive[place] for place in best_first(scores)[:after])


def _tpe(space: Space, count: int, rounds: int, seed: int) -> Sampler:
    """One trial after the other; the first quarter, and two at least, is drawn."""
    optuna = load_optuna()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.TPESampler(seed=seed % 2**32, n_startup_trials=max(2, count // 4))
    study = optuna.create_study(direction="maximize", sampler=sampler)
    for number in range(count):
        trial = study.ask()
        parameters = {axis.name: _suggested(trial, axis) for axis in space.axes}
        (score,) = yield [Step(trial=number, parameters=parameters, rounds=rounds)]
        if score is None:
            study.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(trial, score)


def _suggested(trial: Any, axis: Axis) -> Any:
    if axis.values is not None:
        return axis.values[trial.suggest_categorical(axis.name, list(range(len(axis.values))))]
    assert axis.range is not None
    suggest = trial.suggest_int if axis.whole else trial.suggest_float
    return axis.fitting(suggest(axis.name, axis.range.low, axis.range.high, log=axis.range.log))


def load_optuna() -> Any:
    """Optuna, loaded when it is needed first.

    Raises:
        SettingsError: If it is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError as error:
        raise SettingsError(
            "missing_package",
            f"The sampler 'tpe' is Optuna's, which is not installed. Install the extra: {pip_install('tune')}, or "
            "choose 'random', 'halving' or 'grid'.",
            package="optuna",
            extra="tune",
        ) from error
    return optuna
