"""Which films of mini-MIAS, or which abnormalities in them, become images, and what is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.mias.files import Part
from medfl_datasets.mias.tables import FILE, NORMAL, SEVERITIES, Film, Finding

NO_FILE = "the film is not there"
"""Why an image is left out whose file is missing."""

NO_PLACE = "the table has no coordinates of the abnormality"
"""Why an abnormality can't be cut out."""


@dataclass
class Chosen:
    """What is to be read, and what is not.

    Attributes:
        films: The film of each image.
        findings: The row of the table that each image stands for.
        classes: The class of each image.
        parts: What is to be read for each image.
        left_out: Reason to the number of images that are left out.
        missing: Lines of the table whose film is not there.
    """

    films: list[Film] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    missing: list[int] = field(default_factory=list)


def choose(
    films: Sequence[Film],
    files: Mapping[int, Path],
    view: str,
    classes: Mapping[str, str],
    say: Say,
) -> Chosen:
    """What becomes an image.

    Args:
        films: All films of the table.
        files: Number of a film to its file.
        view: ``full``: an image for each film; ``crop``: one for each abnormality with coordinates.
        classes: Diagnosis to class; a diagnosis that is not in it is left out.
        say: Gets a warning of files without a row.

    Raises:
        DataError: If nothing is left.
    """
    chosen = Chosen()
    surplus = len(files.keys() - {film.number for film in films})
    if surplus:
        reason = f"{FILE} has no row for the film"
        say(f"warning: {surplus} films were left out: {reason}")
        chosen.left_out[reason] = surplus
    for film in films:
        findings = film.findings if view == "crop" else (_worst(film),)
        for finding in findings:
            diagnosis = film.diagnosis if view == "full" else SEVERITIES.get(finding.severity, NORMAL)
            if diagnosis not in classes:
                chosen.left_out[f"{diagnosis}, which is not among the labels"] += 1
            elif view == "crop" and finding.circle is None:
                chosen.left_out[NO_PLACE] += 1
            elif film.number not in files:
                chosen.left_out[NO_FILE] += 1
                chosen.missing.append(finding.line)
            else:
                circle = finding.circle if view == "crop" else None
                chosen.films.append(film)
                chosen.findings.append(finding)
                chosen.classes.append(classes[diagnosis])
                chosen.parts.append(Part(files[film.number], film.laterality, circle))
    if not chosen.parts:
        raise DataError("no_images", f"no film of {FILE} is there. Unpack all-mias.tar.gz whole.", table=FILE)
    return chosen


def _worst(film: Film) -> Finding:
    """The row of a film that decides its diagnosis, the first one if there are several."""
    return max(film.findings, key=lambda finding: ("", *SEVERITIES).index(finding.severity))
