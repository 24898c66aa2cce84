"""Records of a store: its settings, the journal's lines, and the rows of its tables."""

from __future__ import annotations

from typing import ClassVar, Literal

from medfl.errors import DataError, MedflError
from medfl.records.record import FileRecord, Record

Place = Literal["images", "quarantine"]
"""Folder of a complete series in the store."""


class StoreFile(FileRecord):
    """Settings of a store. A command with other settings for the same store is refused.

    Attributes:
        key: Fingerprint of the site's key.
        edition: Edition of the confidentiality profile.
        keep_characteristics: Whether sex, age, size and weight are kept.
    """

    NAME: ClassVar[str] = "store.json"
    VERSION: ClassVar[int] = 1
    ERROR: ClassVar[type[MedflError]] = DataError
    key: str
    edition: str
    keep_characteristics: bool


class InstanceRecord(Record):
    """Line of the journal on an instance. All UIDs are pseudonyms.

    Attributes:
        study: Study.
        series: Series.
        instance: Instance.
        status: ``stored``; ``skipped``, as neither an image nor a mask; ``refused``, as unreadable; or ``deleted``, by
            a review.
        reason: Code of the reason for the refusal; empty otherwise.
        signs: Signs of burned-in text.
    """

    study: str
    series: str
    instance: str
    status: Literal["stored", "skipped", "refused", "deleted"]
    reason: str = ""
    signs: tuple[str, ...] = ()

    @property
    def findings(self) -> tuple[str, ...]:
        """Reasons for a person to look at the instance: its signs of burned-in text, or ``refused``."""
        return ("refused",) if self.status == "refused" else self.signs

    @property
    def findings_text(self) -> str:
        """The signs and the reason for a refusal, as ``review.csv`` shows them."""
        return " ".join((*self.signs, self.reason)).strip()


class SeriesRecord(Record):
    """Line of the journal on a complete series, and its row in ``images.csv``. All UIDs and dates are pseudonyms.

    Attributes:
        patient: Patient.
        study: Study.
        series: Series.
        folder: Folder in the store, relative to it.
        modality: Modality.
        plane: ``axial``, ``coronal``, ``sagittal`` or ``oblique``; empty if unknown.
        images: Number of files.
        slices: Number of slices or frames.
        row_spacing_mm: Distance of rows; None if unknown.
        column_spacing_mm: Distance of columns; None if unknown.
        slice_spacing_mm: Median distance of slices; None if unknown.
        date: Date of the study, moved into the past; empty if unknown.
        burned_in: ``no``, ``suspected``, or ``reviewed`` by a person.
        refused: Number of instances of the series that could not be read.
    """

    patient: str
    study: str
    series: str
    folder: str
    modality: str
    plane: str
    images: int
    slices: int
    row_spacing_mm: float | None
    column_spacing_mm: float | None
    slice_spacing_mm: float | None
    date: str
    burned_in: Literal["no", "suspected", "reviewed"]
    refused: int

    @property
    def place(self) -> str:
        """The part of the store that contains the series."""
        return self.folder.partition("/")[0]


class DecisionRecord(Record):
    """Line of the journal on a person's decision about an image in quarantine.

    Attributes:
        series: Series.
        instance: Instance.
        decision: ``keep`` or ``delete``.
        findings: Findings on the instance at the time of the decision (`InstanceRecord.findings`).
    """

    series: str
    instance: str
    decision: Literal["keep", "delete"]
    findings: tuple[str, ...] = ()


class JournalLine(Record):
    """Line of the journal, with exactly one record."""

    instance: InstanceRecord | None = None
    series: SeriesRecord | None = None
    decision: DecisionRecord | None = None
