"""One parameter and three quadratic losses: a federation with closed forms."""

import dataclasses

import torch
from torch import nn

from medfl.data.pooled import EmptyDataset, TensorData
from medfl.engine.plan import MethodChoice
from medfl.engine.runs.simulation import RunData, SimulatedRun, Simulation, simulate
from medfl.engine.site import Splits
from medfl.objectives import Multiclass
from medfl.settings import Settings
from medfl.task import Task


class Scalar(nn.Module):
    """w, in float64; the 'logits' of an image of value c are (w - c, 0)."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, images):
        distance = self.w - images.flatten(1)[:, 0].double()
        return torch.stack([distance, torch.zeros_like(distance)], 1)


class HalfSquare(nn.Module):
    def forward(self, logits, labels):
        return 0.5 * logits[:, 0].square().mean()


QUADRATIC = Task(
    {"scalar": Scalar},
    "scalar",
    HalfSquare(),
    lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    Multiclass(2),
    ("accuracy",),
)


def quadratic_sites():
    def site(centre, n):
        images = torch.full((n, 1, 1, 1), float(centre))
        return Splits(TensorData(images, torch.zeros(n, dtype=torch.int64)), EmptyDataset(), EmptyDataset())

    return {"a": site(0, 1), "b": site(1, 1), "c": site(4, 2)}


def run_quadratic(folder, make_method, rounds, task=QUADRATIC, sites=None, **options):
    """Run five steps of 0.1 a round on the losses of three sites."""
    return simulate(
        SimulatedRun(
            method=MethodChoice(name="toy", make=make_method),
            task=task,
            settings=Settings(rounds=rounds, epochs=5),
            data=RunData(sites=sites or quadratic_sites()),
            folder=folder,
            simulation=Simulation(**options),
        )
    )


def quadratic(folder, make_method, rounds):
    """Return w of the global model after some rounds."""
    return run_quadratic(folder, make_method, rounds).outcome.models["global"].tensors["w"].item()


class Curved(nn.Module):
    """The 'logits' of an image (centre, h) are (sqrt(h) (w - centre), 0), so its loss is h/2 (w - centre)^2."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros((), dtype=torch.float64))

    def forward(self, images):
        centre, curvature = images.flatten(1).double().unbind(1)
        distance = curvature.sqrt() * (self.w - centre)
        return torch.stack([distance, torch.zeros_like(distance)], 1)


CURVED = {"a": (0.0, 1.0), "b": (1.0, 2.0), "c": (4.0, 0.5)}
"""Site to centre and curvature; the uniform optimum is 8/7."""

CURVED_TASK = dataclasses.replace(QUADRATIC, networks={"scalar": Curved})


def one_image(centre, curvature):
    return TensorData(torch.tensor([[[[centre, curvature]]]]), torch.zeros(1, dtype=torch.int64))


def run_curved(folder, make_method, rounds, **options):
    """Quadratics h/2 (w - centre)^2 of unlike curvature, one image at each site, five steps of 0.1."""
    sites = {site: Splits(one_image(*place), EmptyDataset(), EmptyDataset()) for site, place in CURVED.items()}
    return run_quadratic(folder, make_method, rounds, CURVED_TASK, sites, **options)
