"""Find elements of a DICOM file that may identify the patient.

medfl never keeps the values of these elements. The check lets users refuse, or count, files from which they should have
been removed.

The list is the part of the Basic Application Level Confidentiality Profile (DICOM PS3.15, table E.1-1) that covers
people, numbers, places and dates. In a file that declares the patient's identity as removed
(``PatientIdentityRemoved``), names, numbers and dates are taken for pseudonyms. Other elements, such as the birth date,
always count.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import DataElement, Dataset

IDENTITY_CHECKS = ("strip", "refuse")
"""Treatments of files that may identify the patient: ``strip`` reads them without these elements, ``refuse`` raises."""

PSEUDONYMIZABLE = ("PatientName", "PatientID")
"""Keywords of elements that contain a pseudonym in a de-identified file, and identify the patient otherwise."""

PSEUDONYMIZABLE_DATES = ("StudyDate", "SeriesDate", "AcquisitionDate", "AcquisitionDateTime", "ContentDate")
"""Keywords of elements with a date, which is shifted or generated in a de-identified file."""

IDENTIFYING = (
    "OtherPatientIDs",
    "OtherPatientNames",
    "PatientAddress",
    "PatientBirthDate",
    "PatientBirthName",
    "PatientMotherBirthName",
    "PatientTelephoneNumbers",
    "PatientComments",
    "MilitaryRank",
    "MedicalRecordLocator",
    "AccessionNumber",
    "InstitutionName",
    "InstitutionAddress",
    "OperatorsName",
    "PerformingPhysicianName",
    "PhysiciansOfRecord",
    "NameOfPhysiciansReadingStudy",
    "ReferringPhysicianName",
    "RequestingPhysician",
    "ResponsiblePerson",
)
"""Keywords of elements that no de-identified file may contain."""

_DUMMY_VALUES = ("", "anon", "anonymous", "anonymized", "anonymised", "deidentified", "none", "unknown", "na", "n/a")
"""Placeholder values that identify no one, in lower case."""


def check_identity(dataset: Dataset, pseudonyms: Collection[str] = ()) -> list[str]:
    """Return the keywords of elements that may identify the patient, at any nesting depth.

    Args:
        dataset: Data set of the file.
        pseudonyms: Patient names and identifiers that are known to be pseudonyms.

    Returns:
        Sorted keywords, without values.
    """
    is_deidentified = str(dataset.get("PatientIdentityRemoved") or "") == "YES" or (
        bool(pseudonyms) and all(_is_dummy(str(dataset.get(name) or ""), pseudonyms) for name in PSEUDONYMIZABLE)
    )
    wanted = IDENTIFYING if is_deidentified else (*IDENTIFYING, *PSEUDONYMIZABLE, *PSEUDONYMIZABLE_DATES)
    elements = _filled_elements(dataset, frozenset(wanted))
    return sorted({element.keyword for element in elements if not _is_dummy(str(element.value), pseudonyms)})


def refuse_identity(identifying: Collection[str], burned_in: bool) -> None:
    """Raise if a file may identify the patient.

    Args:
        identifying: Keywords from `check_identity`.
        burned_in: Whether the file states that annotations are burned into its pixels.

    Raises:
        DataError: If there is any keyword, or `burned_in` is True.
    """
    if identifying:
        raise DataError(
            "identifying_header",
            f"its header may identify the patient ({', '.join(identifying)}). Remove these elements, or give "
            "--deidentify-check strip: medfl keeps nothing of them.",
            elements=list(identifying),
        )
    if burned_in:
        raise DataError(
            "burned_in_annotation",
            "its header states that annotations such as names are burned into its pixels. Blacken them, or give "
            "--deidentify-check strip after you have looked at it.",
        )


def is_burned_in(dataset: Dataset) -> bool:
    """Return True if a file states that annotations such as names are burned into its pixels."""
    return str(dataset.get("BurnedInAnnotation") or "") == "YES"


def _is_dummy(text: str, pseudonyms: Collection[str]) -> bool:
    return text in pseudonyms or text.strip(" ^").lower() in _DUMMY_VALUES


def _filled_elements(dataset: Dataset, wanted: frozenset[str]) -> Iterator[DataElement]:
    """Yield the wanted elements that have a value, at any nesting depth.

    The search is not recursive, because a file may nest arbitrarily deep.
    """
    pending = [dataset]
    while pending:
        level = pending.pop()
        for tag in level.keys():  # noqa: SIM118  (a data set's own iteration decodes each element)
            keyword, kind = _keyword_and_vr(tag)
            if "SQ" in (kind, level.get_item(tag).VR):
                pending += level[tag].value or []
            elif keyword in wanted and level[tag].value not in (None, ""):
                yield level[tag]


def _keyword_and_vr(tag: int) -> tuple[str, str]:
    """Return keyword and value representation of an element; empty for private elements."""
    from pydicom.datadict import DicomDictionary

    entry = DicomDictionary.get(int(tag))
    return (entry[4], entry[0]) if entry else ("", "")
