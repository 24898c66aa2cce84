"""Compute standardised uptake values (SUV) of PET from DICOM headers.

SUV by body weight, in g/ml, is the activity concentration in Bq/ml times the body weight in g, divided by the injected
dose that is left at the reference time of the image:

    dose left = dose * 2 ** -((scan start - injection) / half-life)

Images that are corrected to the time of injection (DecayCorrection ADMIN) use the whole dose. The rules are those of
the QIBA FDG-PET/CT profile and its vendor-neutral pseudo-code, with the private elements that these name or GE writes:

- Philips (Units CNTS): the factor from rescaled values to SUV, (7053,xx00); without it, the factor to Bq/ml,
  (7053,xx09).
- GE: the time of the scan, (0009,xx0D), if the time of the series is after the first acquisition, as in a series that
  was processed later. If RadionuclideTotalDose is missing, the dose is the tracer's activity before the injection,
  (0009,xx38), minus the rest in the syringe, (0009,xx3C). Both are in MBq and decay from their own times to the time of
  the injection.
- PROPCPS (GE), and CNTS without a Philips factor, have no calibration to Bq/ml in the header, and are refused.

Every header that is missing or contradictory is refused by its name; no value is guessed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from medfl.data.readers.dicom_header import decoding
from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

PHILIPS, GE = (0x7053, "Philips PET Private Group"), (0x0009, "GEMS_PETD_01")
"""Group and creator of the private elements of Philips and GE PET."""

DOSE_RANGE = (1e5, 1e11)
"""Smallest and largest plausible dose in Bq. It refuses a dose in another unit, such as MBq in place of Bq."""

MAX_DELAY = timedelta(days=1)
"""Longest accepted time from the injection to the scan."""


def suv_factor(headers: Sequence[Dataset]) -> float:
    """Return the factor by which values after rescaling are multiplied to give SUV by body weight.

    Args:
        headers: Headers of all slices of one PET series.

    Raises:
        DataError: If a header is missing, or its value can't be used.
    """
    with decoding():
        first = headers[0]
        units = str(first.get("Units") or "")
    if units == "GML" and str(first.get("SUVType") or "BW") == "BW":
        return 1.0
    suv, activity = (_philips_factor(headers, element) for element in (0x00, 0x09))
    is_calibrated = units == "BQML" or (units == "CNTS" and (suv or activity))
    if not is_calibrated:
        raise _unusable(
            "Units",
            "BQML, GML with SUV by body weight, or CNTS with a factor in Philips' private elements (other counts, and "
            "PROPCPS, have no calibration)",
        )
    corrections = first.get("CorrectedImage") or ()
    done = {str(name) for name in ([corrections] if isinstance(corrections, str) else corrections)}
    if not {"ATTN", "DECY"} <= done:
        raise _unusable("CorrectedImage", "corrections for attenuation (ATTN) and decay (DECY)")
    correction = str(first.get("DecayCorrection") or "")
    if correction not in ("START", "ADMIN"):
        raise _unusable("DecayCorrection", "START or ADMIN")
    if units == "CNTS" and suv:
        return suv
    scale = activity if units == "CNTS" and activity else 1.0
    sequence = first.get("RadiopharmaceuticalInformationSequence")
    if not sequence:
        raise _unusable("RadiopharmaceuticalInformationSequence", "one radiopharmaceutical")
    drug = sequence[0]
    weight = _positive(first, "PatientWeight", "a weight in kg above 0")
    dose = _dose(first, drug)
    if correction == "ADMIN":
        return scale * 1000 * weight / dose
    half_life = _half_life(drug)
    start = _scan_start(headers)
    delay = (start - _injection(drug, start, str(first.get("TimezoneOffsetFromUTC") or ""))).total_seconds()
    if not 0 <= delay <= MAX_DELAY.total_seconds():
        raise _unusable("RadiopharmaceuticalStartDateTime", "an injection up to a day before the scan")
    return float(scale * 1000 * weight / (dose * 2 ** (-delay / half_life)))


def _philips_factor(headers: Sequence[Dataset], element: int) -> float:
    """Return a factor in Philips' private elements; 0 if the files do not state it.

    Raises:
        DataError: If it is no number, is negative, or differs between the slices.
    """
    factors = set()
    for header in headers:
        value = _private(header, *PHILIPS, element)
        with decoding():
            factors.add(float(value or 0))
    if len(factors) > 1 or not 0 <= min(factors) < float("inf"):
        raise _unusable(f"private element (7053,10{element:02x})", "one number above 0 for all slices")
    return factors.pop()


def _private(header: Dataset, group: int, creator: str, element: int) -> str:
    """Return the text of a private element; empty if there is none.

    pydicom returns bytes for a value whose representation a file does not state.
    """
    try:
        value = header.private_block(group, creator)[element].value
    except KeyError:
        return ""
    with decoding():
        text = value.decode("ascii") if isinstance(value, bytes) else "" if value is None else str(value)
    return text.strip(" \0")


def _half_life(drug: Dataset) -> float:
    return _positive(drug, "RadionuclideHalfLife", "a half-life in s above 0")


def _dose(header: Dataset, drug: Dataset) -> float:
    """Return the injected dose in Bq: the standard element, or the one that follows from GE's private elements."""
    before, rest = (_private(header, *GE, element) for element in (0x38, 0x3C))
    if drug.get("RadionuclideTotalDose") not in (None, "") or not before:
        dose = _positive(drug, "RadionuclideTotalDose", "a dose in Bq above 0")
    else:
        injection, half_life = _ge_moment(header, 0x3B), _half_life(drug)
        dose = 0.0
        for sign, text, measured in ((1, before, 0x39), (-1, rest, 0x3D)):
            with decoding():
                activity = float(text or 0) * 1e6
            if activity:
                delay = (injection - _ge_moment(header, measured)).total_seconds()
                dose += sign * activity * 2 ** (-delay / half_life)
    if not DOSE_RANGE[0] <= dose <= DOSE_RANGE[1]:
        raise _unusable("RadionuclideTotalDose", "a plausible dose in Bq")
    return dose


def _ge_moment(header: Dataset, element: int) -> datetime:
    """Return the time in a private element of GE."""
    import pydicom.valuerep

    text = _private(header, *GE, element)
    if not text:
        raise _unusable(f"private element (0009,10{element:02x})", "a date and a time")
    with decoding():
        return datetime.fromisoformat(pydicom.valuerep.DT(text).isoformat()).replace(tzinfo=None)


def _positive(dataset: Dataset, name: str, expected: str) -> float:
    """Return the number in an element, which must be above 0."""
    with decoding():
        value = dataset.get(name)
        number = 0.0 if value in (None, "") else float(value)
    if not 0 < number < float("inf"):
        raise _unusable(name, expected)
    return number


def _scan_start(headers: Sequence[Dataset]) -> datetime:
    """Return the start of the scan: the time of the series, unless it is after the first acquisition.

    Then it is the time of the scan that GE writes.
    """
    start = _moment(headers[0], "SeriesDate", "SeriesTime")
    acquired = min(_moment(header, "AcquisitionDate", "AcquisitionTime") for header in headers)
    if start <= acquired:
        return start
    if _private(headers[0], *GE, 0x0D):
        return _ge_moment(headers[0], 0x0D)
    raise _unusable("SeriesTime", "a time of the series that is not after the first AcquisitionTime")


def _injection(drug: Dataset, start: datetime, zone: str) -> datetime:
    """Return the time of the injection. A time without date is the last such time before the scan.

    Args:
        drug: Item with the time of the injection.
        start: Start of the scan, in local time.
        zone: Time zone of the scan as in ``TimezoneOffsetFromUTC``, or empty.
    """
    import pydicom.valuerep

    with decoding():
        whole = drug.get("RadiopharmaceuticalStartDateTime")
        if whole:
            moment = datetime.fromisoformat(pydicom.valuerep.DT(str(whole)).isoformat())
            has_time = re.match(r"\d{10}", str(whole)) is not None
            if not has_time or (moment.tzinfo is not None and moment.strftime("%z") != zone):
                raise _unusable("RadiopharmaceuticalStartDateTime", "a date and a time in the time zone of the scan")
            return moment.replace(tzinfo=None)
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
