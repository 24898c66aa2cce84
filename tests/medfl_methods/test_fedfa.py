"""FedFA: the distance to anchors, how they move at a site and at the server, and the calibration of heads."""

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_site
from medfl.types import SERVER
from medfl_methods.fedfa.anchors import OwnAnchors, anchor_loss

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedfa", args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def anchors_of(tensors, prefix):
    return torch.stack([tensors[f"{prefix}{label}"] for label in range(3)])


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


def test_a_class_that_nobody_has_keeps_its_anchor(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_site(5, "b", torch.full((5,), 2))}
    run(tmp_path / "begun", sites=sites, rounds=1, epochs=0)
    run(tmp_path / "run", sites=sites)
    begun, after = (anchors_of(states(tmp_path / name, SERVER), "kept/anchors/") for name in ("begun", "run"))
    assert (begun == after).all(1).tolist() == [False, True, False]


def test_without_anchors_nothing_is_sent_beside_the_model(tmp_path):
    run(tmp_path, {"lam": 0.0, "calibration": False}, rounds=1)
    sent = [name for name in Store(tmp_path / "state" / "site-1").latest().tensors if name.startswith("reply/")]
    assert all(name.startswith("reply/model/") for name in sent)
