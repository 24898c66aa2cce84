"""Training loops of the frameworks that `peers.py` compares. `peers.py` starts this script; don't run it directly.

Each loop prints "ready" before a round and waits until it reads "go" from its standard input. Every loop follows its
framework's documentation, with the data as tensors in memory and batches selected by index.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

import numpy as np
import torch
from plain_loop import PlainCNN, PlainLoop
from torch import nn

CLASSES, BATCH, RATE = 8, 32, 0.01
BATCHES = (8, 10, 13, 15, 18, 20, 23, 25, 28, 30)
"""Number of batches of each site."""


def images_and_labels(options: argparse.Namespace) -> tuple[np.ndarray, np.ndarray]:
    """Return the images (N, 28, 28, 3), uint8, and the labels (N,) of all sites."""
    count = sum(site_sizes(options))
    if options.data is None:
        rng = np.random.default_rng(0)
        return rng.integers(0, 256, (count, 28, 28, 3), dtype=np.uint8), rng.integers(0, CLASSES, count)
    with np.load(options.data) as file:
        return file["train_images"][:count], file["train_labels"].reshape(-1)[:count].astype(np.int64)


def site_sizes(options: argparse.Namespace) -> list[int]:
    """Return the number of images of each site."""
    return [max(1, round(batches * options.scale)) * BATCH for batches in BATCHES[: options.sites]]


def site_tensors(options: argparse.Namespace) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the images and labels of each site as tensors."""
    images, labels = images_and_labels(options)
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.5).contiguous()
    return list(
        zip(scaled.split(site_sizes(options)), torch.from_numpy(labels).split(site_sizes(options)), strict=True)
    )


def wait_for_turn() -> bool:
    """Report that this process is ready for a round, wait for the reply, and return whether to run the round."""
    print("ready", flush=True)
    return sys.stdin.readline().strip() == "go"


def run_plain(options: argparse.Namespace) -> None:
    """Run the loop of `plain_loop.py`."""
    images, labels = images_and_labels(options)
    scaled = torch.from_numpy(images).permute(0, 3, 1, 2).float().div(255).sub(0.5).div(0.5).contiguous()
    rows = list(torch.arange(len(labels)).split(site_sizes(options)))
    loop = PlainLoop(scaled, torch.from_numpy(labels), rows, [], rows[0][:0], 1, BATCH, seed=0)
    while wait_for_turn():
        loop.round(list(range(len(rows))))


def run_medfl(options: argparse.Namespace) -> None:
    """Run medfl's federated averaging with the local backend."""
    from medfl.data.arrays import ArrayDataset
    from medfl.data.pooled import EmptyDataset
    from medfl.engine.plan import MethodChoice
    from medfl.engine.runs.simulation import Callbacks, RunData, SimulatedRun, Simulation, simulate
    from medfl.engine.site import Splits
    from medfl.networks.cnn import CNN4
    from medfl.objectives import Multiclass
    from medfl.plugins import load_plugins
    from medfl.settings import Execution, Settings
    from medfl.task import Task

    images, labels = images_and_labels(options)
    sites = {}
    for index, rows in enumerate(np.split(np.arange(len(labels)), np.cumsum(site_sizes(options))[:-1])):
        data = ArrayDataset(images, labels[rows], rows, (0.5,) * 3, (0.5,) * 3)
        sites[f"site-{index}"] = Splits(data, EmptyDataset(), EmptyDataset())
    registry = load_plugins()
    task = Task(
        {"cnn4": lambda: CNN4(3, CLASSES)},
        "cnn4",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=RATE),
        Multiclass(CLASSES),
        ("accuracy",),
    )
    started = False

    def wait_before_first_request(site: str, step: int) -> bool:
        nonlocal started
        if not started and not wait_for_turn():
            raise SystemExit
        started = True
        return False

    def end_round(round_: int, rows: object) -> None:
        if not wait_for_turn():
            raise SystemExit

    with tempfile.TemporaryDirectory() as folder:
        simulate(
            SimulatedRun(
                method=MethodChoice(name="fedavg", make=lambda: registry.make_method("fedavg", {})),
                task=task,
                settings=Settings(rounds=options.rounds + 1, epochs=1, batch_size=BATCH),
                data=RunData(sites=sites),
                folder=Path(folder) / "run",
                execution=Execution(workers=options.workers),
                simulation=Simulation(unavailable=wait_before_first_request),
                callbacks=Callbacks(on_round=end_round),
            )
        )


def run_pfl(options: argparse.Namespace) -> None:
    """Run pfl-research's federated averaging with its simulated backend."""
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.callback.base import TrainingProcessCallback
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
    from pfl.metrics import Metrics
    from pfl.model.pytorch import PyTorchModel

    class Network(PlainCNN):
        def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            self.train()
            return nn.functional.cross_entropy(self(x), y)

        def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
            return {}

    class Turns(TrainingProcessCallback):
        def on_train_begin(self, *, model: object) -> Metrics:
            wait_for_turn()
            return Metrics()

        def after_central_iteration(
            self, aggregate_metrics: object, model: object, *, central_iteration: int
        ) -> tuple[bool, Metrics]:
            return not wait_for_turn(), Metrics()

    sites = site_tensors(options)
    cycle = iter(list(range(len(sites))) * (options.rounds + 1))
    network = Network(3, CLASSES)
    model = PyTorchModel(
        network,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(network.parameters(), lr=1.0),
    )
    data = FederatedDataset(lambda site: Dataset(raw_data=sites[site]), lambda: next(cycle))
    parameters = NNAlgorithmParams(
        central_num_iterations=options.rounds + 1,
        evaluation_frequency=10**6,
        train_cohort_size=len(sites),
        val_cohort_size=0,
    )
    FederatedAveraging().run(
        parameters,
        SimulatedBackend(training_data=data, val_data=data),
        model,
        NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        NNEvalHyperParams(local_batch_size=256),
        [Turns()],
    )


def run_fedlab(options: argparse.Namespace) -> None:
    """Run FedLab's serial trainer in its standalone pipeline."""
    if not _is_importable("torchvision"):  # FedLab imports it for its example data sets, which this loop does not use
        names = ("torchvision", "torchvision.datasets", "torchvision.transforms")
        sys.modules |= {name: MagicMock(spec=ModuleType) for name in names}  # type: ignore[assignment]
        sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]
    from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
    from fedlab.contrib.algorithm.basic_server import SyncServerHandler
    from fedlab.core.standalone import StandalonePipeline

    sites = site_tensors(options)

    class Sites:
        def get_dataloader(self, site: int, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
            images, labels = sites[site]
            for rows in torch.randperm(len(labels)).split(batch_size):
                yield images[rows], labels[rows]

    class Turns(StandalonePipeline):
        def evaluate(self) -> None:
            if not wait_for_turn():
                raise SystemExit

    network = PlainCNN(3, CLASSES)
    trainer = SGDSerialClientTrainer(network, len(sites))
    trainer.setup_dataset(Sites())
    trainer.setup_optim(1, BATCH, RATE)
    if wait_for_turn():
        Turns(SyncServerHandler(network, options.rounds + 1, 1.0), trainer).main()


def _is_importable(module: str) -> bool:
    try:
        __import__(module)
    except (ImportError, RuntimeError):  # a torchvision built for another torch raises a RuntimeError
        return False
    return True


LOOPS: dict[str, Callable[[argparse.Namespace], None]] = {
    "plain": run_plain,
    "medfl": run_medfl,
    "pfl": run_pfl,
    "fedlab": run_fedlab,
}
"""Loops by the name of the framework."""


def main() -> None:
    """Run one loop."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=LOOPS, help="framework to run")
    parser.add_argument("--workers", type=int, default=1, help="number of training processes (medfl only)")
    parser.add_argument("--rounds", type=int, required=True, help="number of rounds after the warm-up round")
    parser.add_argument("--data", type=Path, help="file bloodmnist.npz; default: random images")
    parser.add_argument("--scale", type=float, default=1.0, help="factor for the number of batches of each site")
    parser.add_argument("--sites", type=int, default=len(BATCHES), help="number of sites, 1 to 10")
    options = parser.parse_args()
    needed = {"pfl": "pfl", "fedlab": "fedlab"}.get(options.kind)
    if needed and importlib.util.find_spec(needed) is None:
        raise SystemExit(f"the package '{needed}' is not installed in {sys.executable}")
    torch.set_num_threads(1)
    LOOPS[options.kind](options)


if __name__ == "__main__":
    main()
