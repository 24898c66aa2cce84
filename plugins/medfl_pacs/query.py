"""Search keys for a PACS: ``ModalitiesInStudy=CT,StudyDate=20200101-20201231``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from medfl.errors import SettingsError, did_you_mean

SERIES_KEYWORDS = (
    "Modality",
    "SeriesInstanceUID",
    "SeriesNumber",
    "SeriesDescription",
    "BodyPartExamined",
    "ProtocolName",
    "PerformedProcedureStepStartDate",
    "PerformedProcedureStepStartTime",
    "SeriesDate",
    "Laterality",
    "Manufacturer",
    "StationName",
)
"""Keywords that select series; all others select studies."""

_UNSUPPORTED = (
    *("US", "SS", "UL", "SL", "UV", "SV", "FL", "FD", "AT"),
    *("SQ", "OB", "OW", "OB or OW", "US or OW", "US or SS or OW", "UN", "OF", "OD", "OL", "OV"),
)
"""Value representations of elements that no PACS searches."""


@dataclass(frozen=True)
class Query:
    """Search keys.

    Attributes:
        study: Maps DICOM keywords to the values that select studies. A value may have wildcards or be a range of dates.
        series: Maps DICOM keywords to the values that select series of these studies.
    """

    study: Mapping[str, str]
    series: Mapping[str, str]


def parse_query(text: str) -> Query:
    """Read search keys.

    Args:
        text: ``KEYWORD=VALUE`` pairs, separated by commas. A value may contain commas.

    Raises:
        SettingsError: If a pair has no value or a wrong one, is unknown, or is given twice. Messages contain keywords
            but no values, which may identify a patient.
    """
    from pydicom.datadict import dictionary_VR, keyword_dict, tag_for_keyword

    study: dict[str, str] = {}
    series: dict[str, str] = {}
    pairs = re.split(r",(?=\s*\w+\s*=)", text) if text.strip() else []
    for number, pair in enumerate(pairs, 1):
        keyword, equals, value = (part.strip() for part in pair.partition("="))
        if not equals or not value or not keyword:
            raise SettingsError(
                "invalid_query",
                f"Search key {number} is not of the form KEYWORD=VALUE. Example: "
                "ModalitiesInStudy=CT,StudyDate=20200101-20201231",
                number=number,
            )
        tag = tag_for_keyword(keyword)
        if tag is None or dictionary_VR(tag) in _UNSUPPORTED:
            known = [name for name in keyword_dict if name and dictionary_VR(keyword_dict[name]) not in _UNSUPPORTED]
            raise SettingsError(
                "unknown_search_key",
                f"unknown search key '{keyword}': expected a DICOM keyword of one value. "
                f"{did_you_mean(keyword, known, 'The DICOM dictionary (PS3.6)')}",
                keyword=keyword,
            )
        if dictionary_VR(tag) in ("IS", "DS") and re.fullmatch(r"[+-]?\d+(\.\d+)?", value) is None:
            raise SettingsError(
                "invalid_query",
                f"Search key {number}, '{keyword}': expected a number without wildcards.",
                number=number,
                keyword=keyword,
            )
        if keyword in study or keyword in series:
            raise SettingsError("repeated_search_key", f"The search key '{keyword}' occurs twice.", keyword=keyword)
        (series if keyword in SERIES_KEYWORDS else study)[keyword] = value
    if not study and not series:
        raise SettingsError(
            "empty_query",
            "Expected at least one search key, such as ModalitiesInStudy=CT. Without a key, the query would select the "
            "whole PACS.",
        )
    return Query(study, series)
