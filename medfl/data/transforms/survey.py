"""Inspect all cases of a split before a run: digests of their pixels for the leak check, and empty masks."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from medfl.data.leaks import PlaceContents
from medfl.data.transforms.dataset import TransformDataset


@dataclass(frozen=True)
class SplitSurvey:
    """Result of inspecting all cases of a split.

    Attributes:
        pixels: 16-byte hash of each case; equal for equal inputs after the deterministic transforms.
        shapes: Spatial shape of each case after the deterministic transforms.
        empty: Maps each target key to the number of cases with an empty mask. Empty masks are allowed.
    """

    pixels: tuple[bytes, ...]
    shapes: tuple[tuple[int, ...], ...]
    empty: Mapping[str, int]


def survey_split(data: TransformDataset) -> SplitSurvey:
    """Inspect all cases of a split after the deterministic transforms. This also fills the cache.

    Raises:
        DataError: If a case can't be loaded. The message names its row.
    """
    pixels, shapes, empty = [], [], dict[str, int]()
    for samples in data.beginnings():
        content = hashlib.blake2b(digest_size=16)
        for sample in samples:
            image = np.ascontiguousarray(sample[data.inputs])
            content.update(f"{image.dtype} {image.shape}".encode() + image.tobytes())
        pixels.append(content.digest())
        shapes.append(tuple(np.shape(samples[0][data.inputs])[1:]))
        for key in data.target_keys:
            masks = [sample[key] for sample in samples if np.ndim(sample[key]) > 2]
            empty[key] = empty.get(key, 0) + (len(masks) > 0 and not any(bool((mask > 0).any()) for mask in masks))
    return SplitSurvey(tuple(pixels), tuple(shapes), empty)


def place_contents(data: TransformDataset, subjects: Iterable[Hashable] = ()) -> PlaceContents:
    """Return the subjects and images of a split, for `medfl.data.leaks.leaks_between`.

    Args:
        data: The split.
        subjects: Subjects of its cases, if known.
    """
    return PlaceContents(set(subjects), set(survey_split(data).pixels))
