"""Find byte-identical copies among cell images, and select the test images."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from medfl.utils.seeds import seed_of

COPY_OF_SAME_CLASS = "a byte-identical copy of another image of its class"
"""Exclusion reason: the first copy of the same class is kept."""

COPY_OF_OTHER_CLASS = "a byte-identical copy of an image of another class"
"""Exclusion reason: no copy is kept, because the copies have different classes."""


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
    """Select the test images: of a stratum of n images, keep floor((1 - share) n) for training, at least one.

    Images of one unit (copies of a file) are in the same split: units of several images stay in training. The numbers
    are therefore exact, unless copies exceed a stratum's training share.

    Args:
        strata: Stratum of each image.
        units: Unit of each image.
        share: Share of the test set, 0 <= share < 1.
        seed: Seed; the selection in a stratum depends only on it and the stratum's name.

    Returns:
        Whether each image is in the test set.
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
