"""Tests of augmentation: repeatable, with regions, in each kind of training."""

from __future__ import annotations

import dataclasses
import re

import pytest
import torch
from monai.transforms import Compose, RandAffined, RandFlipd
from refusals import refused

from medfl.engine.site import Splits
from medfl.errors import StoreError
from medfl.plugins import load_plugins
from medfl.testing.cohort import Case, TensorData, bits, make_sites, make_task
from medfl.training.augment import Augmentation
from medfl.utils.wire import tensors_equal

REGISTRY = load_plugins()


def flips(prob: float = 0.5) -> Augmentation:
    return Augmentation(
        Compose([RandFlipd(keys=["image", "regions"], allow_missing_keys=True, prob=prob, spatial_axis=0)])
    )


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


IMAGES = torch.arange(16 * 2 * 4 * 4, dtype=torch.float32).reshape(16, 2, 4, 4)
LABELS = torch.arange(16) % 3


def test_a_stream_gives_the_same_images_again_and_another_one_others():
    first, again, other = (flips()(IMAGES, None, stream(seed))[0] for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.dtype == torch.float32
    assert type(first) is torch.Tensor


def test_each_image_is_changed_by_itself():
    """About half of the images are flipped for p = 1/2, and a flipped image is an exact flip."""
    changed, _ = flips()(IMAGES, None, stream())
    flipped = [torch.equal(image, before.flip(1)) for image, before in zip(changed, IMAGES, strict=True)]
    kept = [torch.equal(image, before) for image, before in zip(changed, IMAGES, strict=True)]
    assert [a != b for a, b in zip(flipped, kept, strict=True)] == [True] * 16
    assert 3 <= sum(flipped) <= 13


def test_regions_move_with_the_image():
    """Labels derived from the image match the augmented image after any rotation, scaling and flip."""
    regions = torch.zeros(24, 24, dtype=torch.int64)
    regions[4:11, 5:9], regions[13:20, 12:22] = 1, 3
    images = regions.float().expand(6, 1, 24, 24)
    turn = RandAffined(
        keys=["image", "regions"],
        prob=1.0,
        rotate_range=0.5,
        translate_range=3,
        scale_range=0.2,
        mode=["nearest", "nearest"],
        padding_mode="zeros",
    )
    changed, labels = Augmentation(Compose([turn]))(images, regions, stream())
    assert labels.dtype == torch.int64
    assert torch.equal(changed[:, 0], labels.float())
    assert not torch.equal(labels[0], labels[1])


def test_nothing_random_leaves_images_as_they_are():
    assert torch.equal(flips(0.0)(IMAGES, None, stream())[0], IMAGES)


def test_channels_of_a_table_row_stay_as_they_are():
    whole = Compose([RandFlipd(keys=["image"], prob=1.0, spatial_axis=0)])
    changed, _ = Augmentation(whole, unchanged=1)(IMAGES, None, stream())
    assert torch.equal(changed[:, :1], IMAGES[:, :1].flip(2))
    assert torch.equal(changed[:, 1:], IMAGES[:, 1:])


def test_facts_distinguish_unlike_augmentations_and_stay_when_used():
    augmentation = flips(0.5)
    before = augmentation.facts
    augmentation(IMAGES, None, stream())
    assert augmentation.facts == before == flips(0.5).facts
    assert augmentation.facts != flips(0.4).facts


# ---- in runs


def same(first, other) -> bool:
    left, right = bits(first), bits(other)
    return left.keys() == right.keys() and all(tensors_equal(left[name], right[name]) for name in left)


def largest_difference(first, other) -> float:
    """Return the largest difference of a weight between the results of two runs."""
    left, right = bits(first), bits(other)
    assert left.keys() == right.keys()
    return max(
        float((left[name][key].double() - right[name][key].double()).abs().max()) for name in left for key in left[name]
    )


def upside_down(sites):
    """Return the same sites with flipped training images."""
    return {
        name: Splits(TensorData(data.train.images.flip(2), data.train.class_labels), data.val, data.test)
        for name, data in sites.items()
    }


@pytest.mark.parametrize(
    ("method", "args"),
    [("fedavg", {}), ("local", {}), ("centralized", {}), ("fedkper", {"lambda_mode": "const", "aggregation": "size"})],
)
def test_a_flip_that_always_happens_is_training_on_flipped_images(tmp_path, method, args):
    """A teacher sees the same images as its student. Test images are never changed.

    FedKPer's teacher scores fixed images once a round and augmented ones batch by batch. On some processors the outputs
    then differ in the last bit.
    """
    case, sites = Case(REGISTRY, method, args), make_sites()
    flipping = dataclasses.replace(make_task(), augmentation=flips(1.0))
    changed = case.run(tmp_path / "changed", sites=sites, task=flipping)
    flipped = case.run(tmp_path / "flipped", sites=upside_down(sites))
    plain = case.run(tmp_path / "plain", sites=sites)
    assert largest_difference(changed, flipped) < 1e-6
    assert largest_difference(changed, plain) > 1e-3


def test_random_changes_are_the_same_with_workers_and_new_in_each_round(tmp_path):
    task = dataclasses.replace(make_task(), augmentation=flips())
    first, two = (Case(REGISTRY, "local").run(tmp_path / str(n), task=task, workers=n) for n in (1, 2))
    assert same(first, two)
    seen = [task.augment(stream(seed))(IMAGES, LABELS)[0] for seed in (1, 2)]
    assert not torch.equal(*seen)


def test_masks_move_with_their_images_and_other_targets_stay():
    """A mask derived from the image matches the augmented image, and draws no random numbers itself."""
    masks = torch.zeros(6, 1, 24, 24, dtype=torch.int64)
    masks[:, :, 4:11, 5:9], masks[:, :, 13:20, 12:22] = 1, 2
    turn = RandAffined(
        keys=["image", "label"],
        allow_missing_keys=True,
        prob=1.0,
        rotate_range=0.5,
        translate_range=3,
        mode="nearest",
        padding_mode="zeros",
    )
    augmentation = Augmentation(Compose([turn]))
    images, moved, regions = augmentation.batch(masks.float(), masks, None, stream(), has_spatial_targets=True)
    assert torch.equal(moved.float(), images)
    assert not torch.equal(moved, masks)
    assert moved.dtype == torch.int64
    assert regions is None
    alone, labels, _ = augmentation.batch(masks.float(), LABELS[:6], None, stream(), has_spatial_targets=False)
    assert torch.equal(alone, images)
    assert torch.equal(labels, LABELS[:6])


def test_a_run_with_other_changes_is_another_run(tmp_path):
    case, task = Case(REGISTRY, "local"), dataclasses.replace(make_task(), augmentation=flips(0.5))
    case.run(tmp_path / "run", task=task)
    with refused(StoreError, "other_run", expected="0.5", found="0.4") as caught:
        case.run(tmp_path / "run", task=dataclasses.replace(task, augmentation=flips(0.4)))
    assert re.search(r"augmentation.*prob$", caught.value.fields["setting"])
