"""Test the costs of sites that do not take part in a round."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn

from medfl.contract import Method
from medfl.data.arrays import ArrayDataset
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, SimulationResult, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl_methods.ditto import Ditto
from medfl_methods.fedavg import FedAvg

COLUMNS, ROWS = 13, 8

MAX_BYTES = 2900
"""Maximum memory of a site that does not take part, in bytes. Its data are 416 bytes of numbers."""

WIDTH = 5000
"""Number of outputs of a network whose weights are easily told from other tensors."""


def many_sites(number: int) -> dict[str, Splits]:
    rng = np.random.default_rng(0)
    table, labels = rng.standard_normal((number * ROWS, COLUMNS)).astype(np.float32), np.arange(number * ROWS) % 2

    def dataset(rows: np.ndarray) -> ArrayDataset:
        return ArrayDataset(table, labels[rows], rows)

    rows = np.arange(number * ROWS).reshape(number, ROWS)
    return {f"site-{i:05d}": Splits(dataset(own[:6]), dataset(own[:0]), dataset(own[6:])) for i, own in enumerate(rows)}


def simulate_many(
    folder: Path,
    number: int,
    outputs: int,
    settings: Settings,
    method: Callable[[], Method],
    callbacks: Callbacks,
    note: Callable[[], None],
) -> SimulationResult:
    """Run a method with a linear network, and call a function before each site's step."""

    def note_step(site: str, step: int) -> bool:
        note()
        return False

    task = Task(
        {"linear": lambda: nn.Linear(COLUMNS, outputs)},
        "linear",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        Multiclass(outputs),
        ("accuracy",),
    )
    return simulate(
        SimulatedRun(
            method=MethodChoice(name=method.__name__.lower(), make=method),
            task=task,
            settings=settings,
            data=RunData(sites=many_sites(number)),
            folder=folder,
            simulation=Simulation(unavailable=note_step),
            callbacks=callbacks,
        )
    )


def bytes_at_the_first_step(folder: Path, number: int) -> int:
    """Return the memory that Python's objects and arrays take when the first site of a run begins its step."""
    sizes: list[int] = []
    settings = Settings(rounds=1, epochs=1, batch_size=8, fraction=2 / number)
    tracemalloc.start()
    try:
        simulate_many(
            folder, number, 2, settings, FedAvg, Callbacks(), lambda: sizes.append(tracemalloc.get_traced_memory()[0])
        )
    finally:
        tracemalloc.stop()
    return sizes[0]


def test_a_site_that_does_not_take_part_takes_little_memory(tmp_path: Path) -> None:
    bytes_at_the_first_step(tmp_path / "imports", 20)  # modules that the first run imports don't count
    few, many = (bytes_at_the_first_step(tmp_path / str(number), number) for number in (100, 500))
    assert (many - few) / 400 < MAX_BYTES
    assert len(list((tmp_path / "500" / "state").iterdir())) == 3, "the server's folder, and those of the participants"


def models_in_memory() -> int:
    """Return the number of tensors in memory that are as large as the weights of a model."""
    gc.collect()
    return sum(isinstance(thing, torch.Tensor) and thing.numel() == WIDTH * COLUMNS for thing in gc.get_objects())


def test_models_of_absent_sites_are_on_the_disk_only(tmp_path: Path) -> None:
    """Each site of Ditto has a personal model after the first round. No number of sites is in memory at once."""
    counts: list[int] = []

    def note(*_: object) -> None:
        counts.append(models_in_memory())

    settings = Settings(rounds=2, epochs=1, batch_size=8)
    result = simulate_many(tmp_path, 30, WIDTH, settings, Ditto, Callbacks(on_round=note, export=note), note)
    assert len(counts) > 60
    assert max(counts) - counts[0] < 12
    models = result.models["site-00007"]
    assert len(result.models) == 30
    assert torch.equal(
        models["personal"].tensors["weight"], result.models["site-00007"]["personal"].tensors["weight"]
    ), "read again"
    assert not torch.equal(models["personal"].tensors["weight"], models["global"].tensors["weight"])
