"""Random changes of training images, by a bundle's own MONAI transforms and from a stream of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose
from monai.utils import convert_to_tensor

from medfl.types import Meta, Targets

IMAGE, REGIONS, LABEL = "image", "regions", "label"
"""Keys that the transforms see: an image (C, *spatial), the labels of its regions (1, *spatial), and its mask."""

Augment = Callable[[torch.Tensor, Targets], tuple[torch.Tensor, Targets, torch.Tensor | None]]
"""Images (B, C, *spatial) and their targets to changed ones, and to labels of their regions (B, *spatial) if any."""

_SEEDS = 2**32
"""NumPy's generators take seeds below this."""


class Augmentation:
    """Changes each training image anew whenever it is visited.

    The transforms are those that the bundle's own trainer uses, MONAI's dictionary transforms. In a federation they
    draw from a stream that depends on (seed, site, round), so a run that was stopped goes on with the same images; in a
    run that hides single images it depends on the site's secret in place of the seed. Region labels of the task change
    with the image, and so do masks: give such transforms all keys, with the mode ``nearest`` for labels and masks.

    Args:
        transform: Maps a dictionary with `IMAGE`, with `REGIONS` where the task has them and with `LABEL` where targets
            are masks, to one with the same shapes.

    Attributes:
        facts: What decides the changes, for the identity of a run: the transforms with their plain attributes.
    """

    def __init__(self, transform: Compose) -> None:
        self.transform = transform
        self.facts: Meta = {str(number): _facts(part) for number, part in enumerate(transform.flatten().transforms)}

    def __call__(
        self, images: torch.Tensor, regions: torch.Tensor | None, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Change a batch.

        Args:
            images: (B, C, *spatial), float32.
            regions: Labels, (*spatial), the same for all images; or None.
            generator: The stream.

        Returns:
            Images of the same shape, and labels (B, *spatial), or None without labels.
        """
        return self.seeded(
            images, regions, torch.randint(_SEEDS, (len(images),), generator=generator, dtype=torch.int64).tolist()
        )

    def batch(
        self,
        images: torch.Tensor,
        targets: Targets,
        regions: torch.Tensor | None,
        generator: torch.Generator,
        in_space: bool,
    ) -> tuple[torch.Tensor, Targets, torch.Tensor | None]:
        """Change a batch with its targets: masks move with the images, all others stay as they are.

        Args:
            images: As in calling this.
            targets: (B, ...); masks are (B, M, *spatial), integers.
            regions: As in calling this.
            generator: The stream.
            in_space: Whether the targets are masks (`Objective.in_space`).

        Returns:
            Images and targets of the same shapes, and labels (B, *spatial), or None without labels.
        """
        if not in_space or isinstance(targets, dict):
            changed, labels = self(images, regions, generator)
            return changed, targets, labels
        seeds = torch.randint(_SEEDS, (len(images),), generator=generator, dtype=torch.int64).tolist()
        items = self._changed(images, regions, seeds, targets)
        masks = torch.stack([item[LABEL] for item in items]).round().to(targets.dtype)
        return torch.stack([item[IMAGE] for item in items]), masks, _regions(items, regions)

    def seeded(
        self, images: torch.Tensor, regions: torch.Tensor | None, seeds: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same with a seed of its own for each image, >= 0."""
        items = self._changed(images, regions, seeds)
        return torch.stack([item[IMAGE] for item in items]), _regions(items, regions)

    def _changed(
        self,
        images: torch.Tensor,
        regions: torch.Tensor | None,
        seeds: Sequence[int],
        masks: torch.Tensor | None = None,
    ) -> list[dict[str, torch.Tensor]]:
        """Each image with what moves with it."""
        tracked = get_track_meta()
        set_track_meta(False)  # a third of the time, and nobody reads it
        try:
            items = []
            for number, seed in enumerate(seeds):
                item = {IMAGE: images[number]} | ({} if regions is None else {REGIONS: regions[None]})
                items.append(self._one(item if masks is None else item | {LABEL: masks[number]}, seed % _SEEDS))
        finally:
            set_track_meta(tracked)
        return items

    def _one(self, item: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
        self.transform.set_random_state(seed=seed)
        changed: Mapping[str, torch.Tensor] = self.transform(item)
        return {key: convert_to_tensor(value, track_meta=False) for key, value in changed.items()}


def _regions(items: Sequence[Mapping[str, torch.Tensor]], regions: torch.Tensor | None) -> torch.Tensor | None:
    return None if regions is None else torch.stack([item[REGIONS][0] for item in items]).to(regions.dtype)


def _facts(transform: Any) -> Meta:
    """The class of a transform and its plain attributes, with those of the transforms inside."""
    facts: Meta = {"class": type(transform).__name__}
    for name, value in vars(transform).items():
        if type(value).__module__.startswith("monai.transforms"):
            facts[name] = _facts(value)
        elif isinstance(value, bool | int | float | str | tuple | list | None) and not name.startswith("_"):
            facts[name] = repr(value)
    return facts
