"""What the pixels of DICOM files are for: for processing, as a detector gave them, or for presentation.

The two look unlike, so a data set that has both is told of it. Source: DICOM PS3.3 C.8.11.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medfl.data.datalists import INTENT
from medfl.utils.text import Say

if TYPE_CHECKING:
    from pydicom import Dataset

INTENTS = ("FOR PROCESSING", "FOR PRESENTATION")
"""What the pixels of an X-ray image are for: as the detector gave them, or made for the eye. The two look unlike."""

NOT_SAID = "not said"
"""The presentation intent of a file that names neither."""


def intent_of(dataset: Dataset) -> str:
    """The presentation intent that a file states: one of `INTENTS`, or `NOT_SAID`."""
    stated = str(dataset.get("PresentationIntentType") or "")
    return stated if stated in INTENTS else NOT_SAID


def intent_records(intents: Sequence[str]) -> list[dict[str, str]]:
    """What the records of a data set hold of its images' intents: nothing, unless a file states one.

    Args:
        intents: As for `tell_intents`.
    """
    stated = any(intent in INTENTS for intent in intents)
    return [{INTENT: intent or NOT_SAID} if stated else {} for intent in intents]


def tell_intents(intents: Sequence[str], say: Say) -> list[str]:
    """Say what the files of a data set are for.

    Args:
        intents: Of each image, as `intent_of` gives them; empty where it makes no sense.
        say: Gets a line with the counts, and a warning if there are several kinds.

    Returns:
        The warning, for the data list.
    """
    counts = Counter(intent for intent in intents if intent)
    parts = ", ".join(f"{count} {intent}" for intent, count in sorted(counts.items()))
    if parts:
        say(f"note: presentation intent (DICOM): {parts}")
    if len(counts) < 2:
        return []
    warning = (
        f"the files are of several presentation intents ({parts}): pixels FOR PROCESSING are as the detector gave them "
        "and look unlike those made for the eye. Keep one kind, or tell them apart by 'presentation_intent' in the "
        "data list"
    )
    say(f"warning: {warning}")
    return [warning]
