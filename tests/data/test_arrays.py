"""Test data sets of array rows: shapes, layouts, values and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from refusals import refused

from medfl.data import arrays
from medfl.data.arrays import ArrayDataset, ArrayMasks, array_digest, open_array
from medfl.data.pooled import labels_of
from medfl.errors import DataError
from medfl.types import Dataset, is_augmenting, is_self_scoring


def random_images(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((9, 5, 6), (1, 5, 6)), ((9, 5, 6, 3), (3, 5, 6)), ((9, 5, 6, 1), (1, 5, 6)), ((9, 5, 6, 7), (1, 5, 6, 7))],
    ids=["grey", "rgb", "one channel", "volume"],
)
def test_a_batch_has_channels_first_whatever_the_array_looks_like(shape, expected):
    data = ArrayDataset(random_images(*shape), range(9), range(9))
    images, labels = data.batch(torch.tensor([2, 0, 5]))
    assert images.shape == (3, *expected)
    assert images.dtype == torch.float32
    assert labels.dtype == torch.int64
    assert labels.tolist() == [2, 0, 5]
    assert isinstance(data, Dataset)


def test_values_are_scaled_then_normalised_per_channel():
    images, mean, std = random_images(6, 4, 5, 3), (0.1, 0.5, 0.9), (0.2, 0.5, 1.5)
    rows = [4, 1, 3]
    got, _ = ArrayDataset(images, [0, 0, 0], rows, mean, std).batch(torch.tensor([0, 1, 2]))
    want = ((images[rows] / 255 - np.array(mean)) / np.array(std)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(got.numpy(), want, atol=1e-6)


def test_floating_images_are_not_divided_by_255():
    images = np.linspace(0, 1, 24, dtype=np.float32).reshape(2, 3, 4)
    got, _ = ArrayDataset(images, [0, 1], [0, 1], (0.5,), (0.25,)).batch(torch.arange(2))
    np.testing.assert_allclose(got[:, 0].numpy(), (images - 0.5) / 0.25, atol=1e-6)


def test_a_batch_never_changes_the_data():
    for images in (random_images(3, 4, 4), np.ones((3, 4, 4), np.float32)):
        data = ArrayDataset(images, [0, 1, 2], [0, 1, 2])
        first, _ = data.batch(torch.arange(3))
        first.add_(5)
        assert torch.equal(data.batch(torch.arange(3))[0] + 5, first)


def test_rgb_comes_out_channels_last_so_that_no_copy_is_needed():
    images, _ = ArrayDataset(random_images(4, 8, 8, 3), range(4), range(4)).batch(torch.arange(4))
    assert images.is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", [list, np.array, torch.tensor], ids=["list", "array", "tensor"])
def test_labels_are_copies_of_the_given_ones(make):
    labels = make([2, 0, 1])
    data = ArrayDataset(random_images(3, 4, 4), labels, range(3))
    labels[0] = 7
    assert torch.equal(labels_of(data), torch.tensor([2, 0, 1]))
    assert torch.equal(data.targets(torch.tensor([1, 0])), torch.tensor([0, 2]))


def test_targets_that_are_not_classes_give_no_labels():
    data = ArrayDataset(random_images(2, 4, 4), [[0.5], [1.5]], range(2), target_type=torch.float32)
    assert data.class_labels is None
    assert not is_augmenting(data)
    assert not is_self_scoring(data)


def test_a_split_may_be_empty():
    data = ArrayDataset(random_images(4, 8, 8, 3), [], [])
    images, labels = data.batch(torch.empty(0, dtype=torch.int64))
    assert (len(data), images.shape, labels.shape) == (0, (0, 3, 8, 8), (0,))


def test_items_are_what_monai_loaders_want_and_end():
    data = ArrayDataset(random_images(4, 8, 8, 3), [3, 2, 1], [3, 0, 1])
    item = data[1]
    assert item["image"].shape == (3, 8, 8)
    assert int(item["label"]) == 2
    assert torch.equal(item["image"], data.batch(torch.tensor([1]))[0][0])
    assert len(list(data)) == 3  # type: ignore[call-overload]


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_split_that_is_too_large_to_keep_gives_the_same_numbers(monkeypatch, order):
    images = np.asarray(random_images(9, 5, 6, 3), order=order)
    kept = ArrayDataset(images, range(4), [8, 1, 0, 2])
    monkeypatch.setattr(arrays, "MAX_RESIDENT_BYTES", 10)
    read = ArrayDataset(images, range(4), [8, 1, 0, 2])
    rows = torch.tensor([3, 0])
    assert torch.equal(kept.batch(rows)[0], read.batch(rows)[0])


def test_masks_are_read_like_images_and_stay_in_a_file_where_they_are_large(monkeypatch):
    images, masks = random_images(9, 5, 6), random_images(9, 5, 6) % 3
    index, rows = np.array([8, 1, 0, 2]), torch.tensor([3, 0])
    kept = ArrayDataset(images, ArrayMasks(masks, index, (1, 5, 6)), index)
    monkeypatch.setattr(arrays, "MAX_RESIDENT_BYTES", 10)
    read = ArrayDataset(images, ArrayMasks(masks, index, (1, 5, 6)), index)
    for data in (kept, read):
        assert torch.equal(data.batch(rows)[1], torch.from_numpy(masks[[2, 8]])[:, None].long())
        assert data.class_labels is None
        assert len(data) == 4


@pytest.mark.parametrize(
    ("change", "code", "expected"),
    [
        ({"rows": [0, 9, 12]}, "row_outside_array", {"row": 9, "count": 2, "maximum": 8}),
        ({"rows": [-1, 0, 1]}, "row_outside_array", {"row": -1, "maximum": 8}),
        ({"targets": [1]}, "wrong_target_count", {"expected": 3, "found": 1}),
        ({"mean": (0.1, 0.2)}, "wrong_normalization_length", {"name": "mean", "expected": 3, "found": 2}),
        ({"std": (0.0,)}, "invalid_normalization", {"mean": [0.5], "std": [0.0]}),
        ({"std": (math.nan,)}, "invalid_normalization", {"mean": [0.5], "std": [math.nan]}),
        ({"mean": (math.inf,)}, "invalid_normalization", {"mean": [math.inf]}),
        ({"images": np.zeros(9, np.uint8)}, "wrong_shape", {"found": [9]}),
        ({"images": np.zeros((9, 4, 4), np.int64)}, "wrong_type", {"found": "int64"}),
    ],
)
def test_what_does_not_fit_together_is_named(change, code, expected):
    fields = {"images": random_images(9, 4, 4, 3), "targets": [0, 1, 2], "rows": [0, 1, 2], **change}
    with refused(DataError, code, **expected):
        ArrayDataset(**fields)


def test_an_array_file_is_opened_once_and_hashed_by_content(tmp_path):
    path = tmp_path / "images.npy"
    np.save(path, random_images(3, 4, 4))
    assert open_array(path) is open_array(tmp_path / "." / "images.npy")
    before = array_digest(path)
    np.save(path, random_images(3, 4, 4) ^ 1)
    assert array_digest(path) != before


def test_damaged_and_missing_arrays_are_named_without_a_traceback(tmp_path):
    with refused(DataError, "missing_file", path=str(tmp_path / "images.npy")):
        open_array(tmp_path / "images.npy")
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01\x00")
    with refused(DataError, "damaged_file", path=str(tmp_path / "cut.npy")):
        open_array(tmp_path / "cut.npy")
    np.save(tmp_path / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    with refused(DataError, "damaged_file", path=str(tmp_path / "objects.npy")):
        open_array(tmp_path / "objects.npy")
