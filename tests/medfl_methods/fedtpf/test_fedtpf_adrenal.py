"""FedTPF in 3-D on real volumes: two rounds on the adrenal glands of AdrenalMNIST3D."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from medfl.data.pooled import TensorData
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.findings import read_findings
from medfl.engine.runs.simulation import RunData, SimulatedRun, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.task import ImageScale, Task


class Small(nn.Module):
    """Network with one convolution and a linear head, in 3-D."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv3d(1, 4, 3, stride=2), nn.ReLU(), nn.AdaptiveAvgPool3d(2), nn.Flatten())
        self.head = nn.Linear(32, 2)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (B, 2) of volumes (B, 1, D, H, W)."""
        return self.head(self.body(images))


@pytest.fixture(scope="module")
def volumes() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first eight volumes of each class, (16, 1, 28, 28, 28) in [-1, 1], and their labels."""
    path = Path(os.environ.get("MEDFL_DATA", ".")) / "medmnist" / "adrenalmnist3d.npz"
    if "MEDFL_DATA" not in os.environ or not path.is_file():
        pytest.skip("needs adrenalmnist3d.npz in the folder that MEDFL_DATA names")
    with np.load(path) as arrays:
        images, labels = arrays["train_images"], arrays["train_labels"].reshape(-1)
    rows = np.concatenate([np.flatnonzero(labels == label)[:8] for label in (0, 1)])
    raw = torch.from_numpy(images[rows]).float().div(255).unsqueeze(1)
    return raw * 2 - 1, torch.from_numpy(labels[rows].astype(np.int64))


def splits(volumes: tuple[torch.Tensor, torch.Tensor], rows: range) -> Splits:
    images, labels = (part[list(rows)] for part in volumes)
    parts = (TensorData(images[start:end], labels[start:end]) for start, end in ((0, 6), (6, 7), (7, 8)))
    return Splits(*parts)


def test_two_rounds_in_3_d(volumes: tuple[torch.Tensor, torch.Tensor], tmp_path: Path) -> None:
    """Each site has one class; in stage 2 each trains on shared volumes of both classes."""
    registry = load_plugins()
    args = {"distil_rounds": 1, "width": 2, "clip": 2.0}
    task = Task(
        {"small": Small},
        "small",
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        Multiclass(2),
        ("accuracy",),
        scale=ImageScale((1, 28, 28, 28), (0.5,), (0.5,)),
    )
    sites = {f"site-{number}": splits(volumes, range(8 * number, 8 * number + 8)) for number in range(2)}
    run = SimulatedRun(
        method=MethodChoice(name="fedtpf", make=lambda: registry.make_method("fedtpf", args), args=args),
        task=task,
        settings=Settings(rounds=2, batch_size=3),
        data=RunData(sites=sites),
        folder=tmp_path / "run",
    )
    assert simulate(run).outcome.status == "finished"
    findings = read_findings(tmp_path / "run")
    sharing = findings.meta["sharing"]
    assert sharing["stage1"]["ended"] == "round limit"
    assert sharing["classes"] == [6, 6]
    assert findings.tensors["sharing/images"].shape == (4, 1, 28, 28, 28)
    variance = float(findings.tensors["sharing/images"].var())
    assert variance == pytest.approx(0.15, rel=0.03), "noise, and next to nothing else under this clip"
