"""Small run folders of objectives beside several classes, with the files of a real run, from a tiny federation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from medfl.engine.plan import MethodChoice
from medfl.engine.runs.export import SiteExport
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, simulate
from medfl.engine.runs.site_bundles import export
from medfl.engine.site import Splits
from medfl.objectives import Objective
from medfl.plugins import load_plugins
from medfl.records.run_file import DataOrigin, Provenance
from medfl.settings import Execution, Settings
from medfl.testing.cohort import make_data
from medfl.testing.tasks import make_task_of, with_targets_of


def run_objective(
    folder: Path,
    objective: Objective,
    method: str = "fedavg",
    rounds: int = 2,
    tests: int = 24,
    metrics: Sequence[str] = (),
    patients: int = 0,
    worst_case_images: bool = False,
    names: Sequence[str] = (),
) -> Path:
    """Train and score, and write the exported bundles.

    Args:
        folder: The run folder.
        objective: One of `medfl.testing.tasks.OTHER_OBJECTIVES`.
        method: Its name.
        rounds: How many.
        tests: Test cases of each site.
        metrics: Metrics of the task; empty for the objective's metrics.
        patients: Images of one patient in a row at the first site; 0 if unknown.
        worst_case_images: As in the settings.
        names: Names of the outputs; empty if they have none.
    """
    task = make_task_of(objective)
    task = replace(task, metrics=tuple(metrics) or task.metrics)
    sites = {name: _site(name, size, tests, objective) for name, size in (("north", 40), ("south", 24), ("west", 16))}
    if patients:
        sites["north"].test.patients = torch.arange(tests) // patients
    registry = load_plugins()
    run = SimulatedRun(
        method=MethodChoice(name=method, make=lambda: registry.make_method(method, {})),
        task=task,
        settings=Settings(rounds=rounds, batch_size=8),
        data=RunData(sites=sites, classes=objective.titles, names=tuple(names)),
        folder=folder,
        execution=Execution(worst_case_images=worst_case_images),
        provenance=Provenance(data=DataOrigin(name="tiny")),
        callbacks=Callbacks(export=partial(export, site_export=SiteExport(folder / "no bundle"))),
    )
    simulate(run)
    return folder


def _site(name: str, size: int, tests: int, objective: Objective) -> Splits:
    parts = ((size, name), (4, f"{name}/val"), (tests, f"{name}/test"))
    return Splits(*(with_targets_of(make_data(cases, key), objective) for cases, key in parts))
