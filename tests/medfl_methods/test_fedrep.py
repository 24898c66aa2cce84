"""FedRep: its phases leave the other part alone, share a round's batches, and are a plain loop."""

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


class Whimsical(nn.Module):
    """Batch norm and dropout in both parts."""

    def __init__(self):
        super().__init__()
        inner = SmallNet()
        self.body = nn.Sequential(*inner.body, nn.Dropout(0.3))
        self.head = mlp(24, (5,), CLASSES, dropout=(0.3,))

    def forward(self, images):
        return self.head(self.body(images))


class Watched(FedRep):
    """Notes each part's hash, buffers included, at every batch and in the end; and what is in training mode."""

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


def test_b_13_each_phase_leaves_the_other_part_alone(tmp_path):
    """Also from an optimiser with weight decay and momentum."""
    SEEN.clear()
    task = dataclasses.replace(
        make_task(),
        networks={"norm": Whimsical},
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, weight_decay=0.1),
    )
    sites = {"site-1": make_sites()["site-1"]}
    run(tmp_path, make_method=Watched, task=task, sites=sites, rounds=1, epochs=2)
    # ten batches, of which each epoch's last has one image and is left out; and a look in the end of each phase
    assert [phase for phase, _, _ in SEEN] == ["head"] * 5 + ["body"] * 5
    heads, bodies = SEEN[:5], SEEN[5:]
    assert len({body for _, body, _ in heads}) == 1
    assert len({head for _, _, head in heads}) == 5
    assert len({head for _, _, head in bodies}) == 1
    assert len({body for _, body, _ in bodies}) == 5
    assert heads[-1][1:] == bodies[0][1:]  # the body's phase starts from the trained head


# ---- shares of a round


def phases(share, images, **settings):
    """Batches of the body and of the head."""
    site = Site("a", 1, State(), make_task(), Settings(rounds=1, **({"batch_size": 5} | settings)))
    site.train = make_data(images, "a")
    steps = {training.part: training.budget.steps for training in FedRep(head_share=share).trainings(site)}
    return steps["body"], steps.get("head", 0)


@pytest.mark.parametrize(
    ("share", "images", "settings", "expected"),
    [
        (10 / 11, 21, {"epochs": 11}, (5, 50)),  # the paper's ten epochs and one
        (0.5, 21, {"epochs": 1}, (2, 3)),  # an epoch is shared, too
        (0.5, 21, {"steps": 8}, (4, 4)),
        (0.01, 21, {"epochs": 1}, (4, 1)),
        (0.99, 21, {"epochs": 1}, (1, 4)),
        (0.5, 5, {"epochs": 1}, (1, 1)),  # one batch: it is in both
        (0.01, 5, {"epochs": 1}, (1, 1)),
        (0.0, 21, {"epochs": 1}, (5, 0)),
        (1.0, 21, {"epochs": 1}, (0, 5)),
        (0.5, 21, {"epochs": 0}, (0, 0)),
    ],
)
def test_the_phases_share_a_rounds_batches(share, images, settings, expected):
    assert phases(share, images, **settings) == expected
