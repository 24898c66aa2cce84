"""Which trials samplers name, and what they make of scores."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import pytest
from refusals import refused

from medfl.errors import SettingsError
from medfl.types import Meta
from medfl_studies.records.study_files import Step
from medfl_studies.tune.samplers import best_first, make_sampler, rungs
from medfl_studies.tune.space import Axis, Space
from medfl_studies.tuning import Range, Tuning

RATE = Axis("lr", None, Range(low=0.001, high=1.0, log=True))
SPACE = Space("row", (RATE, Axis("deep", (True, False))))


def conversation(tuning: Tuning, rounds: int, score: Callable[[Meta], float | None]) -> list[list[Step]]:
    """What a sampler named, batch by batch."""
    sampler = make_sampler(SPACE, tuning, rounds)
    batches = [next(sampler)]
    while True:
        try:
            batches.append(sampler.send([score(step.parameters) for step in batches[-1]]))
        except StopIteration:
            return batches


def near_tenth(parameters: Meta) -> float:
    return -abs(math.log10(parameters["lr"]) + 1) - 0.5 * (not parameters["deep"])


def test_rungs_of_halving() -> None:
    def plan(trials: int, rounds: int, **options: int) -> list[tuple[int, int]]:
        return rungs(Tuning(sampler="halving", trials=trials, **options), trials, rounds)

    assert plan(9, 9) == [(1, 9), (3, 3), (9, 1)]
    assert plan(27, 27, first_rounds=3) == [(3, 27), (9, 9), (27, 3)]
    assert plan(8, 20, factor=2, first_rounds=2) == [(2, 8), (4, 4), (8, 2), (20, 1)]
    assert plan(3, 100) == [(1, 3), (100, 1)], "one that is left goes on to the end"
    assert rungs(Tuning(trials=5), 5, 20) == [(20, 5)]


def test_halving_needs_a_round_more_than_its_first_ones() -> None:
    tuning = Tuning(sampler="halving", trials=4, factor=2, first_rounds=3)
    assert rungs(tuning, 4, 4) == [(3, 4), (4, 2)]
    with refused(SettingsError, "too_few_rounds", first_rounds=3, rounds=3):
        rungs(tuning, 4, 3)


def test_halving_goes_on_with_trials_not_with_places() -> None:
    """The last trials are the best ones, so a trial's number is never its place among those that are left."""
    sampler = make_sampler(SPACE, Tuning(sampler="halving", trials=9), 9)
    batches = [next(sampler)]
    for _ in range(2):
        batches.append(sampler.send([float(step.trial) for step in batches[-1]]))
    assert [[step.trial for step in batch] for batch in batches] == [list(range(9)), [6, 7, 8], [8]]
    for step in (*batches[1], *batches[2]):
        assert step.parameters == batches[0][step.trial].parameters


def test_halving_goes_on_with_the_best_of_the_same_trials() -> None:
    tuning = Tuning(sampler="halving", trials=9)
    first, second, last = conversation(tuning, 9, near_tenth)
    assert [[step.rounds for step in batch] for batch in (first, second, last)] == [[1] * 9, [3] * 3, [9]]
    order = sorted(first, key=lambda step: -near_tenth(step.parameters))
    assert {step.trial for step in second} == {step.trial for step in order[:3]}
    assert [step.trial for step in last] == [order[0].trial]
    by_number = {step.trial: step.parameters for step in first}
    assert all(step.parameters == by_number[step.trial] for step in [*second, *last])


def test_of_equals_the_first_goes_on_and_who_has_no_score_stays_behind() -> None:
    assert best_first([0.5, None, 0.7, 0.5, 0.7]) == [2, 4, 0, 3, 1]
    second = conversation(Tuning(sampler="halving", trials=6), 6, lambda parameters: 0.0)[1]
    assert [step.trial for step in second] == [0, 1]
    nothing = conversation(Tuning(sampler="halving", trials=6), 6, lambda parameters: None)
    assert [len(batch) for batch in nothing] == [6, 2, 1]


@pytest.mark.parametrize("sampler", ["random", "halving", "tpe"])
def test_the_same_seed_and_scores_lead_to_the_same_trials(sampler: str) -> None:
    tuning = Tuning(sampler=sampler, trials=8)
    first = conversation(tuning, 9, near_tenth)
    assert first == conversation(tuning, 9, near_tenth)
    assert first != conversation(tuning.model_copy(update={"seed": 1}), 9, near_tenth)


def test_tpe_learns_from_scores() -> None:
    """Later trials are better than the first, which are drawn; a trial without a score stops nothing."""
    trials = [step for batch in conversation(Tuning(sampler="tpe", trials=40), 1, near_tenth) for step in batch]
    assert [step.trial for step in trials] == list(range(40))
    scores = [near_tenth(step.parameters) for step in trials]
    assert sum(scores[-10:]) / 10 > sum(scores[:10]) / 10
    assert all(0.001 <= step.parameters["lr"] <= 1.0 for step in trials)
    failing = conversation(Tuning(sampler="tpe", trials=8), 1, lambda parameters: None)
    assert [len(batch) for batch in failing] == [1] * 8


def test_without_optuna_its_sampler_says_what_to_install(monkeypatch: pytest.MonkeyPatch, load) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with refused(SettingsError, "missing_package", package="optuna", extra="tune") as caught:
        load({"tune__sampler": "tpe"})
    assert "pip install 'medfl-monai[tune]', or choose 'random'" in str(caught.value)
    for sampler in ("random", "halving"):
        load({"tune__sampler": sampler})
