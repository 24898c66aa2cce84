"""Presentation intent of DICOM X-ray images: for processing (the detector's output) or for presentation (for display).

The two kinds look different, so users are warned if a data set contains both. Source: DICOM PS3.3 C.8.11.7.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from medfl.data.datalists import INTENT_KEY
from medfl.utils.text import Say

if TYPE_CHECKING:
    from pydicom import Dataset

INTENTS = ("FOR PROCESSING", "FOR PRESENTATION")
"""Presentation intents of an X-ray image: detector output for further processing, or processed for display."""

INTENT_NOT_STATED = "not said"
"""Presentation intent of a file that does not state one."""


def intent_of(dataset: Dataset) -> str:
    """Return the presentation intent that a file states: one of `INTENTS`, or `INTENT_NOT_STATED`."""
    stated = str(dataset.get("PresentationIntentType") or "")
    return stated if stated in INTENTS else INTENT_NOT_STATED


def intent_records(intents: Sequence[str]) -> list[dict[str, str]]:
    """Return a dictionary with the presentation intent for each record; empty dictionaries if no file states any.

    Args:
        intents: Intent of each image, as `intent_of` returns it; empty if it does not apply to the image.
    """
    stated = any(intent in INTENTS for intent in intents)
    return [{INTENT_KEY: intent or INTENT_NOT_STATED} if stated else {} for intent in intents]


def report_intents(intents: Sequence[str], say: Say) -> list[str]:
    """Report the presentation intents of a data set's files.

    Args:
        intents: Intent of each image, as `intent_of` returns it; empty if it does not apply to the image.
        say: Receives a line with the counts, and a warning if there are several intents.

    Returns:
        The warning for the data list, or an empty list.
    """
    counts = Counter(intent for intent in intents if intent)
    parts = ", ".join(f"{count} {intent}" for intent, count in sorted(counts.items()))
    if parts:
        say(f"note: presentation intent (DICOM): {parts}")
    if len(counts) < 2:
        return []
    warning = (
        f"the files have several presentation intents ({parts}): pixels FOR PROCESSING are the detector's output and "
        "look different from those processed for display. Keep one kind, or distinguish them by 'presentation_intent' "
        "in the data list"
    )
    say(f"warning: {warning}")
    return [warning]
