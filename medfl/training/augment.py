"""Random augmentation of training images by a bundle's own MONAI transforms, with the run's random streams.

A task may divide an image into regions, for example organs; a region label is the region's number at a pixel.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose
from monai.utils import convert_to_tensor

from medfl.types import Meta, Targets

IMAGE, REGIONS, LABEL = "image", "regions", "label"
"""Keys of the transforms' dictionary: image (C, *spatial), region labels (1, *spatial), and target mask (M,
*spatial)."""

AugmentFunction = Callable[[torch.Tensor, Targets], tuple[torch.Tensor, Targets, torch.Tensor | None]]
"""Function that augments a batch.

Its arguments are images (B, C, *spatial) and their targets. It returns augmented images, augmented targets, and the
region labels (B, *spatial) of the images, or None without regions.
"""

_SEED_LIMIT = 2**32
"""Exclusive upper bound of seeds for NumPy's generators."""


class Augmentation:
    """Augmentation of each training image, with new random values each time the image is used.

    The transforms are MONAI's dictionary transforms of the bundle's own trainer. In a federation, their random numbers
    depend on (seed, site, round), so a stopped run resumes with the same images. In a run with the privacy unit
    ``sample``, they depend on the site's secret instead of the seed. Region labels and masks are transformed with their
    image: give such transforms all keys, with the mode ``nearest`` for labels and masks.

    Args:
        transform: Transform of a dictionary with `IMAGE`, with `REGIONS` if the task has regions, and with `LABEL` if
            targets are masks. Its outputs have the same shapes.
        unchanged: Number of last channels that the transform does not get and that stay as they are: features of a
            table row.

    Attributes:
        facts: Classes and plain attributes of the transforms, as part of the identity of a run.
        transform: The argument `transform`.
        unchanged: The argument `unchanged`.
    """

    def __init__(self, transform: Compose, unchanged: int = 0) -> None:
        self.transform, self.unchanged = transform, unchanged
        self.facts: Meta = {
            str(number): _transform_spec(part) for number, part in enumerate(transform.flatten().transforms)
        }

    def __call__(
        self, images: torch.Tensor, regions: torch.Tensor | None, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Augment a batch of images.

        Args:
            images: Images (B, C, *spatial), float32.
            regions: Region labels (*spatial), the same for all images; or None.
            generator: Random generator.

        Returns:
            Augmented images of the same shape, and region labels (B, *spatial), or None without labels.
        """
        return self.seeded(
            images, regions, torch.randint(_SEED_LIMIT, (len(images),), generator=generator, dtype=torch.int64).tolist()
        )

    def batch(
        self,
        images: torch.Tensor,
        targets: Targets,
        regions: torch.Tensor | None,
        generator: torch.Generator,
        has_spatial_targets: bool,
    ) -> tuple[torch.Tensor, Targets, torch.Tensor | None]:
        """Augment a batch with its targets.

        Masks are transformed with the images; other targets are returned unchanged.

        Args:
            images: Images (B, C, *spatial), float32.
            targets: Targets (B, ...); masks are (B, M, *spatial), integers.
            regions: Region labels (*spatial), the same for all images; or None.
            generator: Random generator.
            has_spatial_targets: Whether the targets are masks (`Objective.has_spatial_targets`).

        Returns:
            Augmented images and targets of the same shapes, and region labels (B, *spatial), or None without labels.
        """
        if not has_spatial_targets or isinstance(targets, dict):
            changed, labels = self(images, regions, generator)
            return changed, targets, labels
        seeds = torch.randint(_SEED_LIMIT, (len(images),), generator=generator, dtype=torch.int64).tolist()
        items = self._changed(images, regions, seeds, targets)
        masks = torch.stack([item[LABEL] for item in items]).round().to(targets.dtype)
        return torch.stack([item[IMAGE] for item in items]), masks, _stack_regions(items, regions)

    def seeded(
        self, images: torch.Tensor, regions: torch.Tensor | None, seeds: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Augment a batch of images (B, C, *spatial) with one seed per image, >= 0, instead of a generator.

        Returns augmented images and region labels as a call of the object does.
        """
        items = self._changed(images, regions, seeds)
        return torch.stack([item[IMAGE] for item in items]), _stack_regions(items, regions)

    def _changed(
        self,
        images: torch.Tensor,
        regions: torch.Tensor | None,
        seeds: Sequence[int],
        masks: torch.Tensor | None = None,
    ) -> list[dict[str, torch.Tensor]]:
        """Return the augmented image, region labels and mask of each case as a dictionary."""
        tracked = get_track_meta()
        set_track_meta(False)  # tracking takes a third of the time, and its result is not used
        try:
            items = []
            for number, seed in enumerate(seeds):
                item = {IMAGE: images[number]} | ({} if regions is None else {REGIONS: regions[None]})
                items.append(self._one(item if masks is None else item | {LABEL: masks[number]}, seed % _SEED_LIMIT))
        finally:
            set_track_meta(tracked)
        return items

    def _one(self, item: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        """Apply the transforms to one case with a seed."""
        self.transform.set_random_state(seed=seed)
        image, kept = item[IMAGE].split([len(item[IMAGE]) - self.unchanged, self.unchanged])
        changed: Mapping[str, torch.Tensor] = self.transform(item | {IMAGE: image})
        tensors = {key: convert_to_tensor(value, track_meta=False) for key, value in changed.items()}
        return tensors | {IMAGE: torch.cat([tensors[IMAGE], kept])} if self.unchanged else tensors


def _stack_regions(items: Sequence[Mapping[str, torch.Tensor]], regions: torch.Tensor | None) -> torch.Tensor | None:
    """Stack the augmented region labels; return None without regions."""
    return None if regions is None else torch.stack([item[REGIONS][0] for item in items]).to(regions.dtype)


def _transform_spec(transform: Any) -> Meta:
    """Return the class and the plain attributes of a transform, and of the transforms that it contains."""
    facts: Meta = {"class": type(transform).__name__}
    for name, value in vars(transform).items():
        if type(value).__module__.startswith("monai.transforms"):
            facts[name] = _transform_spec(value)
        elif isinstance(value, bool | int | float | str | tuple | list | None) and not name.startswith("_"):
            facts[name] = repr(value)
    return facts
