"""FedFA: the distance to anchors, how they move at a site and at the server, and the calibration of heads."""

import dataclasses

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.engine.store import Store
from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_site, make_sites, make_task
from medfl.toolkit.prototypes import mean_prototypes
from medfl.types import SERVER
from medfl.utils.rng import make_generator
from medfl_methods.fedfa.method import OwnAnchors, anchor_loss

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedfa", args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def anchors_of(tensors, prefix):
    return torch.stack([tensors[f"{prefix}{label}"] for label in range(3)])


def test_the_servers_anchor_is_the_mean_weighted_by_size():
    sent = {"a": {"0": torch.tensor([1.0, 0.0])}, "b": {"0": torch.tensor([0.0, 1.0])}}
    sizes = {"a": 1, "b": 3}
    assert mean_prototypes(sent, lambda site, label: sizes[site])["0"].tolist() == [0.25, 0.75]


def test_the_distance_is_the_mean_over_classes_of_means_over_images():
    features, anchors = torch.tensor([[1.0, 0.0], [0.0, 3**0.5], [0.0, 2.0]]), torch.zeros(2, 2)
    labels = torch.tensor([0, 0, 1])  # squared distances 1, 3 and 4
    assert anchor_loss(features, anchors, labels).item() == pytest.approx(3.0)


def test_own_anchors_move_by_the_mean_over_batches_that_hold_the_class():
    own = OwnAnchors(torch.tensor([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]]))
    own.note(torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 8.0]]), torch.tensor([0, 0, 1]))
    own.note(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))
    own.move(0.5)
    own.move(0.5)  # nothing was seen since
    assert {label: row.tolist() for label, row in own.of_own_classes().items()} == {"0": [1.5, 0.75], "1": [0.0, 4.0]}


@pytest.mark.parametrize("init", ["orthogonal", "one_hot"])
def test_first_anchors_have_directions_of_their_own(tmp_path, init):
    run(tmp_path, {"anchor_init": init}, rounds=1, epochs=0)
    anchors = anchors_of(states(tmp_path, SERVER), "kept/anchors/")
    torch.testing.assert_close(anchors @ anchors.T, torch.eye(3), atol=1e-6, rtol=0)
    assert torch.equal(anchors, torch.eye(3, 24)) == (init == "one_hot")


def test_more_classes_than_features_are_refused(tmp_path):
    narrow = dataclasses.replace(make_task(), networks={"norm": Narrow})
    with refused(SettingsError, "too_few_features", minimum=3, found=2):
        run(tmp_path, task=narrow)


class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.body = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(36, 2))
        self.head = torch.nn.Linear(2, 3)

    def forward(self, images):
        return self.head(self.body(images))


def test_an_epoch_is_that_of_the_formulas(tmp_path):
    """One site, one epoch: steps of SGD with momentum, Adam's on the head after each, and the anchors."""
    sites, task, lam = make_sites({"a": 12}), make_task("plain"), 0.3
    run(tmp_path, {"lam": lam}, task=task, sites=sites, rounds=1)
    server, model = states(tmp_path, SERVER), task.load(task.initial(7))
    rows = torch.linalg.qr(torch.randn(24, 3, generator=make_generator(7, "initial", "anchors"))).Q.T
    speed = [torch.zeros_like(p) for p in model.parameters()]
    calibrator, means = torch.optim.Adam(model.head.parameters(), lr=1e-3), {}
    for batch in torch.randperm(12, generator=make_generator(7, "a", 1, "batches")).split(5):
        images, labels = sites["a"].train.batch(batch)
        features = model.body(images)
        loss = F.cross_entropy(model.head(features), labels)
        for label in labels.unique().tolist():
            own = features[labels == label]
            loss = loss + lam / 3 * (own - rows[label]).square().sum(1).mean()
            means.setdefault(label, []).append(own.detach().mean(0))
        grads = torch.autograd.grad(loss, list(model.parameters()))
        with torch.no_grad():
            for index, p in enumerate(model.parameters()):
                speed[index] = 0.9 * speed[index] + grads[index]
                p -= 0.1 * speed[index]
        calibrator.zero_grad()
        F.cross_entropy(model.head(rows), torch.arange(3)).backward()
        calibrator.step()
    for name, p in model.named_parameters():
        torch.testing.assert_close(server[name], p.detach(), atol=1e-5, rtol=1e-4)
    for label in range(3):
        expected = 0.5 * rows[label] + 0.5 * torch.stack(means[label]).mean(0) if label in means else rows[label]
        torch.testing.assert_close(server[f"kept/anchors/{label}"], expected, atol=1e-5, rtol=1e-4)


def test_a_class_that_nobody_has_keeps_its_anchor(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_site(5, "b", torch.full((5,), 2))}
    run(tmp_path / "begun", sites=sites, rounds=1, epochs=0)
    run(tmp_path / "run", sites=sites)
    begun, after = (anchors_of(states(tmp_path / name, SERVER), "kept/anchors/") for name in ("begun", "run"))
    assert (begun == after).all(1).tolist() == [False, True, False]


def test_calibration_alone_trains_heads_to_tell_the_anchors(tmp_path):
    losses = []
    for calibration in (False, True):
        args = {"calibration": calibration, "calib_lr": 0.05}
        result = run(tmp_path / str(calibration), args, rounds=1, epochs=3)
        head = make_task().load(result.outcome.models["global"].tensors).head
        rows = torch.linalg.qr(torch.randn(24, 3, generator=make_generator(7, "initial", "anchors"))).Q.T
        losses.append(F.cross_entropy(head(rows), torch.arange(3)).item())
    assert losses[1] < losses[0]


def test_without_anchors_nothing_is_sent_beside_the_model(tmp_path):
    run(tmp_path, {"lam": 0.0, "calibration": False}, rounds=1)
    sent = [name for name in Store(tmp_path / "state" / "site-1").latest().tensors if name.startswith("reply/")]
    assert all(name.startswith("reply/model/") for name in sent)
