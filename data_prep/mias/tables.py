"""The table of mini-MIAS, ``Info.txt``: what the radiologists found in each film.

The official file has some hundred lines of prose, then a row for each finding; copies have the table alone, with a line
of column names. Only lines that begin with the name of a film count::

    mdb001 G CIRC B 535 425 197      tissue, kind of abnormality, severity, centre and radius in pixels
    mdb003 D NORM                    nothing found
    mdb059 F CIRC B                  no coordinates
    mdb216 D CALC M *NOTE 3*         no coordinates: the calcifications are everywhere

A film may have several rows. Its y counts from the bottom, where a row of pixels counts from the top. Films come in
pairs of one patient, (1, 2), (3, 4), ...; even numbers are left breasts, odd ones right breasts. All are mediolateral
oblique views.

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

FILE = "Info.txt"
"""The name of the table."""

TISSUES = {"F": "fatty", "G": "fatty-glandular", "D": "dense-glandular"}
"""Background tissue."""

FINDINGS = {
    "NORM": "normal",
    "CALC": "calcification",
    "CIRC": "circumscribed mass",
    "SPIC": "spiculated mass",
    "MISC": "other mass",
    "ARCH": "architectural distortion",
    "ASYM": "asymmetry",
}
"""Kinds of abnormality."""

SEVERITIES = {"B": "benign", "M": "malignant"}
"""How severe an abnormality is, the more severe one last."""

NORMAL = "normal"
"""What a film without any abnormality is."""

EDGE = 1024
"""Height and width of every film in pixels; coordinates are on these."""

OFFICIAL_ROWS = {"normal": 207, "benign": 69, "malignant": 54}
"""Rows of the official table."""

OFFICIAL_FILMS = {"normal": 207, "benign": 63, "malignant": 52}
"""Films of the official table; one with a malignant abnormality is malignant, whatever else is in it."""

_ROW = re.compile(r"mdb\d{3}\s", re.IGNORECASE)


@dataclass(frozen=True)
class Finding:
    """A row of the table.

    Attributes:
        line: Its number in the file, from 1; it does not count when rows are compared.
        film: Number of the film, >= 1.
        tissue: One of `TISSUES`.
        kind: One of `FINDINGS`.
        severity: One of `SEVERITIES`; empty for a normal film.
        circle: x, y (from the bottom) and radius in pixels; None without coordinates.
    """

    line: int = field(compare=False)
    film: int
    tissue: str
    kind: str
    severity: str = ""
    circle: tuple[int, int, int] | None = None


@dataclass(frozen=True)
class Film:
    """A film with all that was found in it.

    Attributes:
        number: >= 1.
        findings: Its rows, at least one.
    """

    number: int
    findings: tuple[Finding, ...]

    @property
    def patient(self) -> int:
        """Number of the pair, from 0."""
        return (self.number - 1) // 2

    @property
    def laterality(self) -> str:
        """``left`` or ``right``."""
        return "right" if self.number % 2 else "left"

    @cached_property
    def diagnosis(self) -> str:
        """``normal``, or the most severe of its findings: ``benign`` or ``malignant``."""
        severities = {finding.severity for finding in self.findings}
        return next((name for code, name in reversed(SEVERITIES.items()) if code in severities), NORMAL)


def read_films(path: Path) -> list[Film]:
    """Read the table.

    Args:
        path: ``Info.txt``, official or a bare table, with any line ends.

    Returns:
        All films, in the order of their numbers.

    Raises:
        DataError: If it can't be read, has no rows, or a row can't be understood or contradicts another one.
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
            f"expected rows like 'mdb001 G CIRC B 535 425 197' in {path}, there is none. Take the Info.txt of "
            "mini-MIAS.",
            path=path,
        )
    parsed = [_parse(number, words) for number, words in rows]
    wrong = [number for (number, _), finding in zip(rows, parsed, strict=True) if finding is None]
    if wrong:
        raise DataError(
            "invalid_row",
            f"{len(wrong)} of {len(rows)} rows of {path} can't be understood: {line_list(wrong)}. Expected a film, "
            f"{' or '.join(TISSUES)}, {', '.join(FINDINGS)}; then, but for NORM, {' or '.join(SEVERITIES)} and x, y "
            "and radius in pixels (or none of the three). Take the official file.",
            path=path,
            lines=wrong,
            total=len(rows),
        )
    findings = list(dict.fromkeys(finding for finding in parsed if finding is not None))
    films = _group(findings)
    _check_films(path, films)
    return films


def deviations(films: Sequence[Film]) -> list[str]:
    """How a table differs from the official one: sentences, none if it does not."""
    rows = Counter(SEVERITIES.get(finding.severity, NORMAL) for film in films for finding in film.findings)
    sentences = []
    for what, counts, official in (
        ("rows", rows, OFFICIAL_ROWS),
        ("films", Counter(film.diagnosis for film in films), OFFICIAL_FILMS),
    ):
        if any(counts[name] != number for name, number in official.items()):
            got, expected = (", ".join(f"{table[name]} {name}" for name in official) for table in (counts, official))
            sentences.append(f"{FILE} has {got} {what}; the official one has {expected}")
    return sentences


def line_list(numbers: Sequence[int]) -> str:
    """Numbers of lines for a message; only the first ones if there are many."""
    return f"line{'s' if len(numbers) > 1 else ''} {first_names(sorted(numbers))}"


def _parse(line: int, words: Sequence[str]) -> Finding | None:
    """A row; None if it can't be understood."""
    number, (tissue, kind, *rest) = int(words[0][3:]), words[1:] if len(words) > 2 else ("", "")
    if number < 1 or tissue not in TISSUES or kind not in FINDINGS:
        return None
    if kind == "NORM":
        return None if rest else Finding(line, number, tissue, kind)
    severity, *place = rest or [""]
    if severity not in SEVERITIES:
        return None
    if not place or place[0].startswith("*NOTE"):
        return Finding(line, number, tissue, kind, severity)
    if len(place) != 3 or not all(word.isdecimal() for word in place):
        return None
    x, y, radius = map(int, place)
    return Finding(line, number, tissue, kind, severity, (x, y, radius)) if max(x, y) < EDGE and radius else None


def _group(findings: Sequence[Finding]) -> list[Film]:
    """One film for each number."""
    numbers = sorted({finding.film for finding in findings})
    return [Film(number, tuple(finding for finding in findings if finding.film == number)) for number in numbers]


def _check_films(path: Path, films: Sequence[Film]) -> None:
    """No film is both normal and abnormal."""
    doubtful = [
        finding.line
        for film in films
        if len({finding.kind == "NORM" for finding in film.findings}) > 1
        for finding in film.findings
    ]
    if doubtful:
        raise DataError(
            "contradicting_rows",
            f"rows of {path} contradict each other, a film is normal and abnormal: {line_list(doubtful)}. Take the "
            "official file.",
            path=path,
            lines=doubtful,
        )
