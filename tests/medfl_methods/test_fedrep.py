"""FedRep: its phases leave the other part alone, share a round's batches, and are a plain loop."""

import dataclasses

import pytest
import torch
from pfedcdp_toys import NAMES, build, mean_change
from torch import nn
from torch.nn import functional as F

from medfl.contract import Site, State
from medfl.networks.parts import mlp
from medfl.plugins import load_plugins
from medfl.settings import Settings
from medfl.testing.cohort import CLASSES, Case, SmallNet, make_data, make_sites, make_task
from medfl.utils import wire
from medfl.utils.rng import make_generator
from medfl.utils.wire import select, tensors_equal
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


# ---- a plain loop


def descend(model, trained, frozen, data, generator, count):
    """Gradient steps with momentum on one part; one-image batches are left out where there are norms."""
    moved = list(trained.parameters())
    optimizer, done = torch.optim.SGD(moved, 0.1, 0.9), 0
    model.train()
    frozen.eval()
    norms = any(isinstance(module, nn.BatchNorm2d) for module in model.modules())
    while done < count:
        for rows in torch.randperm(len(data), generator=generator).split(5)[: count - done]:
            done += 1
            if len(rows) > 1 or not norms:
                loss = F.cross_entropy(model(data.images[rows]), data.class_labels[rows])
                for parameter, gradient in zip(moved, torch.autograd.grad(loss, moved), strict=True):
                    parameter.grad = gradient
                optimizer.step()


@pytest.mark.parametrize("network", ["norm", "plain"])
def test_fedrep_is_a_plain_loop(tmp_path, network):
    """Head first, then body; three epochs, of which a third is the head's."""
    torch.set_num_threads(1)  # as a run does
    task, sites = make_task(network), make_sites()
    batches = {"site-1": (5, 10), "site-2": (3, 6), "site-3": (2, 4)}
    first = task.initial(7)
    body = {name: tensor for name, tensor in first.items() if name.startswith("body")}
    heads = dict.fromkeys(sites, {name: tensor for name, tensor in first.items() if name.startswith("head")})
    for round_ in (1, 2):
        ended = {}
        for name, data in sites.items():
            model = build(task.networks[network], body | heads[name])
            for_head, for_body = batches[name]
            stream = make_generator(7, name, round_, "batcheshead")
            descend(model, model.head, model.body, data.train, stream, for_head)
            stream = make_generator(7, name, round_, "batches")
            descend(model, model.body, model.head, data.train, stream, for_body)
            ended[name] = {key: t.detach().clone().contiguous() for key, t in model.state_dict().items()}
            heads[name] = {key: ended[name][key] for key in heads[name]}
        body = mean_change(body, ended, {name: len(data.train) for name, data in sites.items()})
    result = run(tmp_path, {"head_share": 1 / 3}, task=task, epochs=3)
    for name in NAMES:
        for key, tensor in (body | heads[name]).items():
            trained = result.models[name]["personal"].tensors[key]
            torch.testing.assert_close(trained, tensor, atol=1e-6, rtol=1e-5, msg=lambda m, k=key: f"{k}: {m}")


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


@pytest.mark.parametrize(("share", "still", "moving"), [(0.0, "head.", "body."), (1.0, "body.", "head.")])
def test_a_share_of_all_or_nothing_leaves_a_part_as_it_began(tmp_path, share, still, moving):
    result, first = run(tmp_path, {"head_share": share}), make_task().initial(7)
    for name in NAMES:
        model = result.models[name]["personal"].tensors
        assert tensors_equal(select(model, still), select(first, still))
        assert not tensors_equal(select(model, moving), select(first, moving))


def test_the_papers_preset_is_ten_epochs_to_one():
    assert REGISTRY.make_method("fedrep", {"preset": "paper"}).head_share * 11 == pytest.approx(10)
