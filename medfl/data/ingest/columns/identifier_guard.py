"""Guard against table columns that identify patients: names, dates, and numbers of patients, cases and records.

A column is judged by its name and by its cells. Its cells are never repeated in a message. The guard is a help against
mistakes and no proof: an unusual spelling or a rare value can pass.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from datetime import date
from typing import NoReturn

from medfl.data.ingest.columns.cells import is_answer_column, is_number_column
from medfl.errors import DataError

MIN_ROWS = 10
"""Minimum number of rows for the rules that compare cells with each other."""

MAX_DISTINCT = 50
"""Maximum number of distinct texts in a column of text."""

RECORD_DIGITS = 7
"""Number of digits from which distinct whole numbers look like record numbers."""


def _word_set(text: str) -> frozenset[str]:
    """Return the words of a text, separated by white space."""
    return frozenset(text.split())


_PERSON_WORDS = _word_set(
    "name surname forename firstname lastname fullname patientname nachname vorname familienname patientenname nom "
    "prenom nombre apellido اسم الاسم שם"
)
"""Words of a column name that mean a person's name."""

_NOT_PERSONS = _word_set(
    "site hospital drug device scanner protocol lesion class diagnosis finding center centre medication gene model "
    "manufacturer station institution clinic klinik"
)
"""Words beside `_PERSON_WORDS` or an identifier that show that it is not a patient's."""

_RECORD_WORDS = _word_set(
    "id ids mrn pid ssn uid uuid guid accession patientid patid caseid studyid subjectid recordid kennung "
    "aktenzeichen email mail phone telefon telephone mobile address adresse anschrift street strasse zip zipcode "
    "postcode plz postleitzahl iban nhs ת.ז תז"
)
"""Words of a column name that mean a number or an address of a person, a case or a record."""

_DATE_WORDS = _word_set("date datetime timestamp dob birthday birthdate geburtstag تاريخ تأريخ الميلاد תאריך")
"""Words of a column name that mean a date."""

_NUMBERED = _word_set(
    "record patient patienten case accession insurance social medical phone study file hospital serial subject "
    "admission fall akten المريض ملف מטופל תיק זהות תעודת"
)
"""Words of a column name whose number identifies a patient."""

_NUMBER_WORDS = _word_set("number no nr num nummer رقم מספר")
"""Words of a column name that mean a number."""

_DATE_FORMATS = (
    re.compile(r"(?P<y>(19|20)\d\d)[-/.](?P<m>\d{1,2})[-/.](?P<d>\d{1,2})([T ].*)?"),
    re.compile(r"(?P<d>\d{1,2})[-/.](?P<m>\d{1,2})[-/.](?P<y>(19|20)?\d\d)([T ].*)?"),
    re.compile(r"(?P<m>\d{1,2})[-/.](?P<d>\d{1,2})[-/.](?P<y>(19|20)?\d\d)([T ].*)?"),
    re.compile(r"(?P<y>(19|20)\d\d)(?P<m>\d\d)(?P<d>\d\d)"),
)

_MONTHS = _word_set(
    "january february march april may june july august september sept october november december "
    "januar jänner februar märz mai juni juli oktober okt dezember "  # codespell:ignore
    "janvier janv février fevrier mars avril juin juillet juil août aout septembre octobre novembre décembre decembre "
    "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre "
    "gennaio febbraio aprile maggio giugno luglio settembre ottobre dicembre"
)
"""Names of months in English, German, French, Spanish and Italian."""

_MONTH = "|".join(sorted({part for name in _MONTHS for part in (name, name[:3])}, key=len, reverse=True))
"""Pattern of the name of a month, or of its first three letters."""

_WORD_DATE = re.compile(
    rf"(\d{{1,2}}\.?[-/ ]?)?({_MONTH})[-/., ]*(\d{{1,2}},? )?((19|20)\d\d|(?<=[-/ ])\d\d)",
    re.IGNORECASE,
)
"""Pattern of a date or a month with its name: ``12-Mar-2020``, ``12MAR2020``, ``March 12, 2020``, ``Mar-20``."""

_PERSON = re.compile(r"[^\W\d_]\^|\b(Dr|dr|Prof|prof)(\. ?[^\W\d_]| [^\W\d_a-z])")
"""Pattern of a person's name as in DICOM (``Adler^Eva``) or with a title; ``DR mild`` is a finding."""


def refuse_identifiers(column: str, cells: Sequence[str], groups: Sequence[str] | None = None, hint: str = "") -> None:
    """Raise if a column looks like names, dates, or numbers of patients or records.

    Args:
        column: Name of the column.
        cells: Cells of the column that are not missing.
        groups: Patient of each cell; None if unknown.
        hint: Advice for the message, after the general advice.

    Raises:
        DataError: If the column's name or its cells look like identifiers.
    """
    if reason := _suspicious_name(column):
        _refuse(column, reason, hint)
    if not cells:
        return
    is_number = is_number_column(cells)
    dates = [cell for cell in cells if _is_date(cell)]
    if len(dates) * 2 > len(cells) or (not is_number and any(re.search(r"(19|20)\d\d", cell) for cell in dates)):
        _refuse(column, "dates", hint)
    if any(map(_PERSON.search, cells)):
        _refuse(column, "names of persons", hint)
    distinct = len(set(cells))
    if is_number:
        if reason := _suspicious_numbers(cells):
            _refuse(column, reason, hint)
    elif not is_answer_column(cells) and len(cells) >= MIN_ROWS:
        if distinct > MAX_DISTINCT or 2 * distinct > len(cells):
            _refuse(column, "names, codes or free text", hint)
        if (
            groups is not None
            and distinct > 2
            and distinct == len(set(groups)) == len(set(zip(cells, groups, strict=True)))
        ):
            _refuse(column, "names or codes of the patients", hint)


def _refuse(column: str, reason: str, hint: str) -> NoReturn:
    raise DataError(
        "identifying_column",
        f"the column '{column}' looks like {reason}, which may identify patients and must not enter a data set. Choose "
        f"another column{hint}. If it is none of that, rename the column or shorten its values.",
        column=column,
        reason=reason,
    )


def _suspicious_name(column: str) -> str | None:
    """Return what a column contains according to its name if it may identify patients, otherwise None."""
    words = _words(column)
    if words & _DATE_WORDS or any("datum" in word for word in words):
        return "dates"
    if words & _NOT_PERSONS and not words & {"patient", "subject"}:
        return None
    if words & _PERSON_WORDS:
        return "names of persons"
    numbered = words & _NUMBER_WORDS and words & _NUMBERED and not words & {"of", "count"}
    long_word = any(word.endswith(("nummer", "nr")) and len(word) > 3 for word in words)
    if words & _RECORD_WORDS or numbered or long_word:
        return "numbers of patients or records"
    return None


def _words(column: str) -> set[str]:
    """Return the words of a column's name, in lower case: ``Patient_ID`` and ``patientId`` give patient and id."""
    text = unicodedata.normalize("NFKC", column)
    text = re.sub(r"(?<=[a-z])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", text)
    text = re.sub(r"\[[^\]]*\]$", "", text)
    return {word for word in re.split(r"[^\w.]+|_", text.casefold()) if word} | set(
        re.findall(r"[^\W_]+", text.casefold())
    )


def _suspicious_numbers(cells: Sequence[str]) -> str | None:
    """Return what a column of numbers looks like if it may identify patients, otherwise None."""
    if not all(re.fullmatch(r"\d+", cell) for cell in cells):
        return None
    distinct, values = len(set(cells)), list(map(int, cells))
    if len(cells) >= MIN_ROWS and values in (list(range(len(cells))), list(range(1, len(cells) + 1))):
        return "running numbers of rows"
    if any(len(cell) > 1 and cell.startswith("0") for cell in cells) and 2 * distinct > len(cells):
        return "numbers of patients or records"
    if sorted(map(len, cells))[len(cells) // 2] >= RECORD_DIGITS and 2 * distinct > len(cells):
        return "numbers of patients or records"
    return None


def _is_date(cell: str) -> bool:
    """Return True if a cell is a calendar date, with or without a time of day, or a month of a year."""
    if _WORD_DATE.fullmatch(cell):
        return True
    for form in _DATE_FORMATS:
        if match := form.fullmatch(cell):
            year = int(match["y"])
            try:
                date(year if year > 99 else 1900 + year, int(match["m"]), int(match["d"]))
            except ValueError:
                continue
            return True
    return False
