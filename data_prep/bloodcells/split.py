"""Find byte-identical copies among cell images, and select the test images."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from medfl.utils.seeds import seed_of

COPY_OF_SAME_CLASS = "a byte-identical copy of another image of its class"
"""Exclusion reason of all byte-identical copies in one class but the first, which is kept."""

COPY_OF_OTHER_CLASS = "a byte-identical copy of an image of another class"
"""Exclusion reason of byte-identical copies in different classes; none is kept."""


def find_copies(labels: Sequence[int], digests: Sequence[str]) -> dict[int, str]:
    """Select the images to exclude, so that no two remaining images are byte-identical.

    Of copies in one class the first is kept. Copies in several classes are all excluded, because no one can tell which
    label is right.

    Args:
        labels: Class of each image.
        digests: Hash of each file's bytes.

    Returns:
        Maps the index of each excluded image to `COPY_OF_SAME_CLASS` or `COPY_OF_OTHER_CLASS`.
    """
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, digest in enumerate(digests):
        places[digest].append(place)
    copies: dict[int, str] = {}
    for alike in places.values():
        if len({labels[place] for place in alike}) > 1:
            copies |= dict.fromkeys(alike, COPY_OF_OTHER_CLASS)
        else:
            copies |= dict.fromkeys(alike[1:], COPY_OF_SAME_CLASS)
    return copies


def select_test_images(strata: Sequence[str], units: Sequence[Hashable], share: float, seed: int) -> list[bool]:
    """Draw the test images at random, separately in each stratum (the images of one class of one release).

    Of n images in a stratum, floor((1 - share) n) stay in training, but at least one. A unit is an image and its
    byte-identical copies. A unit with copies stays in training as a whole, so that no copy is in both splits. If a
    stratum has too many copies, it gets fewer test images.

    Args:
        strata: Name of the stratum of each image.
        units: Identifier of the unit of each image; equal for copies of one file.
        share: Share of the test set, 0 <= share < 1.
        seed: Seed; the selection in a stratum depends only on it and the stratum's name.

    Returns:
        For each image, True if it is in the test set.
    """
    sizes = Counter(units)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for place, stratum in enumerate(strata):
        members[stratum].append(place)
    test_images = [False] * len(strata)
    for stratum, places in members.items():
        single = [place for place in places if sizes[units[place]] == 1]
        count = len(places) - max(1, math.floor((1 - share) * len(places) + 1e-9))
        order = np.random.default_rng(seed_of(seed, "blood cells", stratum, "test")).permutation(len(single))
        for number in order[:count]:
            test_images[single[number]] = True
    return test_images
