"""Tests of methods that share class prototypes or anchors: means, distances and margins by hand."""

import math

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_site, make_sites, states
from medfl.toolkit.prototypes import mean_prototypes, nearest_prototype_layer, prototype_distance, prototype_table
from medfl.types import SERVER
from medfl_methods.fedfa.method import OwnAnchors, anchor_loss
from medfl_methods.fedtgp import adaptive_margin, contrastive_loss

REGISTRY = load_plugins()


# ---- FedProto

A = {"0": torch.tensor([1.0, 0.0]), "1": torch.tensor([0.0, 2.0])}
B = {"0": torch.tensor([3.0, 2.0])}


def run_fedproto(folder, args=None, **options):
    return Case(REGISTRY, "fedproto", args or {}).run(folder, **options)


def test_fedproto_global_prototype_is_the_mean_over_sites_with_the_class():
    means = mean_prototypes({"a": A, "b": B}, lambda site, label: 1)
    assert means["0"].tolist() == [2, 1]
    assert means["1"].tolist() == [0, 2]
    counts = {"a": [1, 5], "b": [3, 0]}
    counted = mean_prototypes({"a": A, "b": B}, lambda site, label: counts[site][int(label)])
    assert counted["0"].tolist() == [2.5, 1.5]


def test_fedproto_images_without_a_prototype_count_as_zero_in_the_mean():
    aims = prototype_table({"0": torch.tensor([2.0, 1.0]), "1": torch.tensor([0.0, 2.0])}, 3, "cpu")
    features = torch.tensor([[2.0, 2.0], [0.0, 0.0], [5.0, 5.0]], requires_grad=True)
    distance = prototype_distance(features, aims, torch.tensor([0, 1, 2]))
    assert distance.item() == pytest.approx(5 / 3)  # squared distances 1, 4, none
    assert distance.item() / 2 == pytest.approx(0.8333333333)
    distance.backward()
    assert features.grad[2].tolist() == [0, 0]
    assert bool(features.grad.isfinite().all())


def test_fedproto_linear_layer_chooses_the_nearest_prototype():
    aims = torch.tensor([[1.0, 0.0], [math.nan, math.nan], [0.0, 2.0]])
    weight, bias = nearest_prototype_layer(aims)
    features = torch.tensor([[0.9, 0.3], [0.1, 1.2], [-4.0, 9.0]])
    logits = features @ weight.T + bias
    assert logits.argmax(1).tolist() == [0, 2, 2]
    distances = torch.cdist(features, aims[[0, 2]]).square() / 2
    torch.testing.assert_close(logits[:, 0] - logits[:, 2], distances[:, 1] - distances[:, 0])


def test_fedproto_sites_can_be_weighted_by_their_images_of_a_class(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_sites({"b": 9})["b"]}
    run_fedproto(tmp_path, {"weights": "counts"}, sites=sites, rounds=1)
    sent = {site: Store(tmp_path / "state" / site).latest().tensors["reply/proto/0"].double() for site in sites}
    counts = {site: int((splits.train.class_labels == 0).sum()) for site, splits in sites.items()}
    mean = sum(counts[site] * sent[site] for site in sites) / sum(counts.values())
    torch.testing.assert_close(states(tmp_path)[SERVER]["kept/proto/0"], mean.float())


def test_fedproto_class_without_new_prototypes_keeps_its_prototype(tmp_path):
    sites = make_sites({"a": 8})
    sites["b"] = make_site(6, "b", torch.zeros(6, dtype=torch.int64))
    run_fedproto(tmp_path, sites=sites, rounds=1)
    before = states(tmp_path)[SERVER]
    run_fedproto(tmp_path, sites=sites, rounds=2, unavailable=lambda site, step: site == "a")
    after = states(tmp_path)[SERVER]
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"kept/proto/0"}


def test_fedproto_nearest_prototype_is_evaluated_and_exported(tmp_path):
    result = run_fedproto(tmp_path, {"inference": "prototype"})
    held = states(tmp_path)[SERVER]
    model = result.models["site-1"]["personal"].tensors
    weight, bias = nearest_prototype_layer(
        prototype_table({n.removeprefix("kept/proto/"): t for n, t in held.items()}, 3, "cpu")
    )
    assert torch.equal(model["head.weight"], weight)
    assert torch.equal(model["head.bias"], bias)
    assert torch.equal(model["body.0.weight"], states(tmp_path)["site-1"]["body.0.weight"])


# ---- FedTGP

FEDTGP_QUICK = {"server_epochs": 3}


def run_fedtgp(folder, args=None, **options):
    return Case(REGISTRY, "fedtgp", FEDTGP_QUICK | (args or {})).run(folder, **options)


def test_fedtgp_margin_is_the_largest_distance_to_a_nearest_class():
    means = torch.tensor([[0.0], [5.0], [125.0]])  # gaps 5, 5, 120
    assert adaptive_margin(means, 100.0) == 100.0
    assert adaptive_margin(means, 200.0) == 120.0
    assert adaptive_margin(means[:2], 100.0) == 5.0
    assert adaptive_margin(means[:1], 100.0) == 100.0


def test_fedtgp_loss_is_the_cross_entropy_of_distances_and_margin():
    prototypes = torch.tensor([[0.0, 0.0], [3.0, 4.0]], requires_grad=True)
    rows, labels = torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([0, 1])
    losses = [float(contrastive_loss(rows, prototypes, labels, room).detach()) for room in (0.0, 2.0, 5.0)]
    assert losses == pytest.approx([math.log1p(math.exp(room - 5)) for room in (0.0, 2.0, 5.0)])
    assert losses == sorted(losses), "a larger margin, a larger loss"


def test_fedtgp_equal_prototypes_give_no_nan():
    prototypes = torch.zeros(3, 40, requires_grad=True)
    loss = contrastive_loss(torch.zeros(30, 40), prototypes, torch.zeros(30, dtype=torch.int64), 1.0)
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(prototypes.grad.isfinite().all())


def test_fedtgp_only_classes_that_a_site_sent_have_a_prototype(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_site(5, "b", torch.full((5,), 2))}
    run_fedtgp(tmp_path, sites=sites, rounds=2)
    names = {name for name in states(tmp_path)[SERVER] if name.startswith("kept/proto/")}
    assert names == {"kept/proto/0", "kept/proto/2"}


def test_fedtgp_diverged_training_keeps_the_prototypes(tmp_path, caplog):
    run_fedtgp(tmp_path, {"server_lr": 1e30}, rounds=2)
    assert "prototypes diverged" in caplog.text
    assert all(bool(tensor.isfinite().all()) for tensor in states(tmp_path)[SERVER].values())
    assert not any(name.startswith("kept/proto/") for name in states(tmp_path)[SERVER])


# ---- FedFA


def run_fedfa(folder, args=None, **options):
    return Case(REGISTRY, "fedfa", args or {}).run(folder, **options)


def anchors_of(tensors, prefix):
    return torch.stack([tensors[f"{prefix}{label}"] for label in range(3)])


def test_fedfa_distance_is_the_mean_over_classes_of_means_over_images():
    features, anchors = torch.tensor([[1.0, 0.0], [0.0, 3**0.5], [0.0, 2.0]]), torch.zeros(2, 2)
    labels = torch.tensor([0, 0, 1])  # squared distances 1, 3 and 4
    assert anchor_loss(features, anchors, labels).item() == pytest.approx(3.0)


def test_fedfa_site_anchors_use_the_mean_over_batches_with_the_class():
    own = OwnAnchors(torch.tensor([[1.0, 1.0], [0.0, 0.0], [5.0, 5.0]]))
    own.add_batch(torch.tensor([[2.0, 0.0], [4.0, 0.0], [0.0, 8.0]]), torch.tensor([0, 0, 1]))
    own.add_batch(torch.tensor([[1.0, 1.0]]), torch.tensor([0]))
    own.update_anchors(0.5)
    own.update_anchors(0.5)  # nothing was seen since
    assert {label: row.tolist() for label, row in own.own_class_anchors().items()} == {
        "0": [1.5, 0.75],
        "1": [0.0, 4.0],
    }


@pytest.mark.parametrize("init", ["orthogonal", "one_hot"])
def test_fedfa_initial_anchors_have_different_directions(tmp_path, init):
    run_fedfa(tmp_path, {"anchor_init": init}, rounds=1, epochs=0)
    anchors = anchors_of(states(tmp_path)[SERVER], "kept/anchors/")
    torch.testing.assert_close(anchors @ anchors.T, torch.eye(3), atol=1e-6, rtol=0)
    assert torch.equal(anchors, torch.eye(3, 24)) == (init == "one_hot")


def test_fedfa_class_without_images_keeps_its_anchor(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_site(5, "b", torch.full((5,), 2))}
    run_fedfa(tmp_path / "begun", sites=sites, rounds=1, epochs=0)
    run_fedfa(tmp_path / "run", sites=sites)
    begun, after = (anchors_of(states(tmp_path / name)[SERVER], "kept/anchors/") for name in ("begun", "run"))
    assert (begun == after).all(1).tolist() == [False, True, False]


def test_fedfa_without_anchors_only_the_model_is_sent(tmp_path):
    run_fedfa(tmp_path, {"lam": 0.0, "calibration": False}, rounds=1)
    sent = [name for name in Store(tmp_path / "state" / "site-1").latest().tensors if name.startswith("reply/")]
    assert all(name.startswith("reply/model/") for name in sent)
