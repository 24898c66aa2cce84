"""Metrics against scikit-learn on random data, and at their edges."""

import math

import pytest
import torch
from sklearn.metrics import accuracy_score, balanced_accuracy_score, roc_auc_score

from medfl.errors import ContractError, SettingsError
from medfl.metrics import METRICS, check_metrics
from medfl.metrics.auc import binary_auc


def case(n: int, classes: int, seed: int, ties: bool) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=g)
    logits = torch.randn(n, classes, generator=g) + torch.nn.functional.one_hot(labels, classes)
    return (logits.round() if ties else logits).softmax(dim=1), labels


def auc_by_sklearn(probabilities, labels, classes):
    columns = [1] if classes == 2 else range(classes)
    areas = [
        roc_auc_score((labels == c).numpy(), probabilities[:, c].numpy())
        for c in columns
        if 0 < int((labels == c).sum()) < len(labels)
    ]
    return sum(areas) / len(areas) if areas else math.nan


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n", "classes"), [(2, 2), (7, 2), (500, 2), (5, 8), (30, 3), (1000, 9)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_scikit_learn(n, classes, seed, ties):
    probabilities, labels = case(n, classes, seed, ties)
    predicted = probabilities.argmax(dim=1)
    expected = {
        "accuracy": accuracy_score(labels, predicted),
        "balanced_accuracy": balanced_accuracy_score(labels, predicted),
        "auc": auc_by_sklearn(probabilities, labels, classes),
    }
    for name, metric in METRICS.items():
        assert metric(probabilities, labels, classes) == pytest.approx(expected[name], abs=1e-12, nan_ok=True)


def test_auc_is_scikit_learns_macro_one_vs_rest():
    probabilities, labels = case(400, 5, 0, ties=False)
    expected = roc_auc_score(
        labels, probabilities.double() / probabilities.double().sum(1, keepdim=True), multi_class="ovr"
    )
    assert METRICS["auc"](probabilities, labels, 5) == pytest.approx(expected, abs=1e-3)


def test_auc_counts_pairs():
    scores, positive = torch.tensor([0.1, 0.4, 0.4, 0.4, 0.9]), torch.tensor([False, True, False, True, False])
    pairs = [1.0 if p > q else 0.5 if p == q else 0.0 for p in scores[positive] for q in scores[~positive]]
    assert binary_auc(scores, positive) == sum(pairs) / len(pairs)


def test_auc_of_constant_perfect_and_reversed_scores():
    labels = torch.tensor([0, 0, 1, 1, 1])
    right = torch.tensor([0.1, 0.2, 0.7, 0.8, 0.9])
    for scores, expected in ((torch.full((5,), 0.5), 0.5), (right, 1.0), (1 - right, 0.0)):
        assert METRICS["auc"](torch.stack([1 - scores, scores], dim=1), labels, 2) == expected


def test_balanced_accuracy_leaves_out_classes_without_images():
    probabilities = torch.eye(4)[torch.tensor([0, 0, 3, 1])]
    assert METRICS["balanced_accuracy"](probabilities, torch.tensor([0, 0, 0, 1]), 4) == pytest.approx((2 / 3 + 1) / 2)


def test_large_sets_are_exact():
    """Ranks of a million images are beyond float32."""
    labels = torch.arange(1_000_000) % 2
    scores = torch.arange(1_000_000, dtype=torch.float64) / 1_000_000
    expected = 0.5 + 1 / 1_000_000
    assert METRICS["auc"](torch.stack([1 - scores, scores], dim=1), labels, 2) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize("width", [0, 3])
def test_without_images(metric, width):
    assert math.isnan(metric(torch.empty(0, width), torch.empty(0, dtype=torch.int64), 3))


def test_one_image():
    probabilities, labels = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
    assert METRICS["accuracy"](probabilities, labels, 2) == 1.0
    assert METRICS["balanced_accuracy"](probabilities, labels, 2) == 1.0
    assert math.isnan(METRICS["auc"](probabilities, labels, 2))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_diverged_model_has_no_score(metric):
    probabilities, labels = case(20, 3, 0, ties=False)
    probabilities[4] = math.nan
    assert math.isnan(metric(probabilities, labels, 3))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_results_are_plain_floats(metric):
    assert type(metric(*case(20, 3, 0, ties=False), 3)) is float


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_what_does_not_fit_is_named(metric):
    with pytest.raises(ContractError, match=r"\(2, 3\), got \(2, 4\)"):
        metric(torch.rand(2, 4), torch.tensor([0, 1]), 3)
    with pytest.raises(ContractError, match=r"\[0, 3\), got \[0, 3\]"):
        metric(torch.rand(2, 3), torch.tensor([0, 3]), 3)


def test_unknown_metrics_come_with_the_nearest():
    check_metrics(METRICS)
    check_metrics([])
    with pytest.raises(SettingsError, match="'accurracy'.*Did you mean 'accuracy'"):
        check_metrics(["auc", "accurracy"])
