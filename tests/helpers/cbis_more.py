"""More of a made-up CBIS-DDSM: files of headers alone, the list of a downloader, and changes of a file."""

from __future__ import annotations

import csv
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import pydicom
from dicom_maker import make_dicom

from medfl_datasets.cbis_ddsm.synthetic import LAYOUTS, film_pixels
from medfl_datasets.cbis_ddsm.tables import TABLES, Lesion, Series, read_tables

METADATA = (
    "Series UID,Collection,3rd Party Analysis,Data Description URI,Subject ID,Study UID,Study Description,Study Date,"
    "Series Description,Manufacturer,Modality,SOP Class Name,SOP Class UID,Number of Images,File Size,File Location,"
    "Download Timestamp"
)
"""First line of ``metadata.csv``."""


def lesions_of(tables: Path) -> list[Lesion]:
    return read_tables({key: tables / name for key, name in TABLES.items() if (tables / name).is_file()})


def write_headers(top: Path, lesions: Iterable[Lesion], layout: str = "nbia") -> int:
    """All files of a release as DICOM headers without pixels; how many."""
    header = top / "header.dcm"
    top.mkdir(parents=True, exist_ok=True)
    make_dicom(header, film_pixels(0), without=("PixelData",))
    done: set[Series] = set()
    count = 0
    for lesion in lesions:
        for series, files in ((lesion.image, 1), (lesion.crop, 1 + (lesion.crop == lesion.mask)), (lesion.mask, 1)):
            if series not in done:
                done.add(series)
                folder = top / LAYOUTS[layout](series, "full mammogram images" if files == 1 else "ROI mask images")
                os.makedirs(folder)
                for number in range(files):
                    os.link(header, folder / f"1-{number + 1}.dcm")
                count += files
    header.unlink()
    return count


def write_metadata(top: Path, folders: Mapping[Series, Path]) -> None:
    """``metadata.csv`` as the NBIA Data Retriever writes it on Windows."""
    with (top / "metadata.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, METADATA.split(","), restval="NA")
        writer.writeheader()
        for series, folder in folders.items():
            location = ".\\" + str(folder).replace("/", "\\")
            known = {"Series UID": series.series, "Subject ID": series.subject, "Study UID": series.study}
            writer.writerow(known | {"File Location": location})


def copied(tree: Path, to: Path) -> Path:
    return Path(shutil.copytree(tree, to))


def edit(path: Path, **tags: object) -> None:
    """Change elements of a DICOM file."""
    dataset = pydicom.dcmread(path)
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.save_as(path)
