"""FedDr+: the simplex, both terms of the loss, and the head that stays."""

import pytest
import torch
from refusals import refused

from medfl.errors import SettingsError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, make_task
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
