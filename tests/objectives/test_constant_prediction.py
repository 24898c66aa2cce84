"""Tests of the detection of constant predictions, for each kind of task."""

import pytest
import torch

from medfl.objectives import Binary, Multiclass, Multilabel, Regression, Segmentation

NAN = float("nan")
FINDINGS = "the same findings"


def judge(objective, outputs, targets):
    outputs, targets = torch.tensor(outputs), torch.tensor(targets)
    return objective.scoring_inputs(outputs, targets, objective.metrics), objective.scoring_targets(targets)


@pytest.mark.parametrize(
    ("objective", "outputs", "targets", "words", "contradicted"),
    [
        (Multiclass(3), [[0.0, 2.0, 1.0], [0.5, 0.6, 0.0], [0.0, 9.0, 0.0]], [1, 0, 2], "the class 'b'", 2),
        (Binary(), [[-3.0], [-0.1], [-1.0]], [0, 1, 0], "the class 'a'", 1),
        (Binary(logits=2), [[0.0, 1.0], [0.0, 0.5]], [0, 0], None, 0),  # the labels are of one class only
        (Multiclass(3), [[2.0, 0.0, 0.0], [0.0, 0.1, 0.0]], [0, 1], None, 0),
        (Multiclass(3), [[NAN, 0.0, 0.0], [NAN, 0.0, 0.0]], [0, 1], None, 0),  # it diverged
        (Multiclass(3), [[2.0, 0.0, 0.0]], [1], None, 0),
        # the third finding has one label only, the second is unlabelled once
        (Multilabel(3), [[1.0, -1.0, 2.0], [2.0, -3.0, -2.0]], [[1.0, NAN, 1.0], [0.0, 1.0, 1.0]], FINDINGS, 1),
        (Multilabel(2), [[1.0, -1.0], [2.0, 3.0]], [[1.0, 0.0], [0.0, 1.0]], None, 0),  # one finding of two
        (Regression(1), [[0.25], [0.25], [0.25]], [[1.0], [2.0], [3.0]], "the same value", 2),
        (Regression(1), [[0.25], [0.26]], [[1.0], [2.0]], None, 0),
        (Regression(1), [[0.25], [0.25]], [[2.0], [2.0]], None, 0),
    ],
)  # fmt: skip
def test_by_hand(objective, outputs, targets, words, contradicted):
    predictions, kept = judge(objective, outputs, targets)
    answer = objective.constant_answer(predictions, kept, ("a", "b", "c"))
    assert (answer.words, answer.contradicted) == (words, contradicted) if words else answer is None


@pytest.mark.parametrize("overlapping", [False, True])
def test_masks_that_are_all_empty(overlapping):
    objective = Segmentation(channels=1 if overlapping else 2, overlapping=overlapping)
    targets = torch.zeros(3, 1, 4, 4, dtype=torch.int64)
    empty = torch.full((3, objective.outputs, 4, 4), -1.0)
    if not overlapping:
        empty[:, 0] = 1
    metrics = objective.metrics
    none = objective.constant_answer(
        objective.scoring_inputs(empty, targets, metrics), objective.scoring_targets(targets)
    )
    assert none is None, "no case has anything to draw"
    targets[:2, 0, 1] = 1
    answer = objective.constant_answer(
        objective.scoring_inputs(empty, targets, metrics), objective.scoring_targets(targets)
    )
    assert (answer.words, answer.contradicted) == ("an empty mask", 2)
    drawn = empty.clone()
    drawn[2, -1, 0, 0] = 3
    assert (
        objective.constant_answer(objective.scoring_inputs(drawn, targets, metrics), objective.scoring_targets(targets))
        is None
    )


def test_no_cases_have_no_answer():
    for objective in (Multiclass(3), Multilabel(2), Regression(1), Segmentation()):
        assert objective.constant_answer(torch.empty(0, 0), torch.empty(0, 0)) is None
