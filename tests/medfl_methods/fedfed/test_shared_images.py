"""Shared set, and the batches drawn from it."""

from collections import Counter

import pytest
import torch
from refusals import refused

from medfl.errors import RefusedError
from medfl_methods.fedfed.shared_images import SharedBatches, SharedImages, check_shared


def made(labels, copies=1, start=0):
    """Return images of 2 x 2 pixels with the image's number as values, plus 100 in the second copy."""
    numbers = torch.arange(start, start + len(labels)).half().view(-1, 1, 1, 1).expand(-1, 1, 2, 2)
    return SharedImages(tuple(numbers + 100 * copy for copy in range(copies)), torch.tensor(labels, dtype=torch.int64))


def numbers(parts):
    return parts[:, 0, 0, 0].tolist()


@pytest.mark.parametrize("copies", [1, 2, 11])
def test_names_and_back(copies):
    """Copies keep their order, even with more than ten copies."""
    shared = made([2, 0, 1], copies)
    read = SharedImages.read(shared.tensors())
    assert [numbers(copy) for copy in read.copies] == [numbers(copy) for copy in shared.copies]
    assert read.labels.tolist() == [2, 0, 1]
    assert len(read) == 3
    assert all(copy.dtype == torch.float16 for copy in read.copies)


def test_sets_are_joined_in_the_order_of_their_sites():
    concatenate = SharedImages.concatenate({"a": made([1, 1], 2), "b": made([], 2), "c": made([0], 2, start=5)})
    assert [numbers(copy) for copy in concatenate.copies] == [[0, 1, 5], [100, 101, 105]]
    assert concatenate.labels.tolist() == [1, 1, 0]
    assert len(SharedImages.concatenate({"a": made([]), "b": made([])})) == 0


def draws(shared, images, balanced, *counts, seed=0):
    batches = SharedBatches(shared, images, torch.Generator().manual_seed(seed), balanced)
    return [batches.draw(count) for count in counts]


def test_an_epoch_has_as_many_rows_as_the_site_has_images_and_as_many_of_each_class():
    """FedFed's rule: draws are class-balanced for any class distribution of the set."""
    shared = made([0] * 10 + [1] * 2 + [2] * 4)
    for batches in (draws(shared, 9, True, 4, 4, 1), draws(shared, 9, True, 9)):
        labels = torch.cat([labels for _, labels in batches])
        assert labels.bincount().tolist() == [3, 3, 3]
        drawn = Counter(number for parts, _ in batches for number in numbers(parts))
        assert set(drawn.values()) <= {1, 2}, "no image comes again before all of its class have come"
        assert max(drawn[number] for number in range(10)) == 1


def test_each_part_comes_with_its_label_in_all_copies():
    shared = made([0, 1, 2, 1], copies=2)
    parts, labels = draws(shared, 8, True, 5)[0]
    assert (parts.shape, parts.dtype) == ((10, 1, 2, 2), torch.float32)
    order = numbers(parts)
    assert [number + 100 for number in order[:5]] == order[5:], "the second copies of the same images"
    assert labels.tolist() == [int(shared.labels[int(number)]) for number in order[:5]] * 2


def test_epochs_follow_each_other_and_are_drawn_again():
    """A batch across the end of an epoch contains its last rows and the first rows of the next epoch."""
    shared = made([0] * 6)
    long = numbers(draws(shared, 6, True, 18)[0][0])
    short = [number for parts, _ in draws(shared, 6, True, 4, 4, 4, 4, 2) for number in numbers(parts)]
    assert long == short
    epochs = [long[:6], long[6:12], long[12:]]
    assert [sorted(epoch) for epoch in epochs] == [[0, 1, 2, 3, 4, 5]] * 3
    assert epochs[0] != epochs[1]
    assert numbers(draws(shared, 6, True, 18, seed=1)[0][0]) != long


def test_all_draws_images_as_often_as_they_are():
    """A class with a tenth of the set's images is about a tenth of the drawn rows."""
    shared = made([0] * 9 + [1])
    labels = draws(shared, 1000, False, 1000)[0][1]
    assert 60 < int(labels.sum()) < 140
    assert draws(shared, 5, False, 0)[0][0].shape == (0, 1, 2, 2)


def test_volumes_of_one_class():
    shared = SharedImages((torch.rand(3, 2, 4, 4, 4).half(),), torch.tensor([1, 1, 1]))
    parts, labels = draws(shared, 4, True, 4)[0]
    assert parts.shape == (4, 2, 4, 4, 4)
    assert labels.tolist() == [1] * 4


def test_they_are_drawn_in_a_run_with_bf16():
    """The loss draws its batch under autocast."""
    shared = made([0, 1], copies=2)
    with torch.autocast("cpu", torch.bfloat16):
        parts, _ = draws(shared, 2, True, 2)[0]
    assert parts.dtype == torch.float32


def test_a_part_of_a_shared_set_is_taken_as_it_was_announced():
    check_shared(made([0, 2, 1], 2).tensors(), 2, (1, 2, 2), 3)
    check_shared(made([], 2).tensors(), 2, (1, 2, 2), 3)


@pytest.mark.parametrize(
    ("labels", "changes"),
    [
        ([0, 3], {}),
        ([-1, 0], {}),
        ([0, 1], {"labels": torch.tensor([0.0, 1.0])}),
        ([0, 1], {"labels": torch.tensor([[0], [1]])}),
        ([0, 1], {"images/1": torch.zeros(2, 1, 2, 2)}),
        ([0, 1], {"images/1": torch.zeros(3, 1, 2, 2).half()}),
        ([0, 1], {"images/2": torch.zeros(2, 1, 2, 2).half()}),
        ([0, 1], {"images/0": torch.zeros(2, 1, 2, 3).half()}),
    ],
    ids=["no-class", "negative", "float", "column", "single", "more-images", "another-copy", "another-shape"],
)
def test_what_is_no_part_of_a_shared_set_is_refused(labels, changes):
    """The valid labels of three classes are 0, 1 and 2."""
    with refused(RefusedError, "unexpected_tensors", copies=2, shape=[1, 2, 2], classes=3):
        check_shared(made(labels, 2).tensors() | changes, 2, (1, 2, 2), 3)
