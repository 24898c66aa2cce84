"""Which elements of a DICOM file may tell who the patient is.

medfl keeps nothing of them in any case. They are looked for so that files from which they should have been removed can
be refused, or counted.

The list is the part of the Basic Application Level Confidentiality Profile (DICOM PS3.15, table E.1-1) that names
people, numbers, places and dates. A file that declares the patient's identity as removed (``PatientIdentityRemoved``)
may have names, numbers and dates: they are made up. Other elements, such as the birth date, count all the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import DataElement, Dataset

CHECKS = ("strip", "refuse")
"""What becomes of files that may tell who the patient is: nothing of it is kept, or they can't be read."""

PSEUDONYMS = ("PatientName", "PatientID")
"""What may hold a made-up name or number."""

DATES = ("StudyDate", "SeriesDate", "AcquisitionDate", "AcquisitionDateTime", "ContentDate")
"""What may hold a made-up date."""

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
"""What no file may hold that is to pass as de-identified."""

_DUMMIES = ("", "anon", "anonymous", "anonymized", "anonymised", "deidentified", "none", "unknown", "na", "n/a")


def check_identity(dataset: Dataset, pseudonyms: Collection[str] = ()) -> list[str]:
    """Elements that may tell who the patient is, wherever they are nested.

    Args:
        dataset: The file.
        pseudonyms: Names and numbers of patients that identify nobody.

    Returns:
        Their keywords, sorted; their values are not given.
    """
    made_up = str(dataset.get("PatientIdentityRemoved") or "") == "YES" or (
        bool(pseudonyms) and all(_is_dummy(str(dataset.get(name) or ""), pseudonyms) for name in PSEUDONYMS)
    )
    wanted = IDENTIFYING if made_up else (*IDENTIFYING, *PSEUDONYMS, *DATES)
    elements = _filled(dataset, frozenset(wanted))
    return sorted({element.keyword for element in elements if not _is_dummy(str(element.value), pseudonyms)})


def refuse_identity(identifying: Collection[str], burned_in: bool) -> None:
    """Refuse a file that may tell who the patient is.

    Args:
        identifying: What `check_identity` found.
        burned_in: Whether the file says that names or the like are written into its pixels.

    Raises:
        DataError: If there is anything.
    """
    if identifying:
        raise DataError(
            "identifying_header",
            f"its header may tell who the patient is ({', '.join(identifying)}). Remove these elements, or give "
            "--deidentify-check strip: medfl keeps nothing of them.",
            elements=list(identifying),
        )
    if burned_in:
        raise DataError(
            "burned_in_annotation",
            "its header says that names or the like are burned into its pixels. Blacken them, or give "
            "--deidentify-check strip after you have looked at it.",
        )


def is_burned_in(dataset: Dataset) -> bool:
    """Whether a file says that names or the like are written into its pixels."""
    return str(dataset.get("BurnedInAnnotation") or "") == "YES"


def _is_dummy(text: str, pseudonyms: Collection[str]) -> bool:
    return text in pseudonyms or text.strip(" ^").lower() in _DUMMIES


def _filled(dataset: Dataset, wanted: frozenset[str]) -> Iterator[DataElement]:
    """The wanted elements at any depth; without recursion, since a file may nest as deep as it likes."""
    waiting = [dataset]
    while waiting:
        level = waiting.pop()
        for tag in level.keys():  # noqa: SIM118  (a data set's own iteration decodes each element)
            keyword, kind = _known(tag)
            if "SQ" in (kind, level.get_item(tag).VR):
                waiting += level[tag].value or []
            elif keyword in wanted and level[tag].value not in (None, ""):
                yield level[tag]


def _known(tag: int) -> tuple[str, str]:
    """Keyword and value representation of an element; empty for private ones."""
    from pydicom.datadict import DicomDictionary

    entry = DicomDictionary.get(int(tag))
    return (entry[4], entry[0]) if entry else ("", "")
