"""Select the films of mini-MIAS, or the abnormalities in them, that become images of the data set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from medfl.errors import DataError
from medfl.utils.text import Say
from medfl_datasets.mias.files import MiasImage
from medfl_datasets.mias.tables import NORMAL, SEVERITIES, TABLE_FILE, MiasFilm, MiasFinding

NO_FILE = "the film has no file"
"""Exclusion reason of an image whose film is in the table, but not in the folder."""

NO_COORDINATES = "the table has no coordinates of the abnormality"
"""Exclusion reason of an abnormality that can't be cropped."""


@dataclass
class MiasSelection:
    """Images to read and images that are excluded; the first four lists have one entry for each image to read.

    Attributes:
        films: Film of each image.
        findings: Table row of each image; for a whole film, that of the most severe abnormality.
        classes: Class name of each image.
        images: File and crop of each image.
        left_out: Maps each exclusion reason to its number of images.
        missing: Line numbers of table rows whose film has no file.
    """

    films: list[MiasFilm] = field(default_factory=list)
    findings: list[MiasFinding] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    images: list[MiasImage] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)
    missing: list[int] = field(default_factory=list)


def select_images(
    films: Sequence[MiasFilm],
    files: Mapping[int, Path],
    view: str,
    classes: Mapping[str, str],
    say: Say,
) -> MiasSelection:
    """Select the images to read.

    Args:
        films: All films of the table.
        files: Maps the number of each film to its file.
        view: ``full`` for an image of each film, ``crop`` for an image of each abnormality with coordinates.
        classes: Maps each diagnosis to its class; images with another diagnosis are excluded.
        say: Receives a warning about files without a table row.

    Raises:
        DataError: If no image is left.
    """
    selection = MiasSelection()
    surplus = len(files.keys() - {film.number for film in films})
    if surplus:
        reason = f"{TABLE_FILE} has no row for the film"
        say(f"warning: {surplus} films were left out: {reason}")
        selection.left_out[reason] = surplus
    for film in films:
        findings = film.findings if view == "crop" else (_worst_finding(film),)
        for finding in findings:
            diagnosis = film.diagnosis if view == "full" else SEVERITIES.get(finding.severity, NORMAL)
            if diagnosis not in classes:
                selection.left_out[f"{diagnosis}, which is not among the labels"] += 1
            elif view == "crop" and finding.circle is None:
                selection.left_out[NO_COORDINATES] += 1
            elif film.number not in files:
                selection.left_out[NO_FILE] += 1
                selection.missing.append(finding.line)
            else:
                circle = finding.circle if view == "crop" else None
                selection.films.append(film)
                selection.findings.append(finding)
                selection.classes.append(classes[diagnosis])
                selection.images.append(MiasImage(files[film.number], film.laterality, circle))
    if not selection.images:
        raise DataError(
            "no_images", f"no film of {TABLE_FILE} has a file. Unpack all-mias.tar.gz completely.", table=TABLE_FILE
        )
    return selection


def _worst_finding(film: MiasFilm) -> MiasFinding:
    """Return the finding that decides the film's diagnosis: the most severe one, the first of several."""
    return max(film.findings, key=lambda finding: ("", *SEVERITIES).index(finding.severity))
