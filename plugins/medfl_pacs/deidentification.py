"""Pseudonymise a DICOM data set: apply the confidentiality profile at every nesting depth.

The actions of `medfl_pacs.profile_actions` apply with options of PS3.15: longitudinal temporal information with
modified dates, the safe private elements that SUV needs (`SAFE_PRIVATE`), and, if chosen, patient characteristics.
Rules on value representations cover elements that the table does not list: other UIDs become pseudonyms, other dates
move, and elements that may contain any text are removed (`_may_contain_anything`). All other private elements, elements
that the dictionary does not know, and elements of a wrong representation are removed. Overlays are removed, also those
in unused bits of the pixel data.

Afterwards, texts that repeat an identifying value of the same data set are emptied. If the pixel data repeat one, the
data set is refused.
"""

from __future__ import annotations

import datetime
import io
import math
import re
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.errors import DataError
from medfl.version import __version__
from medfl_pacs.profile_actions import EDITION, Action, load_actions
from medfl_pacs.pseudonyms import Pseudonyms

if TYPE_CHECKING:
    from pydicom import DataElement, Dataset

PATIENT_GROUP = 0x0010
"""Group of the elements on the patient. Their dates do not move: they are emptied or removed."""

PIXEL_GROUPS = (0x0028, 0x7FE0)
"""Groups of the pixel data, their lookup tables and colour profiles; bytes in other groups are removed."""

DATES, FREE_TEXTS = ("DA", "DT"), ("PN", "AE", "LT", "ST", "UT", "UC", "UR")
"""Value representations of dates, and of names, machines and free texts."""

SHORT_TEXTS = ("LO", "SH", "CS", "AS")
"""Value representations of short and coded texts, which are searched for identifying values."""

BINARY = ("OB", "OW", "OD", "OF", "OL", "OV", "OB or OW")
"""Value representations of bytes."""

NUMBERS = ("DS", "IS", "US", "SS", "UL", "SL", "FL", "FD", "UV", "SV", "US or SS")
"""Value representations of numbers."""

CHARACTERISTICS = {0x00100040, 0x00101010, 0x00101020, 0x00101030}
"""Tags of sex, age, size and weight, which the option on patient characteristics keeps."""

PHILIPS_GROUP, PHILIPS_CREATOR = 0x7053, "Philips PET Private Group"
"""Group and creator of the private elements of Philips PET."""

SAFE_PRIVATE = (0x00, 0x09)
"""Elements of this group that are kept: the factors from rescaled values to SUV and to activity per volume.

PS3.15 lists them as safe (table E.3.10-1). Of the elements on that list, only these are needed to read images. The
elements from which SUV of GE can follow are times and activities, and not on that list.
"""

MAX_AGE_YEARS = 89
"""Oldest age in years that is kept; older patients are recorded as 90."""

MIN_NAME_CHARACTERS, MIN_TEXT_CHARACTERS, MIN_PIXEL_BYTES = 3, 6, 8
"""Minimum lengths of a part of a name, of another text, and of bytes, to be searched for in the remaining elements.

A part of a name in another script than Latin is searched for at any length, because it may have one or two characters.
"""

_PLACE_OR_NUMBER = {0x00080050, 0x00080080, 0x00080081, 0x00081040}
"""Tags of accession number, institution, its address and its department, searched for in coded values, too."""

_CODES = {
    "113100": "Basic Application Confidentiality Profile",
    "113107": "Retain Longitudinal Temporal Information Modified Dates Option",
    "113108": "Retain Patient Characteristics Option",
    "113111": "Retain Safe Private Option",
}
"""Codes of the profile and its options (PS3.16, context group 7050)."""

_OFFSET = r"[+-](?:0\d|1[0-4])[0-5]\d"
_DATE = re.compile(rf"(\d{{4}})[.-]?(\d\d)[.-]?(\d\d)((?:\d\d){{0,3}}(?:\.\d{{1,6}})?(?:{_OFFSET})?)")
_TIME = re.compile(r"[\d.: ]*")


@dataclass(frozen=True)
class Patient:
    """Pseudonym of the patient of a data set.

    Attributes:
        pseudonym: Pseudonym.
        shift_days: Number of days that the patient's dates move into the past.
    """

    pseudonym: str
    shift_days: int


@dataclass
class _IdentifyingValues:
    """Original values of a data set that must not remain anywhere, in lower case.

    Attributes:
        strict: Names, numbers, places, and UIDs.
        texts: Dates and other removed texts. A coded value, such as a body part, may equal one by chance.
    """

    strict: set[str] = field(default_factory=set)
    texts: set[str] = field(default_factory=set)

    def remember(self, element: DataElement) -> None:
        """Add the values of an element that is removed or replaced."""
        if element.VR == "SQ" or element.VR in BINARY or element.value is None:
            return
        for value in _values_of(element):
            text = str(value).strip("\0 ").casefold()
            if element.VR == "PN":
                parts = re.split(r"[\^=\s,]+", text)
                self.strict.update(part for part in parts if len(part) >= MIN_NAME_CHARACTERS or not part.isascii())
            elif element.VR == "UI":
                self.strict.add(text)
            elif element.VR in ("LO", "SH", "LT", "ST", "UT", "UC"):
                is_strict = element.tag.group == PATIENT_GROUP or int(element.tag) in _PLACE_OR_NUMBER
                if len(text) >= (MIN_NAME_CHARACTERS if is_strict else MIN_TEXT_CHARACTERS):
                    (self.strict if is_strict else self.texts).add(text)
            elif element.VR in DATES and re.match(r"\d{8}", text):
                year, month, day = text[:4], text[4:6], text[6:8]
                self.texts |= {text[:8], f"{year}-{month}-{day}", f"{day}.{month}.{year}", f"{month}/{day}/{year}"}

    def occur_in(self, element: DataElement) -> bool:
        """Return True if a text element repeats a value; short values in Latin letters count as whole words only."""
        values = self.strict if element.VR == "CS" else self.strict | self.texts
        text = str(element.value).casefold()
        for value in values:
            is_short = len(value) < MIN_TEXT_CHARACTERS and value.isascii()
            if value in text and (not is_short or re.search(rf"(?<!\w){re.escape(value)}(?!\w)", text)):
                return True
        return False

    def occur_in_bytes(self, content: bytes) -> bool:
        """Return True if bytes contain a value; upper and lower case of ASCII letters are equal."""
        content = content.lower()
        texts = [value.encode("utf-8", "replace") for value in self.strict | self.texts]
        return any(text in content for text in texts if len(text) >= MIN_PIXEL_BYTES)


def patient_of(dataset: Dataset, pseudonyms: Pseudonyms) -> Patient:
    """Return the pseudonym of a data set's patient. Without a patient ID, each study counts as a patient of its own."""
    number = str(dataset.get("PatientID") or "").strip() or f"study {dataset.get('StudyInstanceUID')}"
    return Patient(pseudonyms.patient(number), pseudonyms.shift_days(number))


def deidentify(dataset: Dataset, pseudonyms: Pseudonyms, *, keep_characteristics: bool) -> Patient:
    """Pseudonymise a data set in place.

    Args:
        dataset: Data set with its file meta information, which is replaced.
        pseudonyms: Pseudonyms of the site.
        keep_characteristics: Whether to keep sex, age (up to 89 years), size and weight.

    Returns:
        The patient.

    Raises:
        DataError: If the pixel data contain an identifying value as text, or an overlay that can't be removed.
    """
    from pydicom.dataset import FileMetaDataset

    patient = patient_of(dataset, pseudonyms)
    factors = _philips_factors(dataset)
    _clear_overlay_bits(dataset)
    values = _IdentifyingValues()
    cleaner = _Cleaner(pseudonyms, patient, keep_characteristics, values)
    cleaner.clean(dataset)
    cleaner.empty_repetitions(dataset)
    dataset.PatientID = dataset.PatientName = patient.pseudonym
    _add_philips_factors(dataset, factors)
    options = {"113108": keep_characteristics, "113111": bool(factors)}
    _declare(dataset, [code for code in _CODES if options.get(code, True)])
    meta = FileMetaDataset()
    meta.MediaStorageSOPClassUID = dataset.SOPClassUID
    meta.MediaStorageSOPInstanceUID = dataset.SOPInstanceUID
    meta.TransferSyntaxUID = dataset.file_meta.TransferSyntaxUID
    dataset.file_meta = meta
    dataset.preamble = b"\0" * 128
    return patient


def encode(dataset: Dataset) -> bytes:
    """Return a data set as the content of a DICOM file."""
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def shift_date(text: str, days: int) -> str:
    """Move a DICOM date or date-time into the past. Return an empty text if it is not a complete date.

    Args:
        text: Value such as ``20200131`` or ``20200131235959.5+0100``.
        days: Number of days.
    """
    match = _DATE.fullmatch(text.strip("\0 "))
    try:
        year, month, day, rest = match.groups() if match else ("", "", "", "")
        moved = datetime.date(int(year), int(month), int(day)) - datetime.timedelta(days=days)
    except (ValueError, OverflowError):
        return ""
    return f"{moved:%Y%m%d}".zfill(8) + rest


class _Cleaner:
    """Application of the profile to one data set.

    Args:
        pseudonyms: Pseudonyms of the site.
        patient: Patient of the data set.
        keep_characteristics: Whether to keep the patient's characteristics.
        values: Collects the original values.
    """

    def __init__(
        self, pseudonyms: Pseudonyms, patient: Patient, keep_characteristics: bool, values: _IdentifyingValues
    ) -> None:
        self.pseudonyms, self.patient, self.values = pseudonyms, patient, values
        self.keep_characteristics = keep_characteristics
        self.actions = load_actions()

    def clean(self, dataset: Dataset) -> None:
        """Apply the profile to a data set and all nested ones, in place."""
        for tag in list(dataset.keys()):
            element = None if tag.is_private else _readable_element(dataset, tag)
            if element is None or not self._keep(element):
                del dataset[tag]

    def _keep(self, element: DataElement) -> bool:
        """Clean an element in place. Return False if it must be removed."""
        tag = int(element.tag)
        if self.keep_characteristics and tag in CHARACTERISTICS:
            element.value = _limited_age(str(element.value)) if element.VR == "AS" else element.value
            return True
        if element.VR in (*DATES, "TM") and element.tag.group != PATIENT_GROUP:
            self.values.remember(element)
            _replace_each(element, self._moved if element.VR in DATES else _valid_time)
            return True
        action = self.actions.action(tag)
        if action is None:
            return self._keep_unlisted(element)
        if action is Action.CLEAN or (action is Action.UID and element.VR == "SQ"):
            return self._clean_items(element)
        self.values.remember(element)
        if element.VR == "SQ":
            self._remember_items(element)
        if action is Action.UID or (element.VR == "UI" and action is Action.DUMMY):
            _replace_each(element, self._uid)
        elif action is Action.DUMMY:
            element.value = _dummy_value(element.VR)
        else:
            element.value = [] if element.VR == "SQ" else element.empty_value
        return action is not Action.REMOVE

    def _keep_unlisted(self, element: DataElement) -> bool:
        """Clean an element that the profile does not list, in place. Return False if it must be removed."""
        from pydicom.uid import UID_dictionary

        if element.VR == "SQ":
            return self._clean_items(element)
        if _may_contain_anything(element):
            self.values.remember(element)
            return False
        if element.VR == "UI" and any(value and str(value) not in UID_dictionary for value in _values_of(element)):
            self.values.remember(element)
            _replace_each(element, self._uid)
        return True

    def _clean_items(self, element: DataElement) -> bool:
        """Clean the items of a sequence in place. Return True."""
        for item in element.value or ():
            self.clean(item)
        return True

    def _remember_items(self, element: DataElement) -> None:
        """Remember the values in a sequence that is removed."""
        for item in element.value or ():
            for tag in list(item.keys()):
                nested = None if tag.is_private else _readable_element(item, tag)
                if nested is not None:
                    self.values.remember(nested)
                    if nested.VR == "SQ":
                        self._remember_items(nested)

    def _uid(self, value: str) -> str:
        return self.pseudonyms.uid(value) if value else ""

    def _moved(self, value: str) -> str:
        return shift_date(value, self.patient.shift_days)

    def empty_repetitions(self, dataset: Dataset) -> None:
        """Empty the remaining texts that repeat an identifying value, in place and at every depth.

        Raises:
            DataError: If the pixel data contain such a value.
        """
        for element in dataset:
            if element.VR == "SQ":
                for item in element.value or ():
                    self.empty_repetitions(item)
            elif element.VR in SHORT_TEXTS and self.values.occur_in(element):
                element.value = element.empty_value
            elif element.VR in BINARY and self.values.occur_in_bytes(element.value or b""):
                raise DataError(
                    "identity_in_pixels",
                    "its pixel data or another block of bytes contain the patient's name, a number or another "
                    "identifying value as text. Export the image again without it.",
                )


def _may_contain_anything(element: DataElement) -> bool:
    """Return True if an element that the profile does not list may contain any text.

    That holds for names, machines and free texts; for short texts on the patient, or of older editions of the standard,
    such as retired order numbers, which the table does not cover; for overlays; and for bytes other than pixels.
    """
    from pydicom.datadict import dictionary_is_retired

    group = element.tag.group
    if element.VR in FREE_TEXTS or _is_overlay_group(group):
        return True
    if element.VR in BINARY:
        return group not in PIXEL_GROUPS
    return element.VR in SHORT_TEXTS and (group == PATIENT_GROUP or dictionary_is_retired(element.tag))


def _is_overlay_group(group: int) -> bool:
    """Return True for the groups 6000 to 60FF."""
    return group & 0xFF00 == 0x6000


def _clear_overlay_bits(dataset: Dataset) -> None:
    """Set the bits of the pixel data in which old devices store overlays to 0, in place.

    Such an overlay has no data of its own: its bit lies above or below the bits of the pixel values.

    Raises:
        DataError: If the pixel data are compressed, or the bit belongs to the pixel values.
    """
    allocated = int(dataset.get("BitsAllocated") or 0)
    bits = 0
    for tag in [tag for tag in list(dataset.keys()) if _is_overlay_group(tag.group) and tag.element == 0x0102]:
        group = tag.group << 16
        is_embedded = group | 0x3000 not in dataset and group | 0x0100 in dataset
        if is_embedded and allocated > 1 and dataset[group | 0x0100].value == allocated:
            bits |= 1 << int(dataset[tag].value)
    if not bits or "PixelData" not in dataset:
        return
    stored = int(dataset.BitsStored)
    values = ((1 << stored) - 1) << (int(dataset.HighBit) + 1 - stored)
    syntax = dataset.file_meta.TransferSyntaxUID
    if syntax.is_encapsulated or allocated not in (8, 16, 32) or bits & values or bits >> allocated:
        raise DataError(
            "overlay_in_pixels",
            "its pixel data contain an overlay that can't be removed, because they are compressed or the overlay has "
            "a bit of the pixel values. Export the image again without overlays.",
        )
    kind = np.dtype(f"u{allocated // 8}").newbyteorder("<" if syntax.is_little_endian else ">")
    pixels = np.frombuffer(dataset.PixelData, kind)
    dataset.PixelData = (pixels & ~kind.type(bits)).astype(kind).tobytes()


def _readable_element(dataset: Dataset, tag: Any) -> DataElement | None:
    """Return an element of the dictionary, or None if it is unknown, damaged, or part of the transport."""
    from pydicom.datadict import dictionary_has_tag, repeater_has_tag

    if tag.element == 0 or tag.group < 0x0008 or not (dictionary_has_tag(tag) or repeater_has_tag(int(tag))):
        return None
    try:
        element = dataset[tag]
        _ = element.VM
    except Exception:  # pydicom raises many kinds; the value is dropped and never shown
        return None
    return element if _has_valid_representation(element) else None


def _has_valid_representation(element: DataElement) -> bool:
    """Return True if the value representation of an element agrees with the dictionary's.

    A file may declare another one, and pydicom reads a damaged decimal number as text.
    """
    from pydicom.datadict import dictionary_VR

    if element.VR in ("DS", "IS") and any(isinstance(value, str) and value for value in _values_of(element)):
        return False
    actual, expected = element.VR.split(" or "), dictionary_VR(element.tag).split(" or ")
    return element.VR != "UN" and bool(set(map(_kind, actual)) & set(map(_kind, expected)))


def _kind(representation: str) -> str:
    """Return the kind of a value representation: numbers, bytes, short texts, free texts, or the representation."""
    kinds = {"number": NUMBERS, "bytes": BINARY, "text": SHORT_TEXTS, "free text": FREE_TEXTS}
    return next((kind for kind, names in kinds.items() if representation in names), representation)


def _values_of(element: DataElement) -> list[Any]:
    """Return the values of an element with one or several values."""
    return list(element.value) if element.VM > 1 else [element.value]


def _replace_each(element: DataElement, replacement: Any) -> None:
    """Replace each value of an element in place."""
    if element.value is None or not element.VM:
        return
    replaced = [replacement(str(value or "")) for value in _values_of(element)]
    element.value = replaced if element.VM > 1 else replaced[0]


def _valid_time(value: str) -> str:
    """Return a time of day, or an empty text if it is none."""
    return value if _TIME.fullmatch(value) else ""


def _limited_age(age: str) -> str:
    """Return an age in DICOM's form, with 90 years for all ages above `MAX_AGE_YEARS`."""
    if re.fullmatch(r"\d{3}[DWMY]", age) is None:
        return ""
    return "090Y" if age.endswith("Y") and int(age[:3]) > MAX_AGE_YEARS else age


def _dummy_value(representation: str) -> Any:
    """Return a value without information for a value representation."""
    if representation == "SQ":
        return []
    if representation in NUMBERS:
        return 0
    if representation in BINARY:
        return b"\0\0"
    return {"AS": "000Y", "DA": "19000101", "DT": "19000101", "TM": "000000"}.get(representation, "ANONYMIZED")


def _philips_factors(dataset: Dataset) -> dict[int, float]:
    """Return the numbers in the elements `SAFE_PRIVATE` by element; without missing or invalid numbers."""
    factors: dict[int, float] = {}
    for element in SAFE_PRIVATE:
        try:
            number = float(dataset.private_block(PHILIPS_GROUP, PHILIPS_CREATOR)[element].value)
        except Exception:  # pydicom raises many kinds; the value is dropped and never shown
            continue
        if math.isfinite(number):
            factors[element] = number
    return factors


def _add_philips_factors(dataset: Dataset, factors: dict[int, float]) -> None:
    """Write Philips' factors anew into a data set without private elements, in place."""
    from pydicom.valuerep import DSfloat

    if factors:
        dataset.add_new((PHILIPS_GROUP, 0x0010), "LO", PHILIPS_CREATOR)
    for element, number in factors.items():
        dataset.add_new((PHILIPS_GROUP, 0x1000 + element), "DS", DSfloat(number, auto_format=True))


def _declare(dataset: Dataset, codes: Collection[str]) -> None:
    """Record in a data set, in place, how it was de-identified.

    Args:
        dataset: The data set.
        codes: Keys of `_CODES`: the profile and the options that were used.
    """
    from pydicom import Dataset, Sequence

    items = []
    for value in codes:
        code = Dataset()
        code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = value, "DCM", _CODES[value]
        items.append(code)
    dataset.PatientIdentityRemoved = "YES"
    dataset.DeidentificationMethod = f"medfl {__version__}, PS3.15 {EDITION}"
    dataset.DeidentificationMethodCodeSequence = Sequence(items)
    dataset.LongitudinalTemporalInformationModified = "MODIFIED"
