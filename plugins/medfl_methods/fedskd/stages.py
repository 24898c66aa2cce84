"""Sum of FedSKD's similarity losses over the stages of two networks, and cached weights of atlas regions.

A stage is a part of a network whose output is compared with the other network's. A region weight is the fraction of a
cell of a feature map that a region of the atlas (a label volume) covers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from medfl.errors import SettingsError
from medfl_methods.fedskd.regions import number_regions, weights_of
from medfl_methods.fedskd.similarity import similarity_loss

SimilarityKind = Literal["batch", "pixel", "region"]
"""Kind of similarity that is compared: between images, between positions of feature maps, or between atlas regions."""


class RegionGrids:
    """Region weights on the grids of feature maps. Each grid is computed once.

    Args:
        labels: Region labels on the images' grid, 0 for the background: (*spatial), or (B, *spatial) with labels for
            each image.
        mode: ``soft`` average-pools the mask of each region to the map's size; ``nearest`` samples the labels.
    """

    def __init__(self, labels: torch.Tensor, mode: Literal["soft", "nearest"]) -> None:
        self._labels, self._mode = labels, mode
        self._numbered: tuple[torch.Tensor, int] | None = None
        self._grids: dict[torch.Size, torch.Tensor] = {}

    def check(self, images: torch.Tensor) -> None:
        """Raise if the labels are not on the grid of the images.

        Args:
            images: Batch of images (B, C, *spatial).

        Raises:
            SettingsError: If the shapes differ; it names both.
        """
        if self._labels.shape not in (images.shape[2:], images.shape[:1] + images.shape[2:]):
            raise SettingsError(
                "wrong_shape",
                f"expected regions on the grid of the images, {tuple(images.shape[2:])}, got labels of shape "
                f"{tuple(self._labels.shape)}. Resample the atlas to the images' grid, with nearest neighbour.",
                expected=tuple(images.shape[2:]),
                found=tuple(self._labels.shape),
            )

    def for_maps(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """Return the region weights for two feature maps (B, C, *spatial) of the same images.

        If the maps have the same size, the weights are on their grid. Otherwise they are on the images' grid, and
        `region_similarity_loss` pools them to each map.
        """
        axes = a.dim() - 2
        size = a.shape[2:] if a.shape[2:] == b.shape[2:] else self._labels.shape[-axes:]
        if self._numbered is None:
            self._numbered = number_regions(self._labels, axes)
        if size not in self._grids:
            self._grids[size] = weights_of(*self._numbered, size, self._mode).to(a.device)
        return self._grids[size]


def stages_loss(
    own: Sequence[torch.Tensor],
    other: Sequence[torch.Tensor],
    kinds: Sequence[SimilarityKind],
    regions: RegionGrids | None,
    layers: Sequence[int] | None = None,
) -> torch.Tensor:
    """Return the similarity loss: for each kind the mean over the stages, summed over the kinds, in single precision.

    ``pixel`` and ``region`` need feature maps. If `layers` is None, a stage that returns vectors takes part in
    ``batch`` only.

    Args:
        own: Features of one network, one tensor (B, C, *spatial) or (B, C) for each stage.
        other: Features of the other network, in the same order. Channels and spatial sizes may differ.
        kinds: Kinds of similarity that are compared.
        regions: Region weights for the kind ``region``.
        layers: Numbers of the stages, counted from 1, if the user chose them.

    Returns:
        Scalar, in [0, 4] for each kind.

    Raises:
        SettingsError: If a kind needs feature maps, and a stage in `layers` or every stage returns vectors.
    """
    total = own[0].new_zeros((), dtype=torch.float32)
    with torch.autocast(own[0].device.type, enabled=False):
        for kind in kinds:
            pairs = _comparable_stages(own, other, kind, layers)
            grids = None if regions is None or kind != "region" else [regions.for_maps(*pair) for pair in pairs]
            left, right = [a for a, _ in pairs], [b for _, b in pairs]
            total = total + similarity_loss(left, right, (kind,), grids)
    return total


def _comparable_stages(
    own: Sequence[torch.Tensor], other: Sequence[torch.Tensor], kind: str, layers: Sequence[int] | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the pairs of feature maps that the kind compares. Raise if it needs maps and the stages return vectors."""
    pairs = list(zip(own, other, strict=True))
    if kind == "batch":
        return [(a.flatten(1)[:, :, None, None], b.flatten(1)[:, :, None, None]) for a, b in pairs]
    numbers = range(1, len(pairs) + 1) if layers is None else layers
    flat = [number for number, (a, b) in zip(numbers, pairs, strict=True) if min(a.dim(), b.dim()) < 4]
    maps = [pair for pair in pairs if min(part.dim() for part in pair) >= 4]
    if not maps or (flat and layers is not None):
        raise SettingsError(
            "stage_not_supported",
            f"The kind '{kind}' of `skd` compares places within an image: expected stages that return feature maps "
            f"(B, C, *spatial), got vectors from the stages {sorted(flat)}. Remove them from `layers`, or '{kind}' "
            "from `skd`.",
            kind=kind,
            stages=sorted(flat),
        )
    return maps
