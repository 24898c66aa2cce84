"""Records in a data list; `medfl.data.datalists` reads and writes the list itself."""

from __future__ import annotations

from typing import Any, TypedDict, cast

from pydantic import NonNegativeInt

from medfl.records.record import Record


class CaseRecord(TypedDict, total=False):
    """One case of a data list; which keys it needs depends on the list's objective.

    A record can hold further entries, such as columns of a hospital's own table. `entry_text` reads them, and
    `make_record` makes a record with them. A list is read without a check of its records: `integers` and
    `record_targets` of `medfl.data.targets` check those that are used.

    Attributes:
        image: Row of the image array.
        label: Number of the class.
        target: A number, or a list of numbers, where cases are of no class; None stands for an unknown number.
        in_mask: Numbers of the structures that the case's mask shows.
        subject_id: Pseudonym of the patient.
        site: Name of the hospital.
        centre: Scanning centre.
        sex: Sex of the patient, or None if it is unknown.
        age: Age of the patient in years, or None if it is unknown.
        presentation_intent: Purpose of a DICOM file's pixels, see `medfl.data.readers.dicom_intent`.
    """

    image: int
    label: int
    target: float | list[float | None] | None
    in_mask: list[int]
    subject_id: str
    site: str
    centre: str
    sex: str | None
    age: float | None
    presentation_intent: str


def make_record(entries: dict[str, Any]) -> CaseRecord:
    """Return entries of a case as a record, columns that `CaseRecord` does not name included."""
    return cast("CaseRecord", entries)


class Exclusion(Record):
    """Images that were left out of a data set for one reason.

    Attributes:
        reason: The reason.
        count: Number of images.
    """

    reason: str
    count: NonNegativeInt
