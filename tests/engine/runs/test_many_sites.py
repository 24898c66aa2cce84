"""Test the costs of sites that do not take part in a round."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import torch
from torch import nn

from medfl.data.arrays import ArrayDataset
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, Simulation, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl_methods.fedavg import FedAvg

COLUMNS, ROWS = 13, 8

MAX_BYTES = 3800
"""Maximum memory of a site that does not take part, in bytes. Its data are 416 bytes of numbers."""


def many_sites(number: int) -> dict[str, Splits]:
    rng = np.random.default_rng(0)
    table, labels = rng.standard_normal((number * ROWS, COLUMNS)).astype(np.float32), np.arange(number * ROWS) % 2

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(table, labels[rows], rows)

    rows = np.arange(number * ROWS).reshape(number, ROWS)
    return {f"site-{i:05d}": Splits(dataset(own[:6]), dataset(own[:0]), dataset(own[6:])) for i, own in enumerate(rows)}


def bytes_at_the_first_step(folder: Path, number: int) -> int:
    """Return the memory that Python's objects and arrays take when the first site of a run begins its step."""
    sizes: list[int] = []

    def note(site: str, step: int) -> bool:
        sizes.append(tracemalloc.get_traced_memory()[0])
        return False

    task = Task(
        {"linear": lambda: nn.Linear(COLUMNS, 2)},
        "linear",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        Multiclass(2),
        ("accuracy",),
    )
    tracemalloc.start()
    try:
        simulate(
            SimulatedRun(
                method=MethodChoice(name="fedavg", make=FedAvg),
                task=task,
                settings=Settings(rounds=1, epochs=1, batch_size=8, fraction=2 / number),
                data=RunData(sites=many_sites(number)),
                folder=folder,
                simulation=Simulation(unavailable=note),
            )
        )
    finally:
        tracemalloc.stop()
    return sizes[0]


def test_a_site_that_does_not_take_part_takes_little_memory(tmp_path: Path) -> None:
    bytes_at_the_first_step(tmp_path / "imports", 20)  # modules that the first run imports don't count
    few, many = (bytes_at_the_first_step(tmp_path / str(number), number) for number in (100, 500))
    assert (many - few) / 400 < MAX_BYTES
    assert len(list((tmp_path / "500" / "state").iterdir())) == 3, "the server's folder, and those of the participants"
