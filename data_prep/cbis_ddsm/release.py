"""Read a CBIS-DDSM release: list its files, read its tables, and find the files of each image."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from medfl.errors import DataError
from medfl.utils.text import Say, first_names
from medfl_datasets.cbis_ddsm import files as cbis_files
from medfl_datasets.cbis_ddsm.pixels import CbisFilm
from medfl_datasets.cbis_ddsm.selection import CbisImage
from medfl_datasets.cbis_ddsm.tables import TABLES, Lesion, read_tables

ABNORMALITIES = {"both": ("mass", "calc"), "mass": ("mass",), "calc": ("calc",)}
"""Maps each choice of `CbisDdsm.abnormality` to the kinds of lesions: the prefixes of the tables' names."""


def read_release(
    source: Path, tables: Path | None = None, abnormality: str = "both"
) -> tuple[cbis_files.CbisTree, list[Lesion]]:
    """List the files of a release and read its tables, without opening an image.

    Args:
        source: The folder of the images, in any layout of the release.
        tables: The folder of the four case descriptions; None if they are in `source` or its subfolders.
        abnormality: Kinds of lesions to use, one of `ABNORMALITIES`. Tables of other kinds are read too, if they exist.

    Raises:
        DataError: If tables are missing or invalid.
    """
    tree = cbis_files.list_files(source)
    there = cbis_files.list_files(tables).tables if tables else tree.tables
    needed = {key: name for key, name in TABLES.items() if key[0] in ABNORMALITIES[abnormality]}
    missing = [name for key, name in needed.items() if key not in there]
    if missing:
        raise DataError(
            "missing_file",
            f"expected the case descriptions of CBIS-DDSM in {tables or source}, missing: {', '.join(missing)}. The "
            "Cancer Imaging Archive has them beside the images: download them into this folder, or give theirs as "
            "--tables.",
            folder=tables or source,
            files=missing,
        )
    return tree, read_tables({key: there[key] for key in TABLES if key in there})


def find_image_files(tree: cbis_files.CbisTree, images: Sequence[CbisImage]) -> dict[int, CbisFilm]:
    """Find the files of each image in a list.

    Returns:
        Maps the index in `images` to the files, for images that have any.

    Raises:
        DataError: If no image has a file.
    """
    films = {place: film for place, image in enumerate(images) if (film := _files_of_image(tree, image)).files}
    if not films:
        raise DataError(
            "no_images",
            f"none of the {len(images)} images of the tables is in {tree.top}, which holds {tree.count()} image files. "
            "Expected CBIS-DDSM as downloaded, for example CBIS-DDSM/Mass-Training_P_00001_LEFT_CC/<date>-DDSM-NA-<5 "
            "digits>/1.000000-full mammogram images-<5 digits>/1-1.dcm, or folders called by the UIDs of series, as "
            "in jpeg/<series UID>/1-001.jpg. Give the folder that holds these.",
            path=tree.top,
            expected=len(images),
            found=tree.count(),
        )
    return films


def _files_of_image(tree: cbis_files.CbisTree, image: CbisImage) -> CbisFilm:
    """Return the files of an image; of two copies of a film, use the first copy that exists."""
    first = image.lesions[0]
    if image.crop:
        wanted = list(dict.fromkeys((first.crop, first.mask)))
        files = [file for series in wanted for file in tree.find(series)]
    else:
        copies = list(dict.fromkeys(lesion.image for lesion in image.lesions))
        held = {series: tree.find(series) for series in copies}
        wanted = [next((series for series in copies if held[series]), copies[0])]
        files = held[wanted[0]]
    names = (first.patient, *(series.subject for series in wanted))
    uids = tuple(series.series for series in wanted)
    return CbisFilm(tuple(files), uids, names, first.side.lower(), image.crop)


def report_files(
    tree: cbis_files.CbisTree, lesions: Sequence[Lesion], films: Mapping[int, CbisFilm], wanted: int, say: Say
) -> None:
    """Tell the user how many images have no file, and how many image files have no table row.

    Args:
        tree: Files of the release.
        lesions: Rows of all tables.
        films: Files of the images that were found, from `find_image_files`.
        wanted: Number of images that were looked up.
        say: Receives a warning and a note.
    """
    if wanted > len(films):
        say(f"warning: {wanted - len(films)} of {wanted} images of the tables have no file")
    for lesion in lesions:
        for series in (lesion.image, lesion.crop, lesion.mask):
            tree.find(series)
    unused = tree.unused()
    if unused:
        names = sorted(name for name in unused if name)
        shown = first_names(names, 5) + "; " * bool(names)
        others = f"{unused['']} in other folders; " if unused.get("") else ""
        say(f"note: {sum(unused.values())} image files are in no row of the tables ({(shown + others)[:-2]})")
