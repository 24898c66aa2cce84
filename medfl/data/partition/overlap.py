"""Find images that are in two sets that must not share any: training and test data, or public and private data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from medfl.data.datalists import subjects_of
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.types import LeakKind


@dataclass(frozen=True)
class ComparedSets:
    """Wording for a comparison of two sets of images in messages and reports.

    Attributes:
        what: Kind of the images whose copies may be dropped: ``training`` or ``public``.
        held: Name of the other set, which keeps its images, such as ``the server's test set``.
        title: Names of both sets, for the start of a message.
    """

    what: str
    held: str
    title: str

    @property
    def reason(self) -> str:
        """Reason that is recorded for an image that was dropped as a copy."""
        return f"the same image or patient is in {self.held}"

    def sentence(self, kind: LeakKind, count: int) -> str:
        """Return a sentence that states the number of shared images, for a message or a report."""
        relation = (
            f"of subjects who are in {self.held} too" if kind == "subjects" else f"identical to images of {self.held}"
        )
        return f"{kind}: {image_count_text(count, f'{self.what} image')} {relation}"


OF_TRAINING = ComparedSets("training", "the server's test set", "the training split and the pooled test split")
"""Wording for training images that are also in the server's test set."""
OF_SITES = ComparedSets("training", "a site's test set", "the training split and the pooled test split")
"""Wording for training images that are also in a site's test set."""
OF_PUBLIC = ComparedSets(
    "public", "the private sets", "the public data and the private sets (the sites', the server's test set)"
)
"""Wording for public images that are also in private data."""


@dataclass(frozen=True)
class PublicPool:
    """Public data before their comparison with private data.

    Attributes:
        splits: Maps each split to its records.
        hashes: Hash of the pixels of each row of the public array.
        same_pool: Whether the public array is the pooled array, so that subject identifiers can be compared.
    """

    splits: Mapping[str, list[CaseRecord]]
    hashes: Sequence[bytes]
    same_pool: bool = False


def find_overlap(
    records: Sequence[CaseRecord],
    others: Sequence[CaseRecord],
    hashes: Sequence[bytes],
    other_hashes: Sequence[bytes] | None = None,
) -> dict[LeakKind, np.ndarray]:
    """Find images whose subject or whose pixels also occur in other records.

    Args:
        records: Records of the images to check.
        others: Records to compare with.
        hashes: Hash of each row of the array of `records`.
        other_hashes: Hash of each row of the array of `others`; None means the same array. Subjects of two arrays are
            not compared, because their identifiers were generated separately.

    Returns:
        Maps each kind of leak (``subjects``, ``pixels``) to a mask of the n checked images, shape (n,), bool.
    """
    pixels = {(hashes if other_hashes is None else other_hashes)[record["image"]] for record in others}
    subjects = set(subjects_of(others)) - {None} if other_hashes is None else set()
    return {
        "subjects": np.array([subject in subjects for subject in subjects_of(records)], dtype=bool),
        "pixels": np.array([hashes[record["image"]] in pixels for record in records], dtype=bool),
    }


def image_count_text(count: int, what: str = "image") -> str:
    """Return a number of images in words: ``1 image``, ``2 images``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def raise_overlap(counts: dict[LeakKind, int], sides: ComparedSets) -> None:
    """Raise a DataError that lists the overlap and the possible remedies.

    Args:
        counts: Maps each kind of leak to its number of images.
        sides: Wording for the compared sets.

    Raises:
        DataError: Always.
    """
    lines = "\n".join(f"  {sides.sentence(kind, count)}" for kind, count in counts.items())
    allow = " ".join(f"--allow-leak {kind}" for kind in counts)
    raise DataError(
        "data_leak",
        f"{sides.title} share patients or images:\n{lines}\n"
        f"Either leave the {sides.what} copies out (--duplicates drop), or keep them and record the leak ({allow}).",
        what=sides.what,
        held=sides.held,
        counts=counts,
    )
