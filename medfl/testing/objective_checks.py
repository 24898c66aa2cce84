"""Check of the conformance suite that a method supports exactly the objectives that meet its needs."""

from __future__ import annotations

import math
from pathlib import Path

import pandas as pd

from medfl.engine.needs import unmet_reason
from medfl.engine.runs.simulation import SimulationResult
from medfl.errors import SettingsError
from medfl.objectives import Objective
from medfl.testing.cohort import Case, bits, folders, make_data
from medfl.testing.suite import expect, finite, promise, same
from medfl.testing.tasks import OTHER_OBJECTIVES, make_sites_of, make_task_of, with_targets_of

TRAINING_IMAGES = {"a": 9, "b": 6}
"""Number of training images of each site in the checks of this module."""


@promise
def further_objectives_are_refused_or_work(case: Case) -> None:
    """Check that a method trains on each objective that meets its needs, and refuses all others before step 0.

    On one of the objectives, also check that a continued run gives the same bits as an uninterrupted one.
    """
    accepted = [objective for objective in OTHER_OBJECTIVES if _meets_needs(case, objective)]
    for objective in accepted:
        with folders(2) as (whole, parts):
            result = _run(case, objective, whole, rounds=2 if objective is accepted[-1] else 1)
            finite(bits(result), f"objective '{objective.name}'")
            table = pd.read_csv(whole / "metrics.csv")
            values = table[table["metric"] == objective.metrics[0]]["value"]
            defined = any(math.isfinite(value) for value in values)
            expect(defined, f"objective '{objective.name}': no score by {objective.metrics[0]}")
            if objective is accepted[-1]:
                _run(case, objective, parts, rounds=1)
                again = _run(case, objective, parts, rounds=2)
                same(bits(result), bits(again), f"objective '{objective.name}', continued after a round")


def _meets_needs(case: Case, objective: Objective) -> bool:
    """Return True if the objective meets the method's needs.

    Otherwise check that the run is refused with the missing need.
    """
    task = make_task_of(objective)
    networks = {task.network: task.build()}
    missing = [
        need for need in sorted(case.make_method().active_needs) if unmet_reason(need, task, networks) is not None
    ]
    if not missing:
        return True
    with folders(1) as (folder,):
        try:
            _run(case, objective, folder, rounds=1)
        except SettingsError as error:
            named = all(f"'{word}'" in str(error) for word in (case.name, missing[0], objective.name))
            expect(named, f"objective '{objective.name}' is refused without naming the need '{missing[0]}': {error}")
            expect(not folder.exists(), f"objective '{objective.name}': something was written before the refusal")
            return False
    raise AssertionError(f"objective '{objective.name}' is not refused, though the method needs '{missing[0]}'")


def _run(case: Case, objective: Objective, folder: Path, rounds: int) -> SimulationResult:
    """Run the federation with an objective."""
    return case.run(
        folder,
        sites=make_sites_of(objective, TRAINING_IMAGES),
        task=make_task_of(objective),
        public=with_targets_of(make_data(12, "public"), objective) if "public_data" in case.kind.needs else None,
        server_test=with_targets_of(make_data(8, "global"), objective),
        rounds=rounds,
    )
