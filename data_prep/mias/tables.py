"""Read and check the table of mini-MIAS, ``Info.txt``, which contains the radiologists' findings in each film.

The official file starts with about a hundred lines of prose, followed by a row for each finding. Copies of it have only
the rows, with a line of column names. The parser uses only lines that start with the name of a film::

    mdb001 G CIRC B 535 425 197      tissue, kind of abnormality, severity, centre and radius in pixels
    mdb003 D NORM                    nothing found
    mdb059 F CIRC B                  no coordinates
    mdb216 D CALC M *NOTE 3*         no coordinates: the calcifications are everywhere

A film may have several rows. The y coordinate counts from the bottom of the film, whereas pixel rows count from the
top. Films come in pairs of one patient, (1, 2), (3, 4), ...; even numbers are left breasts, odd numbers right breasts.
All films are mediolateral oblique views.

Source: J. Suckling et al., "The Mammographic Image Analysis Society Digital Mammogram Database", Excerpta Medica,
International Congress Series 1069, 375-378 (1994).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from medfl.errors import DataError
from medfl.utils.text import first_names

TABLE_FILE = "Info.txt"
"""Name of the table's file."""

TISSUES = {"F": "fatty", "G": "fatty-glandular", "D": "dense-glandular"}
"""Maps each code of the background tissue to its name."""

FINDINGS = {
    "NORM": "normal",
    "CALC": "calcification",
    "CIRC": "circumscribed mass",
    "SPIC": "spiculated mass",
    "MISC": "other mass",
    "ARCH": "architectural distortion",
    "ASYM": "asymmetry",
}
"""Maps each code of a kind of abnormality to its name."""

SEVERITIES = {"B": "benign", "M": "malignant"}
"""Maps each code of a severity to its name, in ascending order of severity."""

NORMAL = "normal"
"""Diagnosis of a film without an abnormality."""

EDGE = 1024
"""Height and width of every film in pixels; the coordinates refer to this size."""

OFFICIAL_ROWS = {"normal": 207, "benign": 69, "malignant": 54}
"""Number of rows of each severity in the official table."""

OFFICIAL_FILMS = {"normal": 207, "benign": 63, "malignant": 52}
"""Number of films of each diagnosis in the official table. A film with a malignant abnormality is malignant."""

_ROW = re.compile(r"mdb\d{3}\s", re.IGNORECASE)


@dataclass(frozen=True)
class MiasFinding:
    """Finding in a film: a row of the table.

    Attributes:
        line: Line number in the file, from 1; ignored when rows are compared.
        film: Number of the film, >= 1.
        tissue: Code of the tissue, a key of `TISSUES`.
        kind: Code of the kind of abnormality, a key of `FINDINGS`.
        severity: Code of the severity, a key of `SEVERITIES`; empty for a normal film.
        circle: x, y (from the bottom) and radius in pixels; None without coordinates.
    """

    line: int = field(compare=False)
    film: int
    tissue: str
    kind: str
    severity: str = ""
    circle: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class MiasFilm:
    """Film with its table rows.

    Attributes:
        number: Number of the film, >= 1.
        findings: Table rows of the film, at least one.
    """

    number: int
    findings: tuple[MiasFinding, ...]

    @property
    def patient(self) -> int:
        """Number of the patient, from 0; consecutive pairs of films belong to one patient."""
        return (self.number - 1) // 2

    @property
    def laterality(self) -> str:
        """Side of the breast: ``left`` or ``right``."""
        return "right" if self.number % 2 else "left"

    @cached_property
    def diagnosis(self) -> str:
        """Most severe finding in the film: ``normal``, ``benign`` or ``malignant``."""
        severities = {finding.severity for finding in self.findings}
        return next((name for code, name in reversed(SEVERITIES.items()) if code in severities), NORMAL)


def read_films(path: Path) -> list[MiasFilm]:
    """Read the table.

    Args:
        path: ``Info.txt``, official or with rows only, with any line ends.

    Returns:
        All films, in the order of their numbers.

    Raises:
        DataError: If the file can't be read, has no rows, or has a row that can't be parsed or contradicts another.
    """
    try:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        raise DataError(
            "unreadable_file",
            f"the table {path} can't be read: {error.strerror}. Give another --source.",
            path=path,
            reason=error.strerror,
        ) from None
    rows = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if _ROW.match(line)]
    if not rows:
        raise DataError(
            "empty_table",
            f"expected rows like 'mdb001 G CIRC B 535 425 197' in {path}, found none. Take the Info.txt of mini-MIAS.",
            path=path,
        )
    parsed = [_parse_row(number, words) for number, words in rows]
    wrong = [number for (number, _), finding in zip(rows, parsed, strict=True) if finding is None]
    if wrong:
        raise DataError(
            "invalid_row",
            f"{len(wrong)} of {len(rows)} rows of {path} can't be parsed: {line_list(wrong)}. Expected a film, "
            f"{' or '.join(TISSUES)}, {', '.join(FINDINGS)}; then, but for NORM, {' or '.join(SEVERITIES)} and x, y "
            "and radius in pixels (or none of the three). Take the official file.",
            path=path,
            lines=wrong,
            total=len(rows),
        )
    findings = list(dict.fromkeys(finding for finding in parsed if finding is not None))
    films = _group_by_film(findings)
    _check_films(path, films)
    return films


def deviations(films: Sequence[MiasFilm]) -> list[str]:
    """Describe the differences from the official table, one sentence each."""
    rows = Counter(SEVERITIES.get(finding.severity, NORMAL) for film in films for finding in film.findings)
    sentences = []
    for what, counts, official in (
        ("rows", rows, OFFICIAL_ROWS),
        ("films", Counter(film.diagnosis for film in films), OFFICIAL_FILMS),
    ):
        if any(counts[name] != number for name, number in official.items()):
            got, expected = (", ".join(f"{table[name]} {name}" for name in official) for table in (counts, official))
            sentences.append(f"{TABLE_FILE} has {got} {what}; the official one has {expected}")
    return sentences


def line_list(numbers: Sequence[int]) -> str:
    """Format line numbers for a message, such as ``lines 3, 7``; of many, only the first ones."""
    return f"line{'s' if len(numbers) > 1 else ''} {first_names(sorted(numbers))}"


def _parse_row(line: int, words: Sequence[str]) -> MiasFinding | None:
    """Parse a row; return None if it is invalid."""
    number, (tissue, kind, *rest) = int(words[0][3:]), words[1:] if len(words) > 2 else ("", "")
    if number < 1 or tissue not in TISSUES or kind not in FINDINGS:
        return None
    if kind == "NORM":
        return None if rest else MiasFinding(line, number, tissue, kind)
    severity, *place = rest or [""]
    if severity not in SEVERITIES:
        return None
    if not place or place[0].startswith("*NOTE"):
        return MiasFinding(line, number, tissue, kind, severity)
    if len(place) != 3 or not all(word.isdecimal() for word in place):
        return None
    x, y, radius = map(int, place)
    return MiasFinding(line, number, tissue, kind, severity, (x, y, radius)) if max(x, y) < EDGE and radius else None


def _group_by_film(findings: Sequence[MiasFinding]) -> list[MiasFilm]:
    """Group the findings by film, in the order of the film numbers."""
    numbers = sorted({finding.film for finding in findings})
    return [MiasFilm(number, tuple(finding for finding in findings if finding.film == number)) for number in numbers]


def _check_films(path: Path, films: Sequence[MiasFilm]) -> None:
    """Raise DataError if a film is both normal and abnormal."""
    contradicting_lines = [
        finding.line
        for film in films
        if len({finding.kind == "NORM" for finding in film.findings}) > 1
        for finding in film.findings
    ]
    if contradicting_lines:
        raise DataError(
            "contradicting_rows",
            f"rows of {path} contradict each other, a film is normal and abnormal: {line_list(contradicting_lines)}. "
            "Take the official file.",
            path=path,
            lines=contradicting_lines,
        )
