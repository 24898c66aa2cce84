"""Write a synthetic mini-MIAS release: layout and table of the real one, drawn films."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import numpy as np

from medfl_datasets.mias.tables import EDGE, TABLE_FILE

OFFICIAL_FILM_COUNT = 322
"""Number of films in the real release."""

FILE_HEADER = b"P5\n# CREATOR: GIMP PNM Filter Version 1.1\n%d %d\n255\n"
"""Header of a real film file, with places for width and height. A file of 1024 x 1024 pixels has 1,048,632 bytes."""

PROSE = """\
               THE mini-MIAS DATABASE OF MAMMOGRAMS
               ====================================
INFORMATION:

This file lists the films in the MIAS database and provides details, where
these are given, of the locations of any abnormalities that may be present.
The database contains 322 films, mdb001 to mdb322, in pairs of one patient.

        1st column:     MIAS database reference number.
        2nd column:     Character of background tissue: F, G, D
        3rd column:     Class of abnormality present
        4th column:     Severity of abnormality: B, M
        5th, 6th columns: x,y image-coordinates of centre of abnormality.
        7th column:     Approximate radius (in pixels) of a circle.

NOTES
=====
    2)  The coordinate system origin is the bottom-left corner.
    4)  In some cases calcifications are widely distributed throughout the image
        rather than concentrated at a single site.

"""

"""Text that precedes the rows in the official ``Info.txt``, shortened."""

KNOWN_ROWS: dict[int, Sequence[str]] = {
    1: ["G CIRC B 535 425 197"],
    2: ["G CIRC B 522 280 69"],
    3: ["D NORM"],
    5: ["F CIRC B 477 133 30", "F CIRC B 500 168 26"],
    59: ["F CIRC B"],
    132: ["F CIRC B 252 788 52", "F CIRC B 335 766 18"],
    144: ["F MISC B 233 994 29", "F MISC M 313 540 27"],
    212: ["G CALC B 687 882 3"],
    214: ["G CALC B 582 916 11"],
    216: ["D CALC M *NOTE 3*"],
    223: ["D CALC B 523 482 29", "D CALC B 591 529 6"],
    226: ["D CALC B 287 610 7", "D CALC B 329 550 25", "D CALC B 531 721 8"],
    233: ["G CALC M *NOTE 3*"],
    239: ["D CALC M 645 755 40", "D CALC M 567 808 25"],
    245: ["F CALC M *NOTE 3*"],
    249: ["D CALC M 544 508 48", "D CALC M 575 639 64"],
}
"""Maps film numbers to table rows copied from the real release: the first films, and films with special cases."""

SOME_FILMS = [1, 2, 3, 4, 5, 6, 59, 60, 143, 144, 215, 216, 239, 240]
"""Numbers of 14 films of seven patients, which cover all diagnoses, several rows, a note and missing coordinates."""


SOME_ROWS = {number: KNOWN_ROWS.get(number, ["G NORM"]) for number in SOME_FILMS}
"""Maps each film of `SOME_FILMS` to its rows: seven normal films, four benign and three malignant ones."""

KINDS = {"NORM": 207, "CALC": 30, "CIRC": 25, "ARCH": 19, "SPIC": 19, "MISC": 15, "ASYM": 15}
"""Published number of table rows of each kind of abnormality."""

TISSUES = {"D": 117, "F": 109, "G": 104}
"""Published number of table rows of each tissue."""

SEVERITIES = {"B": 69, "M": 54}
"""Published number of table rows of each severity."""


def official_rows(seed: int = 0) -> dict[int, list[str]]:
    """Make rows for all films of the release, such that all published numbers of rows are met.

    Returns:
        Maps each film to its rows, which come from `KNOWN_ROWS` or are random.
    """
    rows = {number: list(KNOWN_ROWS.get(number, [])) for number in range(1, OFFICIAL_FILM_COUNT + 1)}
    words = [row.split() for known in KNOWN_ROWS.values() for row in known]
    rng = np.random.default_rng(seed)
    rest = [number for number in rows if not rows[number]]
    kinds = rng.permutation(_remaining(KINDS, [word[1] for word in words]))
    tissues = rng.permutation(_remaining(TISSUES, [word[0] for word in words]))
    severities = iter(rng.permutation(_remaining(SEVERITIES, [word[2] for word in words if len(word) > 2])))
    for number, kind, tissue in zip(rest, kinds, tissues, strict=True):
        x, y = rng.integers(60, 960, 2)
        place = "" if kind == "NORM" else f" {next(severities)} {x} {y} {rng.integers(3, 150)}"
        rows[number] = [f"{tissue} {kind}{place}"]
    return rows


def write_table(path: Path, rows: Mapping[int, Sequence[str]], bare: bool = False) -> None:
    """Write the table of the release, ``Info.txt``.

    Args:
        path: File to write.
        rows: Maps the number of each film to its table rows.
        bare: Whether to write only column names and rows, as in some copies; otherwise the official prose precedes
            them.
    """
    lines = [f"mdb{number:03d} {row}{' ' * (number % 3)}" for number, of_film in rows.items() for row in of_film]
    head = ["REFNUM BG CLASS SEVERITY X Y RADIUS"] if bare else PROSE.splitlines()
    path.write_bytes("\n".join([*head, *lines, ""]).replace("\n", "\n" if bare else "\r\n").encode())


def write_release(
    folder: Path,
    rows: Mapping[int, Sequence[str]] = SOME_ROWS,
    films: Collection[int] | None = None,
    edge: int = 64,
    seed: int = 0,
) -> Path:
    """Write the folder ``all-mias`` into a folder.

    Args:
        folder: Target folder; created if needed.
        rows: Maps the number of each film to its table rows; `official_rows` makes the rows of a whole release.
        films: Numbers of the films to write; None writes all films of `rows`.
        edge: Edge of the films in pixels, >= 4. Real films have 1024, and lesions are drawn only at that size.
        seed: Seed of each film's brightness.

    Returns:
        The folder ``all-mias``.
    """
    release = folder / "all-mias"
    release.mkdir(parents=True)
    write_table(release / TABLE_FILE, rows)
    (release / "Licence.txt").write_text("MAMMOGRAPHIC IMAGE ANALYSIS SOCIETY\nDIGITAL MAMMOGRAM DATABASE\n")
    (release / "README").write_text(PROSE)
    for number in rows if films is None else films:
        write_film(release, number, rows[number], edge, seed)
    return release


def write_film(release: Path, number: int, rows: Sequence[str] = (), edge: int = 64, seed: int = 0) -> Path:
    """Draw a film with its lesions, write it into the release, and return the file.

    The chest wall is white, with a stripe of value `brightness`, so that a test can identify the film.
    Lesions have value 150 and a core of 250.
    """
    pixels = np.zeros((edge, edge), np.uint8)
    chest, stripe = (slice(-(edge // 4), None), slice(0, edge // 4))
    if number % 2 == 0:
        chest, stripe = slice(0, edge // 4), slice(-(edge // 4), None)
    pixels[:, chest], pixels[: edge // 4, stripe] = 255, brightness(number, seed)
    if edge == EDGE:
        down, right = np.mgrid[:edge, :edge]
        for words in (row.split() for row in rows):
            if words[-1].isdecimal():
                x, y, radius = map(int, words[-3:])
                distance = np.hypot(right - x, down - (EDGE - 1 - y))
                pixels[distance <= radius] = 150
                pixels[distance <= radius / 2] = 250
    path = release / f"mdb{number:03d}.pgm"
    path.write_bytes(FILE_HEADER % (edge, edge) + pixels.tobytes())
    return path


def brightness(number: int, seed: int = 0) -> int:
    """Return the grey value of the stripe in film `number`, 100 to 199; consecutive films differ."""
    return 100 + (number + seed) % 100


def _remaining(published: dict[str, int], used: Sequence[str]) -> list[str]:
    """Return the published values that `used` does not contain, one entry for each row."""
    return list((Counter(published) - Counter(used)).elements())
