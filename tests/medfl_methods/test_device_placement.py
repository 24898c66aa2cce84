"""All methods compute on the task's device: they run on a stand-in that refuses to mix its tensors with CPU tensors.

The stand-in (`standin_device`) computes real numbers, so a run also ends with the models of a run on the CPU, up to
rounding, unless it is in `NOT_COMPARED`. No method is left out. All runs share one process besides this one, because
torch can't unregister a device.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from medfl.plugins import load_plugins

backend_registration = pytest.importorskip("torch.utils.backend_registration")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"),
        reason="this version of torch can't have a device that is written in Python",
    ),
]

WALK = Path(__file__).parents[1] / "helpers" / "standin_walk.py"

WITHOUT_CLASS_WEIGHTS = frozenset({"feddr_plus", "fedfed", "fedtpf"})
"""Methods that refuse class weights in the loss. All others have them, because a loss must move to the device, too."""

OPTIONS: dict[str, dict[str, Any]] = {
    "privacy of sites": {"privacy": {"epsilon": 8, "clip": 1.0}, "norm_sync": "none"},
    "secure aggregation": {"secure_aggregation": {}, "norm_sync": "none"},
    "compression": {"compression": {"bits": 8}},
    "robust": {"robust": {"rule": "median"}},
    "head": {"train_part": "head"},
    "adapters": {"train_part": "lora"},
    "recipe": {"optimization": {"schedule": "cosine", "layer_decay": 0.5, "decay_norms": False, "ema": 0.9}},
    "evaluation": {"moments": ["aggregated", "trained"], "cross_site_evaluation": True, "shared_test": True},
    "networks": {"networks_by_site": {"site-1": "norm", "site-2": "norm"}},
}
"""Settings of further runs with FedAvg, by title."""

ADAM = "Adam amplifies the rounding of gradients near 0, such as the gradient of a bias before batch norm"
NOT_COMPARED = {
    "fedfed": ADAM,
    "fedmd": ADAM,
    "fedtpf": ADAM,
    "pfedcdp": ADAM,
    "fedavg, privacy of sites": "the noise depends on the last bits of the update",
}
"""Maps each run whose models may differ from those of a run on the CPU to the reason."""


def _runs() -> dict[str, dict[str, Any]]:
    """Return all runs by title."""
    runs: dict[str, dict[str, Any]] = {}
    for name in sorted(load_plugins().methods):
        runs[name] = {"method": name, "settings": {} if name in WITHOUT_CLASS_WEIGHTS else {"balance": "loss"}}
    runs |= {f"fedavg, {title}": {"method": "fedavg", "settings": settings} for title, settings in OPTIONS.items()}
    return {title: run | {"compares": title not in NOT_COMPARED} for title, run in runs.items()}


RUNS = _runs()


def walk(runs: Sequence[Any], *plugins: Path) -> list[str | None]:
    """Return the problem of each run on the stand-in; None if there is none."""
    words = [word for plugin in plugins for word in ("--plugin", str(plugin))] + [json.dumps(run) for run in runs]
    done = subprocess.run([sys.executable, str(WALK), *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    problems: list[str | None] = json.loads(done.stdout)
    return problems


@pytest.fixture(scope="module")
def problems() -> dict[str, str | None]:
    return dict(zip(RUNS, walk(list(RUNS.values())), strict=True))


@pytest.mark.parametrize("name", RUNS)
def test_a_method_computes_on_the_device_of_its_task(name: str, problems: dict[str, str | None]) -> None:
    assert problems[name] is None


PLUGIN = """
import torch
from medfl.plugins import MethodRecord, hookimpl
from medfl.toolkit.averaging import Averaging

@hookimpl
def medfl_methods():
    names = ("Sound", "Loss", "Upload", "Numpy", "Server", "Index", "InPlace")
    return [MethodRecord(name.lower(), f"{__name__}:{name}", "averaging", "", summary="toy") for name in names]

class Sound(Averaging):
    '''A method without a mistake.'''

    supports = frozenset()

    def loss(self, fit, batch):
        weights = torch.arange(3, device=batch.images.device)  # a new tensor on the device
        return super().loss(fit, batch) + 0 * (fit.logits(batch) * weights).mean() + torch.tensor(0.0)

class Loss(Averaging):
    '''A method whose loss creates a tensor on the CPU.'''

    supports = frozenset()

    def loss(self, fit, batch):
        return (super().loss(fit, batch) + torch.zeros(3)).sum()

class Upload(Averaging):
    '''A method that does not copy the update to the CPU before it compares it with the request.'''

    supports = frozenset()

    def after_fit(self, fit):
        state = fit.model.state_dict()
        fit.log["moved"] = float(sum((state[name] - fit.sent["model/" + name]).sum() for name in fit.start))

class Numpy(Averaging):
    '''A method that converts a tensor of the device to NumPy.'''

    supports = frozenset()

    def loss(self, fit, batch):
        fit.log["mean"] = float(fit.logits(batch).detach().numpy().mean())
        return super().loss(fit, batch)

class Server(Averaging):
    '''A method that mixes the server's model with one on the device.'''

    supports = frozenset()

    def server_update(self, server, old, mean):
        model = server.task.load(mean)
        return {name: old[name] + 0 * tensor for name, tensor in model.state_dict().items()}

class Index(Averaging):
    '''A method that selects rows on the CPU by indices on the device.'''

    supports = frozenset()

    def loss(self, fit, batch):
        fit.log["first"] = float(torch.eye(3)[batch.targets].sum())
        return super().loss(fit, batch)

class InPlace(Averaging):
    '''A method that adds a number on the device to one on the CPU, in place.'''

    supports = frozenset()

    def loss(self, fit, batch):
        value, total = super().loss(fit, batch), torch.zeros(())
        total += value.detach()
        return value
"""


def test_planted_mistakes_are_found(tmp_path: Path) -> None:
    (tmp_path / "toy.py").write_text(PLUGIN)
    names = ["sound", "loss", "upload", "numpy", "server", "index", "inplace"]
    problems = dict(zip(names, walk([{"method": name} for name in names], tmp_path / "toy.py"), strict=True))
    assert problems.pop("sound") is None
    kinds = {name: (problem or "none").partition(":")[0] for name, problem in problems.items()}
    mixed = ("loss", "upload", "server", "index", "inplace")
    assert kinds == dict.fromkeys(mixed, "MixedDevicesError") | {"numpy": "RuntimeError"}
    assert all("(toy.py:" in str(problem) for problem in problems.values()), "the message has the place"
