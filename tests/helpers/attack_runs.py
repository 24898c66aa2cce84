"""Finished runs for the tests of attacks: a tiny one through the bundle, and a federation of made-up numbers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from medfl.bundle.federated_run import FederatedRun
from medfl.data.pooled import TensorData
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task
from medfl.testing.synthetic import make_cohort
from medfl.workflow import FederatedWorkflow

BUNDLE = Path(__file__).parents[2] / "medfl" / "bundles" / "medmnist_classification"


def make_data(folder: Path, per_site: int = 40) -> Path:
    """Two sites with images of four classes, a tenth of them for validation, and a test set of the server."""
    make_cohort(folder, sites=2, images_per_site=per_site, classes=4, size=16, seed=1)
    return folder


def run_bundle(data: Path, folder: Path, **options: Any) -> Path:
    """Run the bundle on prepared data."""
    configs = [str(BUNDLE / "configs" / name) for name in ("train.json", "federate.json")]
    values = {"bundle_root": str(BUNDLE), "dataset_dir": str(data), "output_dir": str(folder), "rounds": 2}
    values["metrics"] = ["accuracy"]
    workflow = FederatedWorkflow(configs, logging_file=False, **(values | options))
    workflow.initialize()
    federation: FederatedRun = workflow.parser.get_parsed_content("federation")
    federation.simulate()
    return folder


def net() -> nn.Module:
    """A network that can learn a few hundred images of noise by heart."""
    return nn.Sequential(nn.Flatten(), nn.Linear(36, 128), nn.ReLU(), nn.Linear(128, 2))


def noise_task() -> Task:
    """Images of noise with labels by chance: what is known of a test image's label is nothing."""
    return Task(
        networks={"net": net},
        network="net",
        loss=nn.CrossEntropyLoss(),
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
        objective=Multiclass(2),
    )


def noise_settings(epochs: int = 30) -> Settings:
    """One round of so many epochs."""
    return Settings(rounds=1, epochs=epochs, batch_size=32)


def noise(count: int, seed: int) -> TensorData:
    """Images (1, 6, 6) and labels 0 or 1 that have nothing to do with them."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 1, 6, 6, generator=generator)
    return TensorData(images, torch.randint(2, (count,), generator=generator))
