"""Images that are in two places which must not share any: training and the server's test set, public and private."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from medfl.data.datalists import subjects_of
from medfl.errors import DataError
from medfl.records.datalist import CaseRecord
from medfl.types import LeakKind


@dataclass(frozen=True)
class Sides:
    """What is compared with what, in words.

    Attributes:
        what: What is compared, and may be left out.
        held: What it must not share images with.
        title: Both, for a message.
    """

    what: str
    held: str
    title: str

    @property
    def reason(self) -> str:
        """Why an image was left out."""
        return f"the same image or patient is in {self.held}"

    def sentence(self, kind: LeakKind, count: int) -> str:
        """What was found, for a message or a report."""
        alike = (
            f"of subjects who are in {self.held} too" if kind == "subjects" else f"identical to images of {self.held}"
        )
        return f"{kind}: {images(count, f'{self.what} image')} {alike}"


OF_TRAINING = Sides("training", "the server's test set", "the training split and the pooled test split")
OF_SITES = Sides("training", "a site's test set", "the training split and the pooled test split")
OF_PUBLIC = Sides(
    "public", "the private sets", "the public data and the private sets (the sites', the server's test set)"
)


@dataclass(frozen=True)
class PublicPool:
    """Public data before they are compared with the private ones.

    Attributes:
        splits: Split to records.
        hashes: Hash of the pixels of each row of their array.
        same_pool: Whether that array is the pooled one, so that subjects can be compared.
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
    """Find images whose subject, or whose pixels, are among others.

    Args:
        records: Of the images.
        others: Records of the others.
        hashes: Hash of each row of the array of `records`.
        other_hashes: Hash of each row of that of `others`; None means the same array. Subjects of two arrays can't be
            compared: their names are made up for each.

    Returns:
        Kind of leak to a mask of the images, shape (n,), bool.
    """
    pixels = {(hashes if other_hashes is None else other_hashes)[record["image"]] for record in others}
    subjects = set(subjects_of(others)) - {None} if other_hashes is None else set()
    return {
        "subjects": np.array([subject in subjects for subject in subjects_of(records)], dtype=bool),
        "pixels": np.array([hashes[record["image"]] in pixels for record in records], dtype=bool),
    }


def images(count: int, what: str = "image") -> str:
    """A number of images in words: ``1 image``, ``2 images``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def refuse(counts: dict[LeakKind, int], sides: Sides) -> None:
    """End with what was found and what can be done.

    Args:
        counts: Kind of leak to number of images.
        sides: What was compared.

    Raises:
        DataError: Always.
    """
    lines = "\n".join(f"  {sides.sentence(kind, count)}" for kind, count in counts.items())
    allow = " ".join(f"--allow-leak {kind}" for kind in counts)
    raise DataError(
        "data_leak",
        f"{sides.title} share patients or images:\n{lines}\n"
        f"Either leave the {sides.what} copies out (--duplicates drop), or keep them and have it recorded ({allow}).",
        what=sides.what,
        held=sides.held,
        counts=counts,
    )
