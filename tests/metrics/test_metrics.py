"""Tests of metrics against scikit-learn on random data, and at their limits."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from metric_cases import CASES, case, reference
from refusals import refused
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support, roc_auc_score

from medfl.errors import ContractError
from medfl.metrics import LOWER_IS_BETTER_METRICS, METRICS, confusion, worst
from medfl.metrics.auc import binary_auc

BY_CLASS = ("precision", "recall", "f1", "specificity")


def predicting(labels, predicted, classes, confidence=0.9):
    """Return probabilities that predict the given classes."""
    probabilities = torch.full((len(labels), classes), (1 - confidence) / (classes - 1), dtype=torch.float64)
    probabilities[torch.arange(len(labels)), torch.tensor(predicted)] = confidence
    return probabilities, torch.tensor(labels), classes


# ---- against an independent reference


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("n", "classes"), [(2, 2), (7, 2), (500, 2), (5, 8), (30, 3), (1000, 9)])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_scikit_learn(n, classes, seed, ties):
    probabilities, labels = case(n, classes, seed, ties)
    for name, metric in METRICS.items():
        expected = reference(name, probabilities, labels, classes)
        assert metric(probabilities, labels, classes) == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@settings(max_examples=25, deadline=None, derandomize=True)
@given(CASES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_as_scikit_learn_with_absent_classes(example):
    for name, metric in METRICS.items():
        assert metric(*example) == pytest.approx(reference(name, *example), abs=1e-12, nan_ok=True), name
    probabilities, labels, classes = example
    expected = confusion_matrix(labels, probabilities.argmax(dim=1), labels=range(classes))
    assert confusion(*example).tolist() == expected.tolist()


def test_macro_values_are_scikit_learns():
    probabilities, labels = case(400, 5, 0, ties=False)
    auc = roc_auc_score(labels, probabilities.double() / probabilities.double().sum(1, keepdim=True), multi_class="ovr")
    assert METRICS["auc"](probabilities, labels, 5) == pytest.approx(auc, abs=1e-3)
    macro = precision_recall_fscore_support(labels, probabilities.argmax(dim=1), average="macro")[:3]
    assert [METRICS[name](probabilities, labels, 5) for name in BY_CLASS[:3]] == pytest.approx(macro, abs=1e-12)


# ---- invariances and identities


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CASES, st.randoms(use_true_random=False))
def test_the_order_and_number_of_copies_of_images_do_not_matter(example, random):
    probabilities, labels, classes = example
    order = list(range(len(labels))) * 3
    random.shuffle(order)
    for name, metric in METRICS.items():
        again = metric(probabilities[order], labels[order], classes)
        assert again == pytest.approx(metric(*example), abs=1e-12, nan_ok=True), name


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CASES.filter(lambda example: example[2] > 2), st.randoms(use_true_random=False))
def test_the_names_of_more_than_two_classes_do_not_matter(example, random):
    probabilities, labels, classes = example
    top = probabilities.topk(2, dim=1).values
    keep = top[:, 0] > top[:, 1]  # of equal probabilities the first class counts, which a new order changes
    names = list(range(classes))
    random.shuffle(names)
    renamed = torch.empty_like(probabilities)
    renamed[:, names] = probabilities
    for name, metric in METRICS.items():
        expected = metric(probabilities[keep], labels[keep], classes)
        score = metric(renamed[keep], torch.tensor(names)[labels[keep]], classes)
        assert score == pytest.approx(expected, abs=1e-12, nan_ok=True), name


@settings(max_examples=60, deadline=None, derandomize=True)
@given(CASES.filter(lambda example: example[2] == 2 and len(set(example[1].tolist())) == 2))
def test_identities_of_two_classes(example):
    _, labels, _ = example
    value = {name: metric(*example) for name, metric in METRICS.items()}
    prevalence = float((labels == 1).double().mean())
    mixed = prevalence * value["recall"] + (1 - prevalence) * value["specificity"]
    assert value["accuracy"] == pytest.approx(mixed, abs=1e-12)
    assert value["balanced_accuracy"] == pytest.approx((value["recall"] + value["specificity"]) / 2, abs=1e-12)
    both = value["precision"] + value["recall"]
    harmonic = 2 * value["precision"] * value["recall"] / both if both else 0.0
    assert value["f1"] == pytest.approx(harmonic, abs=1e-12)


def test_two_classes_as_three_of_which_one_is_empty():
    """Values are means over two classes if the third class has no images."""
    two = predicting([0, 0, 0, 1, 1], [0, 0, 1, 1, 0], 2)
    three = predicting([0, 0, 0, 1, 1], [0, 0, 1, 1, 0], 3)
    assert METRICS["recall"](*two) == 1 / 2
    assert METRICS["specificity"](*two) == pytest.approx(2 / 3)
    assert METRICS["recall"](*three) == METRICS["specificity"](*three) == pytest.approx((2 / 3 + 1 / 2) / 2)
    assert METRICS["precision"](*three) == pytest.approx((2 / 3 + 1 / 2) / 2)


# ---- closed forms


def test_confusion_has_the_truth_in_its_rows():
    example = predicting([0, 0, 1, 1, 1, 2], [0, 2, 1, 1, 0, 2], 3)
    assert confusion(*example).tolist() == [[1, 0, 1], [1, 2, 0], [0, 0, 1]]
    assert confusion(*example).dtype == torch.int64
    assert METRICS["precision"](*example) == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert METRICS["recall"](*example) == pytest.approx((1 / 2 + 2 / 3 + 1) / 3)
    assert METRICS["f1"](*example) == pytest.approx((2 / 4 + 4 / 5 + 2 / 3) / 3)
    assert METRICS["specificity"](*example) == pytest.approx((3 / 4 + 1 + 4 / 5) / 3)


def test_a_class_that_is_never_predicted_has_precision_0():
    assert METRICS["precision"](*predicting([0, 0, 1], [0, 0, 0], 2)) == 0.0
    assert METRICS["f1"](*predicting([0, 0, 1], [0, 0, 0], 2)) == 0.0
    assert METRICS["precision"](*predicting([0, 1, 2], [0, 1, 1], 3)) == pytest.approx((1 + 1 / 2 + 0) / 3)


def test_without_positives_or_negatives():
    negatives, positives = predicting([0, 0], [0, 1], 2), predicting([1, 1], [0, 1], 2)
    assert [METRICS[name](*negatives) for name in BY_CLASS] == pytest.approx([math.nan] * 3 + [0.5], nan_ok=True)
    assert [METRICS[name](*positives) for name in BY_CLASS] == pytest.approx([1.0, 0.5, 2 / 3, math.nan], nan_ok=True)
    assert math.isnan(METRICS["specificity"](*predicting([2, 2], [2, 0], 3)))


def test_of_equal_probabilities_the_first_class_counts():
    probabilities = torch.tensor([[0.4, 0.2, 0.4], [0.2, 0.4, 0.4]])
    assert confusion(probabilities, torch.tensor([2, 1]), 3).tolist() == [[0, 0, 0], [0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize(
    ("confidence", "right", "expected"),
    [
        ([0.75, 0.75, 0.75, 0.75], [1, 1, 1, 0], 0.0),
        ([1.0, 1.0], [1, 0], 0.5),
        ([0.9, 0.6], [0, 1], (0.9 + 0.4) / 2),
        ([0.62, 0.66], [1, 0], abs(0.38 - 0.66) / 2),
        ([0.62, 0.68], [1, 0], (0.38 + 0.68) / 2),
    ],
    ids=["calibrated", "sure and half wrong", "two bins", "one bin: gaps cancel", "neighbouring bins"],
)
def test_calibration_error(confidence, right, expected):
    top = torch.tensor(confidence, dtype=torch.float64)
    labels = 1 - torch.tensor(right)
    assert METRICS["ece"](torch.stack([top, 1 - top], dim=1), labels, 2) == pytest.approx(expected)


def test_an_edge_of_a_calibration_bin_belongs_to_the_bin_below():
    edge = 10 / 15
    for beside, expected in ((0.65, abs(1 - 0.65 - edge) / 2), (0.68, (1 - 0.68 + edge) / 2)):
        top = torch.tensor([edge, beside], dtype=torch.float64)
        probabilities = torch.stack([top, 1 - top], dim=1)
        assert METRICS["ece"](probabilities, torch.tensor([1, 0]), 2) == pytest.approx(expected)


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
    """Ranks of a million images exceed the precision of float32."""
    labels = torch.arange(1_000_000) % 2
    scores = torch.arange(1_000_000, dtype=torch.float64) / 1_000_000
    expected = 0.5 + 1 / 1_000_000
    assert METRICS["auc"](torch.stack([1 - scores, scores], dim=1), labels, 2) == pytest.approx(expected, abs=1e-12)


# ---- edges, of every metric


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
@pytest.mark.parametrize("width", [0, 3])
def test_without_images(metric, width):
    assert math.isnan(metric(torch.empty(0, width), torch.empty(0, dtype=torch.int64), 3))


def test_one_image():
    probabilities, labels = torch.tensor([[0.2, 0.8]]), torch.tensor([1])
    scores = {name: metric(probabilities, labels, 2) for name, metric in METRICS.items()}
    assert scores == pytest.approx(
        dict.fromkeys(METRICS, 1.0) | {"auc": math.nan, "specificity": math.nan, "ece": 0.2}, nan_ok=True
    )


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_a_diverged_model_has_no_score(metric):
    probabilities, labels = case(20, 3, 0, ties=False)
    probabilities[4] = math.nan
    assert math.isnan(metric(probabilities, labels, 3))


@pytest.mark.parametrize("metric", METRICS.values(), ids=METRICS)
def test_results_are_plain_floats(metric):
    assert type(metric(*case(20, 3, 0, ties=False), 3)) is float


@pytest.mark.parametrize("metric", [*METRICS.values(), confusion], ids=[*METRICS, "confusion"])
def test_what_does_not_fit_is_named(metric):
    with refused(ContractError, "wrong_shape", expected=[2, 3], found=[2, 4]):
        metric(torch.rand(2, 4), torch.tensor([0, 1]), 3)
    with refused(ContractError, "wrong_label", classes=3, found=[0, 3]):
        metric(torch.rand(2, 3), torch.tensor([0, 3]), 3)


def test_the_worst_value_knows_which_way_is_up():
    values = [0.4, math.nan, 0.1, 0.9]
    assert {worst(name, values) for name in METRICS if name not in LOWER_IS_BETTER_METRICS} == {0.1}
    assert worst("ece", values) == 0.9
    assert math.isnan(worst("accuracy", [math.nan]))
    assert math.isnan(worst("ece", []))
