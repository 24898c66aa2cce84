"""Test data sets that are concatenated in memory."""

from __future__ import annotations

import numpy as np
import torch

from medfl.data.arrays import ArrayDataset
from medfl.data.pooled import PooledDataset


def test_rows_come_from_all_parts_in_the_order_asked_for_and_none_may_be_asked_for():
    images = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)
    whole = ArrayDataset(images, range(6), range(6))
    parts = [ArrayDataset(images, rows, rows) for rows in ([0, 1], [], [2, 3, 4, 5])]
    pooled = PooledDataset(list(parts))
    for rows in ([5, 0, 2, 1, 5], []):
        index = torch.tensor(rows, dtype=torch.int64)
        for got, expected in zip(pooled.batch(index), whole.batch(index), strict=True):
            assert torch.equal(got, expected), "a Poisson sampler draws an empty batch now and then"
