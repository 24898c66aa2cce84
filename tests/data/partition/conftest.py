"""Fixtures with pooled data sets for the tests of partitions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from pools import write_pool


@pytest.fixture
def pool(tmp_path) -> Path:
    return write_pool(tmp_path / "P")


@pytest.fixture
def leaky(tmp_path) -> Path:
    """Pooled data set with leaks: image 0 twice in training, and training images that recur in the test split.

    Images 5 and 6 are in the test split too, and so is the patient of image 7.
    """
    images = np.random.default_rng(0).integers(0, 256, (130, 4, 4), dtype=np.uint8)
    images[3], images[110], images[111] = images[0], images[5], images[6]

    def change(splits):
        splits["training"][7]["subject_id"] = splits["training"][8]["subject_id"] = splits["test"][9]["subject_id"]

    return write_pool(tmp_path / "leaky", change, images)
