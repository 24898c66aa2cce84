"""Test the order of classes and the generated identifiers."""

from __future__ import annotations

import pytest
from refusals import refused

from medfl.data.ingest.columns.class_names import order_classes
from medfl.data.ingest.columns.labels import number_subjects
from medfl.errors import DataError


def test_running_numbers_come_by_first_appearance():
    assert number_subjects(["b", "a", "b", "c"]) == [f"subject-00000{n}" for n in (1, 2, 1, 3)]


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        (["10", "9", "9", "-1"], ["-1", "9", "10"]),
        (["b", "a", "10", "9"], ["10", "9", "a", "b"]),
        (["nan", "1"], ["1", "nan"]),
        (["0.5", "1e-3"], ["1e-3", "0.5"]),
    ],
)
def test_the_order_of_classes(labels, classes):
    assert order_classes(labels) == classes


@pytest.mark.parametrize(
    ("labels", "doubt"), [(["Benign", "benign", "x"], ["Benign", "benign"]), (["1", "1.0", "2"], ["1", "1.0"])]
)
def test_labels_that_look_alike(labels, doubt):
    with refused(DataError, "ambiguous_labels", labels=[doubt]):
        order_classes(labels)
