"""Test that a federation in memory imports only needed packages, and that its processes keep freed memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = {"monai", "ignite", "sklearn", "matplotlib", "scipy", "pandas"}
"""Packages that training on PyTorch data sets does not need. Importing them takes longer than importing torch."""

PROGRAM = '''
import json, os, sys
from pathlib import Path

import torch
from torch import nn

from medfl.engine.plan import MethodChoice
from medfl.engine.site import Splits
from medfl.data.pooled import EmptyDataset, TensorData
from medfl.networks.cnn import CNN4
from medfl.networks.resnet import ResNet
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.engine.runs.simulation import SimulatedRun, RunData, simulate
from medfl.settings import Execution, Settings
from medfl.task import Task

sys.path.insert(0, sys.argv[1])
from mapped_blocks import is_mapped

folder = Path(sys.argv[2])
facts = {"mapped before": is_mapped()}


class Observed(TensorData):
    """Notes, in whichever process trains, its modules and whether glibc maps a large block on its own."""

    def batch(self, rows):
        noted = {"modules": sorted({name.partition(".")[0] for name in sys.modules}), "mapped": is_mapped()}
        (folder / f"{os.getpid()}.json").write_text(json.dumps(noted))
        return super().batch(rows)


def site(seed):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(6, 1, 8, 8, generator=generator)
    train = Observed(images, torch.tensor([0, 1, 0, 1, 0, 1]))
    return Splits(train, EmptyDataset(), Observed(images, torch.arange(6) % 2))


task = Task(
    {"cnn4": lambda: CNN4(1, 2, 8)},
    "cnn4",
    nn.CrossEntropyLoss(),
    lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    Multiclass(2),
    ("accuracy", "auc"),
)
registry = load_plugins()
ResNet(10)
for number, (method, workers) in enumerate([("fedavg", 2), ("centralized", 1)]):
    result = simulate(
        SimulatedRun(
            method=MethodChoice(name=method, make=lambda: registry.make_method(method, {})),
            task=task,
            settings=Settings(rounds=1, epochs=1, batch_size=3),
            data=RunData(sites={"a": site(1), "b": site(2)}),
            folder=folder / f"run-{number}",
            execution=Execution(workers=workers),
        )
    )
    facts[method] = result.summary.status
facts["mapped after"] = is_mapped()
facts["modules"] = sorted({name.partition(".")[0] for name in sys.modules})
(folder / "main.json").write_text(json.dumps(facts))
'''


def run_federations(folder: Path, **variables: str) -> tuple[dict, list[dict]]:
    """Run two federations in a separate process; return measurements of it and of each process with a batch."""
    folder.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | variables
    helpers = Path(__file__).parents[2] / "helpers"
    command = [sys.executable, "-c", PROGRAM, str(helpers), str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    main = json.loads((folder / "main.json").read_text())
    return main, [json.loads(path.read_text()) for path in folder.glob("[0-9]*.json")]


def test_a_federation_in_memory_imports_neither_monai_nor_pandas_and_all_its_processes_keep_freed_memory(
    tmp_path: Path,
) -> None:
    main, trained = run_federations(tmp_path / "default")
    assert (main["fedavg"], main["centralized"]) == ("finished", "finished")
    assert len(trained) >= 2, "a worker, and the main process"
    for process in [main, *trained]:
        assert HEAVY & set(process["modules"]) == set()
    if sys.platform == "linux" and os.confstr_names.get("CS_GNU_LIBC_VERSION"):
        assert main["mapped before"], "importing medfl changes nothing"
        assert not main["mapped after"]
        assert [process["mapped"] for process in trained] == [False] * len(trained)


@pytest.mark.slow
def test_a_user_who_configures_the_allocator_is_left_alone(tmp_path: Path) -> None:
    main, trained = run_federations(tmp_path / "own", MALLOC_ARENA_TEST="8")
    assert main["mapped before"] == main["mapped after"]
    assert {process["mapped"] for process in trained} == {main["mapped before"]}
