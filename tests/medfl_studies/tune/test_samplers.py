"""Trials that samplers propose, and their use of scores."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl.types import Meta
from medfl_studies.records.study_files import Trial
from medfl_studies.tune.samplers import make_sampler
from medfl_studies.tune.space import SearchAxis, SearchSpace
from medfl_studies.tuning_section import Tuning, ValueRange

RATE = SearchAxis("lr", None, ValueRange(low=0.001, high=1.0, log=True))
SPACE = SearchSpace("row", (RATE, SearchAxis("deep", (True, False))))


def conversation(
    tuning: Tuning, score: Callable[[Meta], float | None], space: SearchSpace = SPACE
) -> list[list[Trial]]:
    """Return the trials that a sampler proposed, batch by batch."""
    sampler = make_sampler(space, tuning)
    batches = [next(sampler)]
    while True:
        try:
            batches.append(sampler.send([score(trial.parameters) for trial in batches[-1]]))
        except StopIteration:
            return batches


def near_tenth(parameters: Meta) -> float | None:
    if not parameters:  # the row as it is
        return None
    return -abs(math.log10(parameters["lr"]) + 1) - 0.5 * (not parameters["deep"])


def test_a_grid_has_every_combination_once() -> None:
    grid = SearchSpace(
        "row",
        (
            SearchAxis("lr", None, ValueRange(low=0.001, high=1.0, log=True, points=4)),
            SearchAxis("deep", (True, False)),
        ),
    )
    (batch,) = conversation(Tuning(sampler="grid"), near_tenth, grid)
    assert [trial.number for trial in batch] == list(range(8))
    assert sorted(map(str, (trial.parameters for trial in batch))) == sorted(map(str, grid.grid()))


def test_random_draws_stay_in_the_range_with_four_digits() -> None:
    whole = SearchSpace("row", (RATE, SearchAxis("n", None, ValueRange(low=3, high=6), whole=True)))
    ((own, *batch),) = conversation(Tuning(sampler="random", trials=101), lambda parameters: 0.0, whole)
    assert own == Trial(number=0, parameters={})
    rates = [trial.parameters["lr"] for trial in batch]
    assert all(0.001 <= rate <= 1.0 and float(f"{rate:.4g}") == rate for rate in rates)
    assert all(20 <= sum(low <= rate < 10 * low for rate in rates) <= 50 for low in (0.001, 0.01, 0.1)), "log-uniform"
    assert {trial.parameters["n"] for trial in batch} == {3, 4, 5, 6}


@pytest.mark.parametrize("sampler", ["random", "grid", "tpe"])
def test_the_same_seed_and_scores_lead_to_the_same_trials(sampler: str) -> None:
    space = SearchSpace("row", (SearchAxis("lr", (0.001, 0.01, 0.1, 1.0)), SearchAxis("deep", (True, False))))
    tuning = Tuning(sampler=sampler, trials=8)
    first = conversation(tuning, near_tenth, space)
    assert first == conversation(tuning, near_tenth, space)
    assert first != conversation(tuning.model_copy(update={"seed": 1}), near_tenth, space)


def test_tpe_learns_from_scores() -> None:
    """Later trials are better than the first random trials, and a trial without a score stops nothing."""
    trials = [trial for batch in conversation(Tuning(sampler="tpe", trials=40), near_tenth) for trial in batch]
    assert [trial.number for trial in trials] == list(range(40))
    assert trials[0].parameters == {}
    rates = [trial.parameters["lr"] for trial in trials[1:]]
    scores = [near_tenth(trial.parameters) or 0.0 for trial in trials[1:]]
    assert sum(scores[-10:]) / 10 > sum(scores[:10]) / 10
    assert all(0.001 <= rate <= 1.0 for rate in rates)
    failing = conversation(Tuning(sampler="tpe", trials=8), lambda parameters: None)
    assert [len(batch) for batch in failing] == [2] + [1] * 6, "the row as it is runs beside the first random trial"


@pytest.mark.parametrize("trials", [None, 1])
@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_a_search_needs_a_trial_beside_the_row_as_it_is(load, sampler: str, trials: int | None) -> None:
    with refused(SettingsError, "invalid_setting") as caught:
        load({"tune__sampler": sampler, "tune__trials": trials})
    assert "at least 2" in str(caught.value)


def test_without_optuna_a_search_says_what_to_install(monkeypatch: pytest.MonkeyPatch, load) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for sampler in ("random", "tpe"):
        with refused(SettingsError, "missing_package", package="optuna", extra="tune") as caught:
            load({"tune__sampler": sampler})
        assert "pip install 'medfl-monai[tune]'" in str(caught.value)
