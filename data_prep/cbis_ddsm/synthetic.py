"""Write a synthetic CBIS-DDSM release in every layout: synthetic pixels for real or synthetic tables.

A lesion has its crop and mask in one series, in either order, or in two series that may be swapped. Full images are
darker than crops, and rows differ in brightness, so that a test can identify an image by its pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.uid import UID, ExplicitVRLittleEndian, SecondaryCaptureImageStorage

from medfl_datasets.cbis_ddsm.tables import TABLES, Lesion, Series, read_tables

PATH_COLUMNS = "image file path,cropped image file path,ROI mask file path"
"""Names of the last columns of all tables, which contain paths."""
HEADERS = {
    "mass": "patient_id,breast_density,left or right breast,image view,abnormality id,abnormality type,mass shape,"
    f"mass margins,assessment,pathology,subtlety,{PATH_COLUMNS}",
    "calc": "patient_id,breast density,left or right breast,image view,abnormality id,abnormality type,calc type,"
    f"calc distribution,assessment,pathology,subtlety,{PATH_COLUMNS}",
}
"""Maps each kind of lesion to the published first line of its tables."""

SPLIT_NAMES = {"train": "Training", "test": "Test"}
"""Maps each split (``train`` or ``test``) to its name in the release's paths."""

FILM_SHAPE = (72, 48)
"""Height and width of the synthetic films in pixels."""

B, M, N = "BENIGN", "MALIGNANT", "BENIGN_WITHOUT_CALLBACK"
"""Names of pathologies in the tables: `B` is benign, `M` malignant, `N` benign without callback."""

Row = tuple[int, str, str, int, str]
"""Type of a synthetic table row: patient number, side, view, number of the lesion in the film, pathology."""

ROWS: dict[tuple[str, str], list[Row]] = {
    ("mass", "train"): [
        (1, "LEFT", "CC", 1, M),
        (1, "LEFT", "MLO", 1, M),
        (2, "RIGHT", "CC", 1, B),
        (2, "RIGHT", "CC", 2, M),  # both lesions are in one film
        (3, "RIGHT", "MLO", 1, N),
        (4, "LEFT", "CC", 1, B),  # this patient is in the test part of the calcifications
        (5, "LEFT", "CC", 1, B),
    ],
    ("mass", "test"): [(6, "LEFT", "CC", 1, M), (7, "RIGHT", "MLO", 1, B)],
    ("calc", "train"): [
        (8, "LEFT", "CC", 1, B),
        (5, "LEFT", "CC", 1, M),
        (9, "RIGHT", "CC", 1, N),
        (9, "LEFT", "CC", 1, N),
    ],
    ("calc", "test"): [(4, "LEFT", "MLO", 1, M), (10, "RIGHT", "CC", 1, B)],
}
"""Maps each table (kind of lesion and split) to its synthetic rows."""

SEPARATE_SERIES = (("mass", "train", 2),)
"""Kind, split and row index of each lesion whose crop and mask are in two series instead of one."""


def write_release(folder: Path, layout: str = "nbia", seed: int = 0) -> Path:
    """Write a release of 15 rows: its four tables in ``csv``, its images in one of its layouts.

    Args:
        folder: Target folder; created if needed.
        layout: Layout of the images, one of `LAYOUTS`.
        seed: Decides whether lesions with odd or even index have crop and mask swapped.

    Returns:
        `folder`.
    """
    tables = write_tables(folder / "csv")
    lesions = read_tables({key: tables / name for key, name in TABLES.items()})
    write_tree(folder, lesions, layout, swapped=lambda place: (place + seed) % 2 == 1)
    return folder


def uid(*parts: object) -> str:
    """Make the same DICOM UID for the same `parts`; its last five digits occur in no other UID of the release."""
    text = "|".join(map(str, parts))
    number = int.from_bytes(text.encode(), "little") % (10**30 + 57)
    return f"1.3.6.1.4.1.9590.100.1.2.{10**30 + number}"


def write_tables(folder: Path, rows: Mapping[tuple[str, str], Sequence[Row]] = ROWS) -> Path:
    """Write the four tables as the release has them: CRLF line ends, and a line break in a quoted path.

    Args:
        folder: Target folder; created if needed.
        rows: Maps kind of lesion and split to the rows.

    Returns:
        `folder`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for (kind, part), name in TABLES.items():
        with (folder / name).open("w", newline="") as file:
            file.write(HEADERS[kind] + "\r\n")
            for place, row in enumerate(rows[kind, part]):
                cells = _cells(kind, part, place, row)
                cells[-1 if kind == "mass" else -2] = f'"{cells[-1 if kind == "mass" else -2]}\n"'
                file.write(",".join(cells) + "\r\n")
    return folder


def _cells(kind: str, part: str, place: int, row: Row) -> list[str]:
    """Make the cells of a table row."""
    patient, side, view, lesion, pathology = row
    film = f"{kind.title()}-{SPLIT_NAMES[part]}_P_{patient:05d}_{side}_{view}"
    roi = f"{film}_{lesion}"
    apart = (kind, part, place) in SEPARATE_SERIES
    crop = f"{roi}/{uid(roi, 'study')}/{uid(roi, 'series')}/00000{0 if apart else place % 2}.dcm"
    mask = f"{roi}/{uid(roi, 'study 2')}/{uid(roi, 'series 2')}/000000.dcm" if apart else crop
    image = f"{film}/{uid(film, 'study')}/{uid(film, 'series')}/000000.dcm"
    about = [
        f"P_{patient:05d}",
        str(1 + patient % 4),
        side,
        view,
        str(lesion),
        "calcification" if kind == "calc" else kind,
    ]
    return [*about, "N/A", "N/A", "4", pathology, "3", image, crop, mask]


SeriesFolder = Callable[[Series, str], Path]
"""Type of a function that returns the folder of a series, relative to the release. Its arguments are the series and the
description that the NBIA Data Retriever puts into the folder's name."""


def nbia_folder(series: Series, description: str) -> Path:
    """Return the folder of a series as the current NBIA Data Retriever names it."""
    date = "07-20-2016" if description.startswith("full") else "08-30-2017"
    return Path(
        "CBIS-DDSM",
        series.subject,
        f"{date}-DDSM-NA-{series.study[-5:]}",
        f"1.000000-{description}-{series.series[-5:]}",
    )


def older_nbia_folder(series: Series, description: str) -> Path:
    """Return the folder of a series as an older NBIA Data Retriever names it."""
    dashed = description.replace(" ", "-")
    return Path("CBIS-DDSM", series.subject, f"10-04-2016-DDSM-{series.study[-5:]}", f"1-{dashed}-{series.series[-5:]}")


def table_folder(series: Series, description: str) -> Path:
    """Return the folder of a series as the tables name it."""
    return Path(*series)


def dicom_mirror_folder(series: Series, description: str) -> Path:
    """Return the folder of a series as in a DICOM mirror without descriptions."""
    return Path("dicom", series.study, series.series)


def jpeg_mirror_folder(series: Series, description: str) -> Path:
    """Return the folder of a series as in the JPEG mirror."""
    return Path("jpeg", series.series)


LAYOUTS: dict[str, SeriesFolder] = {
    "nbia": nbia_folder,
    "older": older_nbia_folder,
    "classic": table_folder,
    "google": dicom_mirror_folder,
    "kaggle": jpeg_mirror_folder,
}
"""Maps the name of each layout to the function that names its folders."""


def film_pixels(place: int, shape: tuple[int, int] = FILM_SHAPE) -> np.ndarray:
    """Draw a 16-bit mammogram with a bright breast on one side; its brightness encodes the row index `place`."""
    rows, columns = np.indices(shape)
    breast = np.clip(1 - np.hypot(columns / shape[1], (rows - shape[0] / 2) / shape[0]), 0, 1)
    pixels = (breast * (20000 + 100 * place)).astype(np.uint16)
    pixels[0, 0] = 65535
    return pixels


def lesion_pixels(place: int) -> np.ndarray:
    """Draw the crop of a lesion: a grey ramp whose steepness encodes the row index `place`."""
    return (np.linspace(0, 1, 34 * 36) ** (1 + place % 7) * 60000).astype(np.uint16).reshape(34, 36)


def mask_pixels(shape: tuple[int, int] = FILM_SHAPE) -> np.ndarray:
    """Draw the mask of a lesion: 255 inside, 0 outside."""
    mask = np.zeros(shape, np.uint8)
    mask[10:20, 5:12] = 255
    return mask


def write_tree(
    top: Path,
    lesions: Iterable[Lesion],
    layout: str = "nbia",
    syntaxes: tuple[UID, ...] = (ExplicitVRLittleEndian,),
    swapped: Callable[[int], bool] = lambda place: place % 2 == 1,
) -> dict[Series, int]:
    """Write the images of all lesions: whole films, crops and masks.

    Args:
        top: Target folder.
        lesions: Rows of the tables.
        layout: Layout of the images, one of `LAYOUTS`.
        syntaxes: Transfer syntaxes that the DICOM files use in turn.
        swapped: Function from the index of a lesion to whether its crop and mask are swapped.

    Returns:
        Maps the series of each full image and each crop to the index that its pixels encode.
    """
    places: dict[Series, int] = {}
    for lesion in lesions:
        place = len(places)
        if lesion.image not in places:
            places[lesion.image] = place
            syntax = syntaxes[place % len(syntaxes)]
            folder = top / LAYOUTS[layout](lesion.image, "full mammogram images")
            _write(folder, layout, lesion.image, [film_pixels(place)], syntax)
        places[lesion.crop] = place
        pair = [lesion_pixels(place), mask_pixels()]
        if swapped(place):
            pair.reverse()
        _write_lesion(top, layout, lesion, pair, syntaxes[place % len(syntaxes)])
    return places


def _write_lesion(top: Path, layout: str, lesion: Lesion, pair: list[np.ndarray], syntax: UID) -> None:
    """Write crop and mask of a lesion into one or two series."""
    place = LAYOUTS[layout]
    if lesion.crop == lesion.mask:
        _write(top / place(lesion.crop, "ROI mask images"), layout, lesion.crop, pair, syntax)
        return
    _write(top / place(lesion.crop, "cropped images"), layout, lesion.crop, pair[:1], syntax)
    _write(top / place(lesion.mask, "ROI mask images"), layout, lesion.mask, pair[1:], syntax)


def _write(folder: Path, layout: str, series: Series, images: list[np.ndarray], syntax: UID) -> None:
    """Write the images of a series, as JPEG for the layout ``jpeg_mirror_folder``, otherwise as DICOM."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, pixels in enumerate(images, 1):
        if layout == "kaggle":
            eight = pixels if pixels.dtype == np.uint8 else (pixels >> 8).astype(np.uint8)
            Image.fromarray(eight).save(folder / f"1-{number:03d}.jpg", quality=95)
            continue
        name = {"classic": f"{number - 1:06d}.dcm", "google": f"1.2.{number}"}.get(layout, f"1-{number}.dcm")
        _write_dicom(folder / name, pixels, series, syntax)


def _write_dicom(path: Path, pixels: np.ndarray, series: Series, syntax: UID) -> None:
    """Write a DICOM file with the elements that medfl reads; `pixels` (H, W) have 8 or 16 bits."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian if syntax.is_compressed else syntax
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = UID("1.2.3")
    dataset = pydicom.Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.Modality, dataset.StudyDate = "MG", "20160720"
    dataset.PatientID = dataset.PatientName = series.subject
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = series.study, series.series
    dataset.Rows, dataset.Columns = pixels.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation, dataset.PixelRepresentation = 1, "MONOCHROME2", 0
    dataset.BitsAllocated = dataset.BitsStored = pixels.dtype.itemsize * 8
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelData = pixels.tobytes()
    if syntax.is_compressed:
        dataset.compress(syntax, generate_instance_uid=False)
    dataset.save_as(path, enforce_file_format=True)
