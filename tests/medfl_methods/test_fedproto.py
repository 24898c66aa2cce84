"""FedProto against hand-made numbers: means over sites, the distance, the nearest prototype; what it refuses."""

import math

import pytest
import torch

from medfl.engine.store import Store
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_site, make_sites
from medfl.toolkit.prototypes import mean_prototypes, nearest, pull, table
from medfl.types import SERVER

REGISTRY = load_plugins()
A = {"0": torch.tensor([1.0, 0.0]), "1": torch.tensor([0.0, 2.0])}
B = {"0": torch.tensor([3.0, 2.0])}


def run(folder, args=None, **options):
    return Case(REGISTRY, "fedproto", args or {}).run(folder, **options)


def states(folder, name):
    return Store(folder / "state" / name).latest().state().tensors


def test_a_common_prototype_is_the_mean_over_the_sites_that_own_the_class():
    means = mean_prototypes({"a": A, "b": B}, lambda site, label: 1)
    assert means["0"].tolist() == [2, 1]
    assert means["1"].tolist() == [0, 2]
    counts = {"a": [1, 5], "b": [3, 0]}
    counted = mean_prototypes({"a": A, "b": B}, lambda site, label: counts[site][int(label)])
    assert counted["0"].tolist() == [2.5, 1.5]


def test_the_distance_counts_images_of_unknown_classes_as_zero_in_the_mean():
    aims = table({"0": torch.tensor([2.0, 1.0]), "1": torch.tensor([0.0, 2.0])}, 3, "cpu")
    features = torch.tensor([[2.0, 2.0], [0.0, 0.0], [5.0, 5.0]], requires_grad=True)
    distance = pull(features, aims, torch.tensor([0, 1, 2]))
    assert distance.item() == pytest.approx(5 / 3)  # squared distances 1, 4, none
    assert distance.item() / 2 == pytest.approx(0.8333333333)
    distance.backward()
    assert features.grad[2].tolist() == [0, 0]
    assert bool(features.grad.isfinite().all())


def test_the_nearest_prototype_is_chosen_by_a_linear_layer():
    aims = torch.tensor([[1.0, 0.0], [math.nan, math.nan], [0.0, 2.0]])
    weight, bias = nearest(aims)
    features = torch.tensor([[0.9, 0.3], [0.1, 1.2], [-4.0, 9.0]])
    logits = features @ weight.T + bias
    assert logits.argmax(1).tolist() == [0, 2, 2]
    distances = torch.cdist(features, aims[[0, 2]]).square() / 2
    torch.testing.assert_close(logits[:, 0] - logits[:, 2], distances[:, 1] - distances[:, 0])


def test_sites_weigh_by_their_images_of_a_class_if_that_is_said(tmp_path):
    sites = {"a": make_site(6, "a", torch.zeros(6, dtype=torch.int64)), "b": make_sites({"b": 9})["b"]}
    run(tmp_path, {"weights": "counts"}, sites=sites, rounds=1)
    sent = {site: Store(tmp_path / "state" / site).latest().tensors["reply/proto/0"].double() for site in sites}
    counts = {site: int((splits.train.class_labels == 0).sum()) for site, splits in sites.items()}
    mean = sum(counts[site] * sent[site] for site in sites) / sum(counts.values())
    torch.testing.assert_close(states(tmp_path, SERVER)["kept/proto/0"], mean.float())


def test_a_class_that_nobody_sends_any_more_keeps_its_prototype(tmp_path):
    sites = make_sites({"a": 8})
    sites["b"] = make_site(6, "b", torch.zeros(6, dtype=torch.int64))
    run(tmp_path, sites=sites, rounds=1)
    before = states(tmp_path, SERVER)
    run(tmp_path, sites=sites, rounds=2, absent=lambda site, step: site == "a")
    after = states(tmp_path, SERVER)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"kept/proto/0"}


def test_the_nearest_prototype_scores_and_is_taken_home(tmp_path):
    result = run(tmp_path, {"inference": "prototype"})
    held = states(tmp_path, SERVER)
    model = result.models["site-1"]["personal"].tensors
    weight, bias = nearest(table({n.removeprefix("kept/proto/"): t for n, t in held.items()}, 3, "cpu"))
    assert torch.equal(model["head.weight"], weight)
    assert torch.equal(model["head.bias"], bias)
    assert torch.equal(model["body.0.weight"], states(tmp_path, "site-1")["body.0.weight"])
