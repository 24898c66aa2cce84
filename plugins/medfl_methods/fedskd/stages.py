"""The similarity loss over the stages of two networks, each form where it has a meaning."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch

from medfl.errors import SettingsError
from medfl_methods.fedskd.regions import number_regions, weights_of
from medfl_methods.fedskd.similarity import similarity_loss

Form = Literal["batch", "pixel", "region"]


class RegionGrids:
    """Weights of the regions of an image on the grids of feature maps, each grid computed once.

    Args:
        labels: Of regions on the images' grid, 0 for the background: (*spatial), or (B, *spatial) for each image.
        mode: ``soft`` or ``nearest``, see `medfl_methods.fedskd.regions`.
    """

    def __init__(self, labels: torch.Tensor, mode: Literal["soft", "nearest"]) -> None:
        self._labels, self._mode = labels, mode
        self._numbered: tuple[torch.Tensor, int] | None = None
        self._grids: dict[torch.Size, torch.Tensor] = {}

    def check(self, images: torch.Tensor) -> None:
        """Refuse labels that are not on the grid of the images (B, C, *spatial).

        Raises:
            SettingsError: With both shapes.
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
        """Weights on the grid of both maps; where they have unlike grids, on the images' own, from which they pool."""
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
    forms: Sequence[Form],
    regions: RegionGrids | None,
    layers: Sequence[int] | None = None,
) -> torch.Tensor:
    """The sum over the forms of the mean over the stages, in single precision.

    Positions and regions need maps: if `layers` is None, a stage that gives vectors takes part in the batch form only.

    Args:
        own: Features of one network, (B, C, *spatial) or (B, C), stage by stage.
        other: Those of the other one; channels and spatial sizes may differ.
        forms: Which of them.
        regions: For the form ``region``.
        layers: Numbers of the stages, from 1, if somebody chose them.

    Returns:
        Shape (), in [0, 4] for each form.

    Raises:
        SettingsError: If a form needs maps and a stage that was named, or every stage, gives vectors.
    """
    total = own[0].new_zeros((), dtype=torch.float32)
    with torch.autocast(own[0].device.type, enabled=False):
        for form in forms:
            pairs = _pairs(own, other, form, layers)
            grids = None if regions is None or form != "region" else [regions.for_maps(*pair) for pair in pairs]
            left, right = [a for a, _ in pairs], [b for _, b in pairs]
            total = total + similarity_loss(left, right, (form,), grids)
    return total


def _pairs(
    own: Sequence[torch.Tensor], other: Sequence[torch.Tensor], form: str, layers: Sequence[int] | None
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The stages that a form compares."""
    pairs = list(zip(own, other, strict=True))
    if form == "batch":
        return [(a.flatten(1)[:, :, None, None], b.flatten(1)[:, :, None, None]) for a, b in pairs]
    numbers = range(1, len(pairs) + 1) if layers is None else layers
    flat = [number for number, (a, b) in zip(numbers, pairs, strict=True) if min(a.dim(), b.dim()) < 4]
    maps = [pair for pair in pairs if min(part.dim() for part in pair) >= 4]
    if not maps or (flat and layers is not None):
        raise SettingsError(
            "stage_not_supported",
            f"The form '{form}' of `skd` compares places within an image: expected stages that give maps "
            f"(B, C, *spatial), got vectors from {sorted(flat)}. Leave them out of `layers`, or '{form}' out of `skd`.",
            form=form,
            stages=sorted(flat),
        )
    return maps
