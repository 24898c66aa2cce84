"""Training images that are in the server's test set as well."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from medfl.data.datalists import Record, subjects_of
from medfl.data.leaks import Kind
from medfl.errors import DataError

REASON = "the same image or patient is in the server's test set"
"""Why a training image was left out."""

_WHAT: dict[Kind, str] = {
    "subjects": "of subjects who are in the server's test set too",
    "pixels": "identical to images of the server's test set",
}


def find_overlap(training: Sequence[Record], test: Sequence[Record], hashes: Sequence[bytes]) -> dict[Kind, np.ndarray]:
    """Find training images whose subject, or whose pixels, are in a test set of the same pool.

    Args:
        training: Records of the training images.
        test: Records of the test images.
        hashes: Hash of each row of the pooled array.

    Returns:
        Kind of leak to a mask of the training images, shape (n,), bool.
    """
    pixels = {hashes[record["image"]] for record in test}
    subjects = set(subjects_of(test)) - {None}
    return {
        "subjects": np.array([subject in subjects for subject in subjects_of(training)], dtype=bool),
        "pixels": np.array([hashes[record["image"]] in pixels for record in training], dtype=bool),
    }


def sentence(kind: Kind, count: int) -> str:
    """What was found, for a message or a report."""
    return f"{kind}: {images(count, 'training image')} {_WHAT[kind]}"


def images(count: int, what: str = "image") -> str:
    """A number of images in words: ``1 image``, ``2 images``."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def refuse(found: dict[Kind, int]) -> None:
    """End with what was found and what can be done.

    Args:
        found: Kind of leak to number of training images.

    Raises:
        DataError: Always.
    """
    lines = "\n".join(f"  {sentence(kind, count)}" for kind, count in found.items())
    allow = " ".join(f"--allow-leak {kind}" for kind in found)
    raise DataError(
        f"the training split and the pooled test split share patients or images:\n{lines}\n"
        f"Either leave the training copies out (--duplicates drop), or keep them and have it recorded ({allow})."
    )
