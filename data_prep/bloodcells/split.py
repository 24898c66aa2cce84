"""Copies of the same file among cells, and the split into training and test."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

import numpy as np

from medfl.utils.seeds import seed_of

SAME = "a byte-identical copy of another image of its class"
"""Why an image is left out."""

CONFLICT = "a byte-identical copy of an image of another class"
"""Why an image, and its copy, are left out."""


def find_copies(labels: Sequence[int], digests: Sequence[str]) -> dict[int, str]:
    """Which images to leave out, so that no two of the same bytes are left.

    Of copies in one class the first is kept; copies in several classes all go, since no one can tell which label is
    right.

    Args:
        labels: Of each image.
        digests: A hash of the bytes of each file.

    Returns:
        Place to `SAME` or `CONFLICT`.
    """
    places: defaultdict[str, list[int]] = defaultdict(list)
    for place, digest in enumerate(digests):
        places[digest].append(place)
    copies: dict[int, str] = {}
    for alike in places.values():
        if len({labels[place] for place in alike}) > 1:
            copies |= dict.fromkeys(alike, CONFLICT)
        else:
            copies |= dict.fromkeys(alike[1:], SAME)
    return copies


def choose_test(strata: Sequence[str], units: Sequence[Hashable], share: float, seed: int) -> list[bool]:
    """Choose the test set: of each stratum of n images floor((1 - share) n) are left for training, at least one.

    Images of one unit (copies of a file) are on one side: units of several images stay in training, so the numbers
    hold exactly, unless copies are more than a stratum's share.

    Args:
        strata: The stratum of each image.
        units: The unit of each image.
        share: Of the test set, 0 <= share < 1.
        seed: Decides which images these are, together with the name of the stratum alone.

    Returns:
        For each image whether it is in the test set.
    """
    sizes = Counter(units)
    members: defaultdict[str, list[int]] = defaultdict(list)
    for place, stratum in enumerate(strata):
        members[stratum].append(place)
    tested = [False] * len(strata)
    for stratum, places in members.items():
        single = [place for place in places if sizes[units[place]] == 1]
        count = len(places) - max(1, math.floor((1 - share) * len(places) + 1e-9))
        order = np.random.default_rng(seed_of(seed, "blood cells", stratum, "test")).permutation(len(single))
        for number in order[:count]:
            tested[single[number]] = True
    return tested
