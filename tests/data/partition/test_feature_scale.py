"""Test mean and deviation of features: computed over the training rows of all sites and no other rows."""

from __future__ import annotations

import numpy as np
import pytest

from medfl.data.partition.writing import feature_scale


def splits_of(training: list[int], test: list[int], validation: list[int]) -> dict[str, list[dict]]:
    named = {"training": training, "test": test, "validation": validation}
    return {split: [{"image": row, "label": 0} for row in rows] for split, rows in named.items()}


SPLITS = {
    "site-01": splits_of([0], [2], [3]),
    "site-02": splits_of([1], [], [4]),
    "global": splits_of([5], [5], []),
    "public": splits_of([6], [], []),
}
ROWS = [[1, 8], [3, 8], [90, 90], [91, 91], [92, 92], [93, 93], [94, 94]]


def test_only_training_rows_of_sites_count():
    scale = feature_scale(np.array(ROWS, dtype=np.float32), SPLITS)
    assert scale == {"feature_mean": [2.0, 8.0], "feature_std": [1.0, 1.0]}, "a column of one value keeps its scale"


@pytest.mark.parametrize(("kind", "top"), [(np.uint8, 255), (np.uint16, 65535)])
def test_integers_become_0_to_1_first_as_in_a_batch(kind, top):
    scale = feature_scale(np.array(ROWS, dtype=kind), SPLITS)
    assert scale["feature_mean"] == pytest.approx([2 / top, 8 / top])
    assert scale["feature_std"] == pytest.approx([1 / top, 1.0])
