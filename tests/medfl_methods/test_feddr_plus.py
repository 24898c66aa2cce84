"""FedDr+: the simplex, both terms of the loss, and the head that stays."""

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_sites, make_task
from medfl_methods.feddr_plus import dot_regression, feature_distillation, simplex

REGISTRY = load_plugins()


def run(folder, args=None, **options):
    return Case(REGISTRY, "feddr_plus", args or {}).run(folder, **options)


def drawn(classes, features):
    with torch.random.fork_rng():
        return simplex(classes, features)


@pytest.mark.parametrize(("classes", "features"), [(3, 2), (3, 24), (2, 1), (10, 9)])
def test_rows_have_length_1_equal_angles_and_sum_0(classes, features):
    rows = drawn(classes, features)
    assert rows.shape == (classes, features)
    expected = classes / (classes - 1) * (torch.eye(classes) - 1 / classes)
    torch.testing.assert_close(rows @ rows.T, expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(rows.sum(0), torch.zeros(features), atol=1e-6, rtol=0)


def test_too_few_features_are_refused():
    with refused(SettingsError, "too_few_features", classes=3, minimum=2, found=1):
        drawn(3, 1)


def test_the_terms_are_those_of_the_formulas():
    features = torch.tensor([[1.0, 1.0]])
    assert dot_regression(features, torch.tensor([[1.0, 0.0]])).item() == pytest.approx(0.0428932188, abs=1e-8)
    received = torch.tensor([[1.0, 3.0]])
    assert feature_distillation(features, received, "l2").item() == 2.0
    assert feature_distillation(features, received, "cos").item() == pytest.approx(1 - 4 / 20**0.5)


def test_one_step_is_that_of_the_formulas(tmp_path):
    """Images of one site in one batch: the first step sees the received model itself, so the second term is 0."""
    sites, task = make_sites({"a": 8}), make_task("plain")
    result = run(tmp_path, {"beta": 0.7}, task=task, sites=sites, rounds=1, batch_size=8)
    after, begun = result.outcome.models["global"].tensors, task.initial(7)
    images, labels = sites["a"].train.batch(torch.arange(8))
    model = task.load(begun)
    rows = after["head.weight"]
    cosines = F.normalize(model.body(images), dim=1) @ rows.T
    (0.7 * 0.5 * (cosines[torch.arange(8), labels] - 1).square().mean()).backward()
    for name, p in model.body.named_parameters(prefix="body"):
        torch.testing.assert_close(after[name], p.detach() - 0.1 * p.grad, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("args", [{}, {"fd": "cos"}, {"ce_mode": "ce"}, {"fd_weight": 0.0}])
def test_the_head_never_changes(tmp_path, args):
    result = run(tmp_path, args)
    global_, begun = result.outcome.models["global"].tensors, run(tmp_path / "begun", args, rounds=1, epochs=0)
    for name in ("head.weight", "head.bias"):
        assert torch.equal(global_[name], begun.outcome.models["global"].tensors[name])
    assert not torch.equal(global_["body.0.weight"], make_task().initial(7)["body.0.weight"])


def test_noise_leaves_the_head_alone(tmp_path):
    pytest.importorskip("opacus")
    privacy = {"unit": "site", "epsilon": 8.0, "delta": 1e-3, "clip": 1.0}
    head = run(tmp_path, task=make_task("plain"), privacy=privacy).outcome.models["global"].tensors["head.weight"]
    torch.testing.assert_close(head @ head.T, 1.5 * torch.eye(3) - 0.5, atol=1e-6, rtol=0)


def test_distillation_holds_features_near_the_received_ones(tmp_path):
    far = []
    for weight in (0.0, 20.0):
        begun, task = make_task("plain").initial(7), make_task("plain")
        result = run(tmp_path / str(weight), {"fd_weight": weight, "beta": 0.5}, task=task, rounds=1, epochs=3)
        after = result.outcome.models["global"].tensors
        images = make_sites()["site-1"].train.batch(torch.arange(21))[0]
        features = [task.load(tensors).body(images).detach() for tensors in (begun, after)]
        far.append(float((features[0] - features[1]).square().mean()))
    assert far[1] < far[0]


def test_weights_of_classes_are_refused(tmp_path):
    with refused(SettingsError, "incompatible_settings", settings=["ce_mode", "balance"]):
        run(tmp_path, balance="loss")
