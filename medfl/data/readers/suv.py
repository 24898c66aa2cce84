"""Compute standardised uptake values (SUV) of PET from DICOM headers.

SUV by body weight, in g/ml, is the activity concentration in Bq/ml times the body weight in g, divided by the injected
dose that is left at the reference time of the image:

    dose left = dose * 2 ** -((scan start - injection) / half-life)

Images that are corrected to the time of injection (DecayCorrection ADMIN) use the whole dose. The rules are those of
the QIBA FDG-PET/CT profile. Every header that is missing or contradictory is refused by its name; no value is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from medfl.data.readers.dicom_header import decoding
from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

SUV_ELEMENTS = (
    "Units",
    "SUVType",
    "DecayCorrection",
    "CorrectedImage",
    "PatientWeight",
    "SeriesDate",
    "SeriesTime",
    "AcquisitionDate",
    "AcquisitionTime",
    "RadiopharmaceuticalInformationSequence",
)
"""Keywords of the elements that `suv_factor` reads."""

MAX_DELAY = timedelta(days=1)
"""Longest accepted time from the injection to the scan."""


def suv_factor(headers: Sequence[Dataset]) -> float:
    """Return the factor by which values after rescaling are multiplied to give SUV by body weight.

    Args:
        headers: Headers of all slices of one PET series, with `SUV_ELEMENTS`.

    Raises:
        DataError: If a header is missing, or its value can't be used.
    """
    with decoding():
        first = headers[0]
        units = str(first.get("Units") or "")
    if units == "GML" and str(first.get("SUVType") or "BW") == "BW":
        return 1.0
    if units != "BQML":
        raise _unusable("Units", "BQML, or GML with SUV by body weight")
    corrections = first.get("CorrectedImage") or ()
    done = {str(name) for name in ([corrections] if isinstance(corrections, str) else corrections)}
    if not {"ATTN", "DECY"} <= done:
        raise _unusable("CorrectedImage", "corrections for attenuation (ATTN) and decay (DECY)")
    sequence = first.get("RadiopharmaceuticalInformationSequence")
    if not sequence:
        raise _unusable("RadiopharmaceuticalInformationSequence", "one radiopharmaceutical")
    drug = sequence[0]
    weight = _positive(first, "PatientWeight", "a weight in kg above 0")
    dose = _positive(drug, "RadionuclideTotalDose", "a dose in Bq above 0")
    correction = str(first.get("DecayCorrection") or "")
    if correction == "ADMIN":
        return 1000 * weight / dose
    if correction != "START":
        raise _unusable("DecayCorrection", "START or ADMIN")
    half_life = _positive(drug, "RadionuclideHalfLife", "a half-life in s above 0")
    start = _scan_start(headers)
    delay = (start - _injection(drug, start)).total_seconds()
    if not 0 <= delay <= MAX_DELAY.total_seconds():
        raise _unusable("RadiopharmaceuticalStartDateTime", "an injection up to a day before the scan")
    return float(1000 * weight / (dose * 2 ** (-delay / half_life)))


def _positive(dataset: Dataset, name: str, expected: str) -> float:
    """Return the number in an element, which must be above 0."""
    with decoding():
        value = dataset.get(name)
        number = 0.0 if value in (None, "") else float(value)
    if not 0 < number < float("inf"):
        raise _unusable(name, expected)
    return number


def _scan_start(headers: Sequence[Dataset]) -> datetime:
    """Return the start of the scan: the time of the series, which must not be after the first acquisition."""
    start = _moment(headers[0], "SeriesDate", "SeriesTime")
    acquired = min(_moment(header, "AcquisitionDate", "AcquisitionTime") for header in headers)
    if start > acquired:
        raise _unusable("SeriesTime", "a time of the series that is not after the first AcquisitionTime")
    return start


def _injection(drug: Dataset, start: datetime) -> datetime:
    """Return the time of the injection. A time without date is the last such time before the scan."""
    import pydicom.valuerep

    with decoding():
        whole = drug.get("RadiopharmaceuticalStartDateTime")
        if whole:
            return datetime.fromisoformat(pydicom.valuerep.DT(str(whole)).isoformat()).replace(tzinfo=None)
        time = drug.get("RadiopharmaceuticalStartTime")
        clock = pydicom.valuerep.TM(str(time)) if time else None
    if clock is None:
        raise _unusable("RadiopharmaceuticalStartTime", "the time of the injection")
    moment = datetime.combine(start.date(), clock)
    return moment if moment <= start else moment - timedelta(days=1)


def _moment(header: Dataset, date: str, time: str) -> datetime:
    """Return the time that two elements of a header state."""
    import pydicom.valuerep

    parts: list[Any] = []
    for name, kind in ((date, pydicom.valuerep.DA), (time, pydicom.valuerep.TM)):
        text = str(header.get(name) or "")
        if not text:
            raise _unusable(name, "a date" if name == date else "a time")
        with decoding():
            parts.append(kind(text))
    return datetime.combine(parts[0], parts[1])


def _unusable(name: str, expected: str) -> DataError:
    """Return the error for a header from which SUV can't be computed. Its value is not repeated."""
    return DataError(
        "unusable_suv_header",
        f"the PET file's {name} is missing or can't be used for SUV, expected {expected}. Export the series with it, "
        "or give another --scale.",
        name=name,
    )
