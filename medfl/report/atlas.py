"""The regions of a data set's atlas in three slices, over the mean of training images where no single one shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from medfl.data.arrays import channels_of, open_array
from medfl.data.datalists import Datalist, entry_text, read_datalist
from medfl.data.regions import load_regions

FEWEST = 10
"""Persons whose images are averaged at least; of fewer, nothing is shown, so that nobody's own image is."""

MOST = 50
"""Images that are averaged at most, evenly chosen, to bound the time."""

PLANES = ("sagittal", "coronal", "axial")
"""Slices across the first, second and third axis: to the right, to the front, up."""


@dataclass(frozen=True)
class Slice:
    """A slice through the middle of the atlas.

    Attributes:
        plane: One of `PLANES`.
        regions: (H, W), int64: number of the region, 0 for none; row 0 is the lowest.
        mean: (H, W), float64: mean of the images there, or None if they are not shown.
    """

    plane: str
    regions: np.ndarray
    mean: np.ndarray | None


@dataclass(frozen=True)
class AtlasView:
    """The atlas of a data set.

    Attributes:
        name: Of the atlas; empty if not known.
        regions: Number of its regions on the grid.
        grid: Voxels along each axis.
        channel: Name of the channel that is averaged; empty if not known.
        images: How many images were averaged; 0 if none.
        persons: In the training data, of whom an image each could be averaged.
        upright: Whether the left of the axial and coronal slice is the left of the body.
        slices: One for each of `PLANES`.
    """

    name: str
    regions: int
    grid: tuple[int, ...]
    channel: str
    images: int
    persons: int
    upright: bool
    slices: list[Slice]


def read_atlas(dataset_dir: Path, sites: Sequence[str], show_images: bool = True) -> AtlasView | None:
    """Read the atlas of a partitioned data set, and the mean of its training images.

    Args:
        dataset_dir: The folder that holds one folder for each site.
        sites: Names of the sites whose training images count.
        show_images: Whether images may be averaged at all.

    Returns:
        None where the data set has no atlas.

    Raises:
        DataError: If data lists, images or the atlas can't be read, or don't belong together.
    """
    labels = load_regions(dataset_dir)
    if labels is None or labels.ndim != len(PLANES):
        return None
    regions = labels.numpy()
    lists = {site: read_datalist(dataset_dir / site) for site in sites}
    first = lists[sites[0]]
    chosen = _one_of_each_person(dataset_dir, lists)
    mean = _mean(chosen) if show_images and len(chosen) >= FEWEST else None
    return AtlasView(
        name=str(first.extra.get("atlas", {}).get("name", "")),
        regions=int(regions.max()),
        grid=regions.shape,
        channel=str(next(iter(first.extra.get("channels", [])), "")),
        images=0 if mean is None else min(len(chosen), MOST),
        persons=len(chosen),
        upright=_upright(first),
        slices=[_slice(axis, regions, mean) for axis in range(len(PLANES))],
    )


def _one_of_each_person(dataset_dir: Path, lists: dict[str, Datalist]) -> list[tuple[Path, int]]:
    """Array and row of the first training image of each person; an image of nobody known is a person's of its own."""
    found: dict[object, tuple[Path, int]] = {}
    for site, datalist in lists.items():
        array = (dataset_dir / site / datalist.image_array).resolve()
        for record in datalist.splits["training"]:
            image = (array, int(record["image"]))
            found.setdefault(entry_text(record, "subject_id") or image, image)
    return sorted(found.values())


def _mean(chosen: Sequence[tuple[Path, int]]) -> np.ndarray:
    """Mean of the first channel over images that are evenly chosen from all."""
    places = np.linspace(0, len(chosen) - 1, min(len(chosen), MOST)).round().astype(int)
    total: np.ndarray | None = None
    for path, row in (chosen[place] for place in places):
        images = open_array(path)
        one = np.asarray(images[row] if channels_of(images.shape) is None else images[row][..., 0], np.float64)
        total = one if total is None else total + one
    assert total is not None
    return total / len(places)


def _upright(datalist: Datalist) -> bool:
    affine = np.asarray(datalist.extra.get("affine", np.zeros((4, 4))), np.float64)
    if affine.shape != (4, 4):
        return False
    turn = affine[:3, :3]
    return bool((np.diag(turn) > 0).all()) and not (turn - np.diag(np.diag(turn))).any()


def _slice(axis: int, regions: np.ndarray, mean: np.ndarray | None) -> Slice:
    held = np.flatnonzero(regions.any(axis=tuple(other for other in range(regions.ndim) if other != axis)))
    place = int(held[0] + held[-1]) // 2
    cut = [None if volume is None else volume.take(place, axis=axis).T for volume in (regions, mean)]
    assert cut[0] is not None
    return Slice(PLANES[axis], cut[0], cut[1])
