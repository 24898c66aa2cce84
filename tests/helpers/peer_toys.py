"""Helpers for tests of peer-to-peer methods: tasks, the route by hand, and a reader of a run folder."""

import dataclasses

import torch
from torch import nn

from medfl.engine.store import Store
from medfl.objectives import Multiclass
from medfl.plugins import load_plugins
from medfl.task import Task
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_task
from medfl.utils.rng import make_generator
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()
NAMES = ["site-1", "site-2", "site-3"]
WIDTHS = {"site-1": "wide", "site-2": "norm", "site-3": "plain"}
REGIONS = torch.tensor([[1] * 6, [1] * 6, [2] * 6, [2] * 3 + [0] * 3, [3] * 6, [0] * 6])


class Dropping(SmallNet):
    """Network with dropout before the head."""

    def forward(self, images):
        return self.head(nn.functional.dropout(self.body(images), 0.3, self.training))


def adam(task):
    return dataclasses.replace(task, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01))


def atlas_task(**networks):
    """Return a task with Adam and an atlas; the first network is the default."""
    task = Task(
        networks or make_task().networks,
        next(iter(networks), "norm"),
        nn.CrossEntropyLoss(),
        lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        Multiclass(CLASSES),
        ("accuracy",),
        regions=REGIONS,
    )
    return adam(task)


def run(folder, name, args=None, **options):
    """Run the tiny federation, scored after its last round only, because no model depends on scores."""
    return Case(REGISTRY, name, args or {}).run(folder, **({"evaluate_every": 9} | options))


def owners(round_):
    """The owners of the models at each of three hosts, by the stream that all methods share."""
    order = torch.randperm(3, generator=make_generator(7, "route", round_)).tolist()
    return [NAMES[index] for index in order]


def host_to_owner(round_):
    return dict(zip(NAMES, owners(round_), strict=True))


def states(folder):
    """Participant to its newest state."""
    records = {path.name: Store(path).latest() for path in sorted((folder / "state").iterdir())}
    return {name: record.state() for name, record in records.items() if record}


def tensors_of(folder):
    """Site to the tensors of its newest state."""
    return {name: state.tensors for name, state in states(folder).items() if name != "server"}


def record_of(folder, name, step):
    return Store(folder / "state" / name).load(step)


def same(left, right):
    """Return True if the same participants have the same bits."""
    assert left.keys() == right.keys()
    return all(tensors_equal(left[key], right[key]) for key in left)


def parameters(tensors):
    """Without the buffers."""
    return {name: tensor for name, tensor in tensors.items() if name.endswith(("weight", "bias"))}
