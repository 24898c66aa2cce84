"""File of predictions with decisions, thresholds and units."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from ignite.engine import Engine
from inference_file import cases, numbers, read_inference

from medfl.bundle.prediction_file import PredictionSaver
from medfl.objectives import Binary, Multiclass, Multilabel, Regression, Survival

BY_KIND = {
    "multiclass": (Multiclass(3), ("a", "b, left"), [[0.0, 2.0, 1.0], [0.0, 1.0, 3.0]]),
    "binary": (Binary(), ("benign", "malignant"), [[0.2], [-0.2]]),
    "multilabel": (Multilabel(2), ("effusion", "mass"), [[1.0, 2.0], [-1.0, -2.0]]),
    "regression": (Regression(2), ("age", "weight"), [[61.5, 70.0], [3.25, 4.0]]),
    "survival": (Survival(), ("time", "event"), [[0.5], [-1.5]]),
}
LOG_HAZARD = "log of the hazard relative to other cases of this model"
EXPECTED = {
    "multiclass": ("case,predicted_class,decision_rule,probability_a,\"probability_b, left\",probability_2",
                   [("predicted_class", "b, left"), ("decision_rule", "most probable class")]),
    "binary": ("case,predicted_class,decision_rule,probability_benign,probability_malignant",
               [("predicted_class", "malignant"), ("decision_rule", "probability of the second class > 0.5")]),
    "multilabel": ("case,predicted_findings,decision_rule,probability_effusion,probability_mass",
                   [("predicted_findings", "effusion; mass"), ("decision_rule", "probability >= 0.5")]),
    "regression": ("case,age,weight,unit", [("age", "61.5"), ("unit", "that of the training targets")]),
    "survival": ("case,risk,unit", [("risk", "0.5"), ("unit", LOG_HAZARD)]),
}  # fmt: skip


@pytest.mark.parametrize("kind", BY_KIND)
def test_header_decision_and_unit(kind: str, tmp_path: Path) -> None:
    objective, names, outputs = BY_KIND[kind]
    predictions = objective.predictions(torch.tensor(outputs))
    batches = [{"meta": [{"filename_or_obj": f"scan-{row}.png"}], "pred": predictions[row : row + 1]} for row in (0, 1)]
    engine = Engine(lambda _, batch: batch["pred"])
    PredictionSaver(tmp_path, objective, names, batch_transform=lambda batch: batch["meta"]).attach(engine)
    for _ in range(2):  # a second time it replaces the file
        engine.run(batches)
    path = tmp_path / "predictions.csv"
    header, cells = EXPECTED[kind]
    assert path.read_text().splitlines()[0] == header
    assert cases(path) == ["scan-0.png", "scan-1.png"]
    assert [(name, read_inference(path)[0][name]) for name, _ in cells] == cells
    np.testing.assert_allclose(numbers(path), predictions, rtol=1e-6)


def test_decisions_against_the_other_class() -> None:
    objective, names, outputs = BY_KIND["binary"]
    low = objective.predictions(torch.tensor(outputs))[1]
    assert objective.prediction_cells(low, names)[0] == "benign"
    assert Multilabel(2).prediction_cells(torch.tensor([0.1, 0.2]), ("effusion", "mass"))[0] == "none"
    assert Multilabel(2).prediction_cells(torch.tensor([0.1, 0.5]), ())[0] == "1"


def test_two_classes_have_a_threshold() -> None:
    objective = Multiclass(2)
    rule = "probability of the second class > 0.5"
    for second, name in ((0.5, "benign"), (0.51, "malignant")):
        cells = objective.prediction_cells(torch.tensor([1 - second, second]), ("benign", "malignant"))
        assert cells[:2] == [name, rule]


def test_names_of_another_number_than_the_outputs_are_not_used() -> None:
    assert Regression(2).prediction_columns(("cases",)) == ("y0", "y1", "unit")
