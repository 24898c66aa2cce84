"""Tests of FedRep: each phase leaves the other part unchanged, and the phases share the batches of a round."""

import dataclasses

import pytest
import torch
from torch import nn

from medfl.contract import Site, State
from medfl.networks.parts import mlp
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_data, make_sites, make_task
from medfl.utils import wire
from medfl_methods.fedrep import FedRep

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedrep", args or {}).run(folder, **({"rounds": 2, "evaluate_every": 9} | options))


# ---- O-B13

SEEN = []


class StochasticNet(nn.Module):
    """Network with batch norm and dropout in both parts."""

    def __init__(self):
        super().__init__()
        inner = SmallNet()
        self.body = nn.Sequential(*inner.body, nn.Dropout(0.3))
        self.head = mlp(24, (5,), CLASSES, dropout=(0.3,))

    def forward(self, images):
        return self.head(self.body(images))


class RecordingFedRep(FedRep):
    """FedRep that records each part's hash (with buffers) at every batch and at the end, and the training mode."""

    def note(self, fit):
        model, trained = fit.model, fit.training.part
        SEEN.append((trained, wire.digest(model.body.state_dict()), wire.digest(model.head.state_dict())))

    def loss(self, fit, batch):
        self.note(fit)
        value = super().loss(fit, batch)
        for name, part in (("body", fit.model.body), ("head", fit.model.head)):
            assert {module.training for module in part.modules()} == {name == fit.training.part}
        return value

    def after_fit(self, fit):
        self.note(fit)


def test_b_13_each_phase_leaves_the_other_part_unchanged(tmp_path):
    """Also with weight decay and momentum in the optimiser."""
    SEEN.clear()
    task = dataclasses.replace(
        make_task(),
        networks={"norm": StochasticNet},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    )
    sites = {"site-1": make_sites()["site-1"]}
    run(tmp_path, make_method=RecordingFedRep, task=task, sites=sites, rounds=1, epochs=2)
    # ten batches, without each epoch's last batch of one image, plus a record at the end of each phase
    assert [phase for phase, _, _ in SEEN] == ["head"] * 5 + ["body"] * 5
    heads, bodies = SEEN[:5], SEEN[5:]
    assert len({body for _, body, _ in heads}) == 1
    assert len({head for _, _, head in heads}) == 5
    assert len({head for _, _, head in bodies}) == 1
    assert len({body for _, body, _ in bodies}) == 5
    assert heads[-1][1:] == bodies[0][1:]  # the body's phase starts from the trained head


# ---- shares of a round


def phases(share, images, **settings):
    """Return the numbers of batches of the body and of the head."""
    site = Site("a", 1, State(), make_task(), Settings(rounds=1, **({"batch_size": 5} | settings)))
    site.train = make_data(images, "a")
    steps = {training.part: training.budget.steps for training in FedRep(head_share=share).trainings(site)}
    return steps["body"], steps.get("head", 0)


@pytest.mark.parametrize(
    ("share", "images", "settings", "expected"),
    [
        (10 / 11, 21, {"epochs": 11}, (5, 50)),  # the paper's ten epochs and one epoch
        (0.5, 21, {"epochs": 1}, (2, 3)),  # a single epoch is shared
        (0.5, 21, {"steps": 8}, (4, 4)),
        (0.01, 21, {"epochs": 1}, (4, 1)),
        (0.99, 21, {"epochs": 1}, (1, 4)),
        (0.5, 5, {"epochs": 1}, (1, 1)),  # a single batch is used in both phases
        (0.01, 5, {"epochs": 1}, (1, 1)),
        (0.0, 21, {"epochs": 1}, (5, 0)),
        (1.0, 21, {"epochs": 1}, (0, 5)),
        (0.5, 21, {"epochs": 0}, (0, 0)),
    ],
)
def test_phases_share_the_batches_of_a_round(share, images, settings, expected):
    assert phases(share, images, **settings) == expected
