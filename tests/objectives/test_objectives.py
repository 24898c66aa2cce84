"""Tests of objectives: limit cases, closed forms, and invalid targets."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest
import torch
from refusals import refused
from torch.nn import functional as F

from medfl.errors import ContractError, DataError, PluginError, SettingsError
from medfl.metrics import METRICS
from medfl.objectives import (
    Binary,
    Multiclass,
    Multilabel,
    Objective,
    Regression,
    Segmentation,
    Survival,
    check_metrics,
    objective_class,
    read_objective,
)
from medfl.objectives.segmentation import SPACING_OF_EACH_CASE
from medfl.plugins import load_plugins

NAN = math.nan
EACH = (
    Multiclass(3),
    Binary(),
    Binary(logits=2),
    Multilabel(4),
    Regression(2),
    Survival(),
    Segmentation(3),
    Segmentation(2, overlapping=True),
)


def some(objective: Objective, n: int = 12, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return outputs and targets of n cases; images have the shape (1, 6, 5)."""
    draw = torch.Generator().manual_seed(seed)
    shape = objective.target_shape((1, 6, 5))
    outputs = torch.randn(n, *objective.output_shape((1, 6, 5)), generator=draw)
    if isinstance(objective, Survival):
        targets = torch.stack([torch.rand(n, generator=draw) + 0.1, (torch.arange(n) % 3 > 0).float()], 1)
    elif isinstance(objective, Regression):
        targets = torch.randn(n, *shape, generator=draw)
    else:
        high = objective.outputs if isinstance(objective, Multiclass | Segmentation) and objective.outputs > 2 else 2
        targets = torch.randint(high, (n, *shape), generator=draw)
    return outputs, targets.to(objective.target_type)


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_each_objective_keeps_its_own_rules(objective: Objective) -> None:
    outputs, targets = some(objective)
    objective.check_targets(targets, "here")
    objective.check_outputs(outputs, targets)
    loss = objective.default_loss()(outputs.requires_grad_(), targets)
    assert loss.dim() == 0
    assert bool(torch.autograd.grad(loss, outputs)[0].abs().sum() > 0)
    names = tuple(objective.scores)
    predictions = objective.scoring_inputs(outputs.detach(), targets, names)
    assert predictions.shape == (12, len(objective.columns(names)))
    kept = objective.scoring_targets(targets)
    assert kept.reshape(12, -1).shape[1] == len(objective.scoring_target_columns)
    assert all(math.isfinite(objective.score(name, predictions, kept)) for name in objective.metrics)
    strata = objective.strata(targets)
    assert (strata.shape, strata.dtype) == ((12,), torch.int64)
    assert len(objective.counts(targets)) == len(objective.titles)
    assert sum(objective.counts(targets)) == 12
    assert (objective.class_labels(targets) is not None) == objective.has_class_labels
    assert objective.can_train_on(targets)
    assert not objective.can_train_on(targets[:0])


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_a_case_that_counts_twice_is_a_case_that_is_there_twice(objective: Objective) -> None:
    outputs, targets = some(objective)
    names = tuple(objective.scores)
    predictions, kept = objective.scoring_inputs(outputs, targets, names), objective.scoring_targets(targets)
    rows = torch.tensor([0, 0, 0, 1, 2, 2, 4, 5, 6, 7, 8, 9, 10, 11])
    weights = torch.bincount(rows, minlength=12).double()[:, None]
    for name in names:
        often = objective.weighted_score(name, predictions, kept, weights)[0]
        assert float(often) == pytest.approx(objective.score(name, predictions[rows], kept[rows]), nan_ok=True), name


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_an_objective_goes_through_json(objective: Objective) -> None:
    assert read_objective(json.loads(json.dumps(objective.facts))) == objective


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_soft_targets_are_probabilities_of_alternatives(objective: Objective) -> None:
    outputs, targets = some(objective)
    soft = objective.soft_targets(outputs, 2.0)
    assert (soft is not None) == objective.has_soft_targets
    if soft is None:
        with refused(ContractError, "objective_not_supported", expected="soft_targets"):
            objective.true_alternatives(targets)
        return
    torch.testing.assert_close(soft.sum(1), torch.ones_like(soft.sum(1)))
    assert objective.true_alternatives(targets).shape == soft.sum(1).shape
    each = objective.cross_entropy(outputs, targets, per_case=True)
    assert each.shape == (12,)
    torch.testing.assert_close(each.mean(), objective.cross_entropy(outputs, targets))
    agreement = objective.case_accuracy(outputs, targets)
    assert (agreement.shape, agreement.dtype) == ((12,), torch.float64)
    assert bool(((agreement >= 0) & (agreement <= 1)).all())


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_without_cases_nothing_is_defined(objective: Objective) -> None:
    outputs, targets = some(objective)
    predictions, kept = (
        objective.scoring_inputs(outputs, targets, objective.metrics),
        objective.scoring_targets(targets),
    )
    for name in objective.metrics:
        assert math.isnan(objective.score(name, predictions[:0], kept[:0]))
        assert math.isnan(objective.score(name, objective.scoring_inputs(outputs * NAN, targets, (name,)), kept)), (
            "diverged"
        )


@pytest.mark.parametrize("objective", EACH, ids=repr)
def test_a_network_of_another_size_is_refused(objective: Objective) -> None:
    outputs, targets = some(objective)
    with refused(ContractError, "wrong_shape", objective=objective.name):
        objective.check_outputs(torch.cat([outputs, outputs], dim=1), targets)


def test_binary_with_two_logits_is_two_classes() -> None:
    outputs, targets = some(Binary(logits=2), 40)
    two, classes = Binary(logits=2), Multiclass(2)
    assert torch.equal(two.predictions(outputs), classes.predictions(outputs))
    assert torch.equal(two.default_loss()(outputs, targets), classes.default_loss()(outputs, targets))
    for name in METRICS:
        predictions = two.scoring_inputs(outputs, targets, ())
        assert two.score(name, predictions, targets) == pytest.approx(
            classes.score(name, predictions, targets), nan_ok=True
        )


def test_a_logit_is_worth_the_difference_of_two() -> None:
    outputs, targets = some(Binary(logits=2), 40)
    single = outputs[:, 1:] - outputs[:, :1]
    binary, two = Binary(), Binary(logits=2)
    torch.testing.assert_close(binary.predictions(single), two.predictions(outputs))
    torch.testing.assert_close(binary.default_loss()(single, targets), two.default_loss()(outputs, targets))
    expected = F.binary_cross_entropy_with_logits(single[:, 0], targets.float())
    torch.testing.assert_close(binary.default_loss()(single, targets), expected)
    torch.testing.assert_close(binary.cross_entropy(single, targets), expected)
    weighted = [kind.balanced_loss(kind.default_loss(), targets, "cpu") for kind in (binary, two)]
    torch.testing.assert_close(weighted[0](single, targets), weighted[1](outputs, targets))
    soft = binary.soft_targets(single, 3.0), two.soft_targets(outputs, 3.0)
    torch.testing.assert_close(*soft)


def test_sensitivity_and_brier_in_closed_form() -> None:
    outputs = torch.tensor([[0.0], [40.0], [-40.0], [40.0]])
    targets, binary = torch.tensor([1, 1, 1, 0]), Binary()
    predictions = binary.scoring_inputs(outputs, targets, ())
    assert binary.score("brier", predictions, targets) == pytest.approx((0.25 + 0 + 1 + 1) / 4)
    assert binary.score("sensitivity", predictions, targets) == pytest.approx(1 / 3), "0.5 is not above 0.5"
    assert binary.score("specificity", predictions, targets) == 0


def test_one_label_is_a_binary_task() -> None:
    outputs, targets = some(Binary(), 30)
    label, binary = Multilabel(1), Binary()
    findings = targets[:, None].float()
    torch.testing.assert_close(label.default_loss()(outputs, findings), binary.default_loss()(outputs, targets))
    predictions = label.scoring_inputs(outputs, findings, ()), binary.scoring_inputs(outputs, targets, ())
    torch.testing.assert_close(predictions[0][:, 0], predictions[1][:, 1])
    assert label.score("macro_auc", predictions[0], findings) == pytest.approx(
        binary.score("auc", predictions[1], targets)
    )
    torch.testing.assert_close(label.soft_targets(outputs, 2.0)[:, :, 0], binary.soft_targets(outputs, 2.0))


def test_what_is_not_labelled_counts_for_nothing() -> None:
    objective = Multilabel(2)
    targets = torch.tensor([[1.0, NAN], [0.0, 1.0], [1.0, 0.0]])
    outputs = torch.tensor([[2.0, 5.0], [-1.0, 1.0], [0.5, -1.0]])
    other = outputs.clone()
    other[0, 1] = -50.0
    loss = objective.default_loss()
    assert torch.equal(loss(outputs, targets), loss(other, targets))
    assert torch.equal(objective.cross_entropy(outputs, targets), objective.cross_entropy(other, targets))
    torch.testing.assert_close(objective.cross_entropy(outputs, targets), loss(outputs, targets))
    assert torch.equal(objective.case_accuracy(outputs, targets), torch.ones(3).double())
    assert objective.score("auc_1", objective.scoring_inputs(other, targets, ()), targets) == 1
    assert objective.strata(targets).tolist() == [1, 2, 1], "the second finding is rarer"


def test_a_mask_of_one_label_is_a_mask_of_two_classes() -> None:
    outputs, targets = some(Segmentation(2), 5)
    classes, label = Segmentation(2), Segmentation(1, overlapping=True)
    single = outputs[:, 1:] - outputs[:, :1]
    names = tuple(classes.scores)[:4]
    torch.testing.assert_close(
        classes.scoring_inputs(outputs, targets, names), label.scoring_inputs(single, targets, names), equal_nan=True
    )
    torch.testing.assert_close(classes.case_accuracy(outputs, targets), label.case_accuracy(single, targets))
    torch.testing.assert_close(classes.cross_entropy(outputs, targets), label.cross_entropy(single, targets))


def test_dice_is_a_mean_over_cases_and_not_over_voxels() -> None:
    objective = Segmentation(2)
    targets = torch.zeros(3, 1, 1, 8, dtype=torch.int64)
    targets[0, ..., :8] = 1
    targets[1, ..., :1] = 1
    outputs = torch.zeros(3, 2, 1, 8)
    outputs[0, 1] = 1.0  # all eight voxels right
    outputs[1:, 0] = 1.0  # the single voxel missed; nothing where nothing is
    predictions = objective.scoring_inputs(outputs, targets, ("dice",))
    assert objective.score("dice", predictions, objective.scoring_targets(targets)) == pytest.approx((1 + 0 + 1) / 3)
    assert objective.strata(targets).tolist() == [1, 1, 0]


def test_quantiles_and_events_are_strata() -> None:
    ages = torch.arange(100.0)[:, None]
    assert torch.bincount(Regression().strata(ages)).tolist() == [20] * 5
    assert Regression().strata(torch.ones(7, 1)).unique().tolist() == [0]
    assert Survival().strata(torch.tensor([[1.0, 0.0], [2.0, 1.0]])).tolist() == [0, 1]


def test_without_events_there_is_nothing_to_learn() -> None:
    targets = torch.tensor([[1.0, 0.0], [2.0, 0.0]])
    Survival().check_targets(targets, "here")
    assert not Survival().can_train_on(targets)
    assert Survival().can_train_on(torch.tensor([[1.0, 0.0], [2.0, 1.0]]))
    assert not Survival().can_train_on(torch.tensor([[2.0, 1.0]])), "alone an event says nothing"
    risks = torch.zeros(2, 1, requires_grad=True)
    loss = Survival().default_loss()(risks, targets)
    assert float(loss.detach()) == 0
    assert float(torch.autograd.grad(loss, risks)[0].abs().sum()) == 0


BAD = {
    "a class too many": (Multiclass(3), [0, 1, 3, 4], "wrong_label", {"found": 3, "row": 12, "count": 2}),
    "a class below 0": (Multiclass(3), [-1], "wrong_label", {"found": -1, "row": 10}),
    "neither there nor not": (Binary(), [0, 2], "wrong_label", {"found": 2, "row": 11}),
    "half a finding": (Multilabel(2), [[0.0, 0.5]], "wrong_finding", {"found": [0.0, 0.5], "row": 10}),
    "no label in a row": (Multilabel(2), [[0.0, 1.0], [NAN, NAN]], "missing_finding", {"row": 11}),
    "an unknown number": (Regression(1), [[NAN]], "not_finite", {"row": 10}),
    "an endless number": (Regression(1), [[math.inf]], "not_finite", {"found": [math.inf]}),
    "an unknown time": (Survival(), [[NAN, 1.0]], "invalid_time", {"row": 10}),
    "a time before the beginning": (
        Survival(),
        [[1.0, 1.0], [-2.0, 0.0]],
        "invalid_time",
        {"found": [-2.0, 0.0], "row": 11},
    ),
    "no time": (Survival(), [[0.0, 1.0]], "invalid_time", {"row": 10}),
    "an event and a half": (Survival(), [[1.0, 1.5]], "invalid_event", {"row": 10}),
    "an unknown event": (Survival(), [[1.0, NAN]], "invalid_event", {"row": 10}),
    "a voxel of no class": (Segmentation(3), [[[[0, 3]]]], "wrong_mask_value", {"row": 10}),
    "half a voxel": (Segmentation(1, overlapping=True), [[[[0.0, 0.5]]]], "wrong_mask_value", {"row": 10}),
}


@pytest.mark.parametrize(("objective", "targets", "code", "fields"), BAD.values(), ids=BAD.keys())
def test_targets_that_cannot_be_are_named(
    objective: Objective, targets: list[object], code: str, fields: dict[str, object]
) -> None:
    with refused(DataError, code, where="here", **fields):
        objective.check_targets(torch.tensor(targets), "here", start=10)


def test_objectives_that_cannot_be_are_named() -> None:
    for setting, value, wrong in (
        ("num_classes", 1, lambda: Multiclass(1)),
        ("logits", 3, lambda: Binary(logits=3)),
        ("num_labels", 0, lambda: Multilabel(0)),
        ("dimensions", 0, lambda: Regression(0)),
    ):
        with refused(SettingsError, "setting_out_of_range", setting=setting, found=value):
            wrong()
    with refused(SettingsError, "setting_out_of_range", setting="channels", minimum=2):
        Segmentation(1)
    with refused(PluginError, "unknown_choice", what="objective", choice="regresion"):
        read_objective({"name": "regresion"})
    with refused(SettingsError, "invalid_settings", required=["num_classes"], found=[]):
        read_objective({"name": "multiclass"})
    with refused(SettingsError, "unknown_choice", what="metric", choice="aucc"):
        Binary().check_metrics(["aucc"])
    with refused(SettingsError, "missing_classes", objective="regression"):
        Regression().balanced_loss(Regression().default_loss(), torch.zeros(2, 1), "cpu")
    with refused(ContractError, "objective_not_supported", expected="class_labels"):
        _ = Survival().classes


def test_the_list_of_objectives_is_whole() -> None:
    names = load_plugins().objectives
    assert {type(objective) for objective in EACH} == {objective_class(name) for name in names}
    for name in names:
        kind = objective_class(name)
        assert kind.example().scores
        assert dataclasses.is_dataclass(kind)
        assert kind.__doc__ is not None


def test_a_metric_that_no_objective_has_comes_with_the_nearest() -> None:
    check_metrics([name for objective in EACH for name in objective.scores])
    check_metrics(["auc_13", "dice_4"])
    for wrong, near in (("accurracy", "accuracy"), ("hd_95", "hd95"), ("auc_one", "auc_0")):
        with refused(SettingsError, "unknown_choice", what="metric", choice=wrong) as caught:
            check_metrics(["auc", wrong])
        assert f"Did you mean '{near}'" in str(caught.value)


@pytest.mark.parametrize("objective", EACH, ids=lambda objective: objective.name)
def test_what_a_report_sets_side_by_side_are_scores(objective: Objective) -> None:
    assert set(objective.headline) <= objective.scores.keys()
    assert objective.figures


def test_each_mask_is_measured_in_the_spacing_of_its_own_case():
    """Two voxels are two apart along the second axis: 2, 4 and 10 mm. A case without spacing has no distance."""
    outputs, targets = torch.full((4, 1, 5, 5), -1.0), torch.zeros(4, 1, 5, 5)
    outputs[:, 0, 1, 1], targets[:, 0, 1, 3] = 1.0, 1.0
    spacing = torch.tensor([[9.0, 1.0], [9.0, 2.0], [9.0, 5.0], [math.nan, 1.0]], dtype=torch.float64)
    goal = Segmentation(1, overlapping=True, spacing=SPACING_OF_EACH_CASE, tolerance=4.0)
    predictions = goal.scoring_inputs(outputs, targets, ("hd95", "surface_dice"), spacing)
    columns = goal.columns(())
    distances = predictions[:, columns.index("hd95_0")].tolist()
    assert distances[:3] == pytest.approx([2.0, 4.0, 10.0])
    assert math.isnan(distances[3])
    assert predictions[:3, columns.index("surface_dice_0")].tolist() == [1.0, 1.0, 0.0], (
        "within 4 mm, 4 itself included"
    )
