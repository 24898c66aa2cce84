"""Test sets with predictions: which of them can be compared, and parts of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from medfl.objectives import Multiclass
from medfl_report.predictions import PredictionSet

SET = PredictionSet(
    rows=torch.tensor([3, 5, 8]),
    targets=torch.tensor([0, 1, 1]),
    predictions=torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.7, 0.3]], dtype=torch.float64),
    objective=Multiclass(2),
    sex=("male", "female", "male"),
    centre=("north", "south", "east"),
    patients=torch.tensor([1, 2, 2]),
)


def test_two_models_may_say_other_things_of_the_same_images():
    assert SET.same_images(replace(SET, predictions=1 - SET.predictions))


@pytest.mark.parametrize(
    "change",
    [
        {"rows": torch.tensor([3, 5, 9])},
        {"rows": torch.tensor([5, 3, 8])},
        {"targets": torch.tensor([0, 1, 0])},
        {"predictions": torch.full((3, 4), 0.25, dtype=torch.float64)},
    ],
)
def test_other_images_targets_or_classes_can_not_be_compared(change):
    assert not SET.same_images(replace(SET, **change))


def test_a_part_keeps_what_is_known_of_its_images():
    part = SET.part(torch.tensor([False, True, True]))
    assert (part.rows.tolist(), part.targets.tolist()) == ([5, 8], [1, 1])
    assert (part.sex, part.centre) == (("female", "male"), ("south", "east"))
    assert part.patients is not None
    assert (part.patients.tolist(), part.patient_count, part.correct) == ([2, 2], 1, 1)
