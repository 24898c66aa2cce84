"""Test arrays of 16 bits: batches, sites and leaks are the same as for equal images of other types."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from medfl.data import arrays
from medfl.data.arrays import ArrayDataset
from medfl.data.leaks import row_digests

IMAGES = np.random.default_rng(0).integers(0, 65536, (6, 5, 4), dtype=np.uint16)
EIGHT = np.random.default_rng(1).integers(0, 256, (6, 5, 4), dtype=np.uint8)


@pytest.mark.parametrize("resident", [True, False])
def test_a_batch_is_scaled_from_65535_to_1(monkeypatch, resident):
    if not resident:
        monkeypatch.setattr(arrays, "MAX_RESIDENT_BYTES", 0)
    data = ArrayDataset(IMAGES, range(6), [5, 0, 1, 2, 3, 4], mean=[0.3], std=[0.7])
    images, labels = data.batch(torch.tensor([4, 0]))
    expected = (IMAGES[[3, 5]] / 65535 - 0.3) / 0.7
    assert (images.dtype, images.shape) == (torch.float32, (2, 1, 5, 4))
    np.testing.assert_allclose(images[:, 0].numpy(), expected, atol=1e-6)
    assert labels.tolist() == [4, 0]
    colour = ArrayDataset(np.stack([IMAGES] * 3, axis=-1), range(6), range(6))
    assert colour.batch(torch.arange(2))[0].shape == (2, 3, 5, 4)


def test_an_image_of_8_bits_written_with_16_is_the_same_image(tmp_path):
    np.save(tmp_path / "8.npy", EIGHT)
    mixed = EIGHT.astype(np.uint16) * 257
    mixed[5, 0, 0] = 1
    np.save(tmp_path / "16.npy", mixed)
    eight, sixteen = row_digests(tmp_path / "8.npy"), row_digests(tmp_path / "16.npy")
    assert eight[:5] == sixteen[:5]
    assert eight[5] != sixteen[5]
    same = ArrayDataset(EIGHT, range(6), range(6)).batch(torch.arange(5))[0]
    torch.testing.assert_close(ArrayDataset(mixed, range(6), range(6)).batch(torch.arange(5))[0], same)
