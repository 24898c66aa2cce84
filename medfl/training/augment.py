"""Random changes of training images, by a bundle's own MONAI transforms and from a stream of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from monai.data import get_track_meta, set_track_meta
from monai.transforms import Compose
from monai.utils import convert_to_tensor

from medfl.types import Meta

IMAGE, REGIONS = "image", "regions"
"""Keys that the transforms see: an image (C, *spatial), and the labels of its regions (1, *spatial)."""

Augment = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor | None]]
"""Images (B, C, *spatial) to changed ones, and to labels of their regions (B, *spatial) where there are any."""

_SEEDS = 2**32
"""NumPy's generators take seeds below this."""


class Augmentation:
    """Changes each training image anew whenever it is visited.

    The transforms are those that the bundle's own trainer uses, MONAI's dictionary transforms. In a federation they
    draw from a stream that depends on (seed, site, round), so a run that was stopped goes on with the same images; in a
    run that hides single images it depends on the site's secret in place of the seed. Region labels of the task change
    with the image: give such transforms both keys, with the mode ``nearest`` for the labels.

    Args:
        transform: Maps a dictionary with `IMAGE`, and `REGIONS` where the task has them, to one with the same shapes.

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

    def seeded(
        self, images: torch.Tensor, regions: torch.Tensor | None, seeds: Sequence[int]
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The same with a seed of its own for each image, >= 0."""
        tracked = get_track_meta()
        set_track_meta(False)  # a third of the time, and nobody reads it
        try:
            changed = [self._one(image, regions, seed % _SEEDS) for image, seed in zip(images, seeds, strict=True)]
        finally:
            set_track_meta(tracked)
        labels = None if regions is None else torch.stack([item[REGIONS][0] for item in changed]).to(regions.dtype)
        return torch.stack([item[IMAGE] for item in changed]), labels

    def _one(self, image: torch.Tensor, regions: torch.Tensor | None, seed: int) -> dict[str, torch.Tensor]:
        item = {IMAGE: image} | ({} if regions is None else {REGIONS: regions[None]})
        self.transform.set_random_state(seed=seed)
        changed: Mapping[str, torch.Tensor] = self.transform(item)
        return {key: convert_to_tensor(value, track_meta=False) for key, value in changed.items()}


def _facts(transform: Any) -> Meta:
    """The class of a transform and its plain attributes, with those of the transforms inside."""
    facts: Meta = {"class": type(transform).__name__}
    for name, value in vars(transform).items():
        if type(value).__module__.startswith("monai.transforms"):
            facts[name] = _facts(value)
        elif isinstance(value, bool | int | float | str | tuple | list | None) and not name.startswith("_"):
            facts[name] = repr(value)
    return facts
