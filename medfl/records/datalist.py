"""Schema of the records in a data list, which `medfl.data.datalists` reads and writes."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from pydantic import NonNegativeInt

from medfl.records.record import Record


class CaseRecord(TypedDict, total=False):
    """One case of a data list. Its required keys depend on the objective of the list.

    A record can have further entries, such as columns of a hospital's own table. `entry_text` reads them, and
    `make_record` builds a record with them. A list is read without checking its records. `integers` and
    `record_targets` of `medfl.data.targets` check the records that are used.

    Attributes:
        image: Number of the image's row in the array file that contains all images.
        label: Number of the class.
        target: Number or list of numbers, if cases have no class; None is an unknown number.
        features: Encoded table columns of an image, in the order of the list's features; None is a missing number.
        in_mask: Numbers of the structures (segmentation classes) that the case's mask shows.
        subject_id: Pseudonym of the patient.
        site: Name of the hospital.
        centre: Name of the scanning centre.
        sex: Sex of the patient, or None if it is unknown.
        age: Age of the patient in years, or None if it is unknown.
        presentation_intent: Purpose of a DICOM file's pixels: for processing or for presentation.
    """

    image: int
    label: int
    target: float | list[float | None] | None
    features: list[float | None]
    in_mask: list[int]
    subject_id: str
    site: str
    centre: str
    sex: str | None
    age: float | None
    presentation_intent: str


def make_record(entries: dict[str, Any]) -> CaseRecord:
    """Return the entries of a case as a record, unchanged. Keys that `CaseRecord` does not declare are also allowed."""
    return cast("CaseRecord", entries)


class Exclusion(Record):
    """Number of images that were left out of a data set for one reason.

    Attributes:
        reason: The reason.
        count: Number of images.
    """

    reason: str
    count: NonNegativeInt

    def __str__(self) -> str:
        """Return the exclusion as a sentence."""
        return f"{self.count} left out: {self.reason}"
