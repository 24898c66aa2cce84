"""Test the detection of models with a constant prediction, for each site and for all sites together."""

import pytest
import torch

from medfl.engine.constant_predictions import (
    SitePredictions,
    find_constant_predictions,
)
from medfl.objectives import Multiclass
from medfl.settings import Settings

CLASSES = ("benign", "malignant", "normal")


def site(predicted, labels, split="test"):
    predictions = torch.eye(3)[predicted]
    return SitePredictions(predictions, torch.tensor(labels), split)


def find(**sites):
    return find_constant_predictions(sites, Multiclass(3), CLASSES)


def test_one_class_everywhere_is_one_entry_even_if_each_site_holds_one_class():
    (entry,) = find(a=site([0, 0], [0, 0]), b=site([0], [1], "val"), c=site([], []))
    assert (entry.sites, entry.all_sites, entry.images, entry.splits) == (("a", "b"), True, 3, ("test", "val"))
    assert "the class 'benign' for all 3 test and validation images of all sites" in entry.sentence
    assert "--balance loss" in entry.sentence


@pytest.mark.parametrize(
    ("settings", "can_balance"),
    [
        ({}, True),
        ({"balance": "loss"}, False),
        ({"balance": "sampling"}, False),
        ({"privacy": {"unit": "site", "epsilon": 8, "clip": 1}}, True),
        ({"privacy": {"unit": "sample", "epsilon": 8, "clip": 1}}, False),
    ],
    ids=str,
)
def test_a_balance_that_is_set_or_not_permitted_is_no_remedy(settings, can_balance):
    sites = {"a": site([0, 0, 0], [0, 1, 2])}
    (entry,) = find_constant_predictions(sites, Multiclass(3), CLASSES, Settings(rounds=1, **settings))
    assert entry.can_balance == can_balance
    assert ("--balance" in entry.sentence) == can_balance


def test_a_site_is_named_if_two_images_contradict_its_model():
    good = site([0, 1, 2], [0, 1, 2])
    entries = find(a=site([1, 1, 1], [1, 0, 2]), b=good, c=site([2, 2, 2], [2, 2, 1]), d=site([1, 1], [0, 0]))
    assert [(entry.prediction, entry.sites, entry.all_sites) for entry in entries] == [
        ("the class 'malignant'", ("a",), False)
    ]  # one image contradicts c, and the images of d are of one class
    assert "all 3 test images of a," in entries[0].sentence


def test_a_model_that_is_right_or_has_one_class_to_find_is_not_named():
    assert find(a=site([0, 1], [0, 1]), b=site([1, 1], [1, 1])) == []
    assert find(a=site([0, 0], [0, 0]), b=site([0, 0], [0, 0])) == []
    assert find(a=site([], [])) == []
    assert find() == []


def test_personal_models_with_answers_of_their_own():
    entries = find(a=site([1] * 4, [0, 1, 0, 2]), b=site([0] * 4, [0, 1, 2, 1]), c=site([1] * 3, [0, 0, 1]))
    assert [(entry.prediction, entry.sites, entry.images) for entry in entries] == [
        ("the class 'benign'", ("b",), 4),
        ("the class 'malignant'", ("a", "c"), 7),
    ]
