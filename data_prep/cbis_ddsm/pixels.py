"""Read an image of CBIS-DDSM: a whole mammogram, or the crop of a lesion.

A lesion has two files, its crop and its mask, in varying order. The content decides: a mask has only black and white
pixels, and the smallest image that is not a mask is the crop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from medfl.data.ingest.workers import LoadedItem
from medfl.data.readers.dicom import DicomImage
from medfl.data.readers.dicom_header import MAMMOGRAPHY, open_dicom
from medfl.data.readers.dicom_identity import refuse_identity
from medfl.data.readers.dicom_intent import INTENTS
from medfl.data.readers.images import file_kind
from medfl.data.readers.mammogram_image import has_chest_wall_right, mammogram_row, open_mammogram
from medfl.data.readers.pillow_images import open_pillow_image
from medfl.errors import DataError
from medfl_datasets.cbis_ddsm.files import distinct_files

_NEAR = 1 / 16  # tolerance as a share of the value range, because JPEG blurs the edges of a mask
_MASK_SHARE = 0.99


@dataclass(frozen=True)
class CbisFilm:
    """Files of one image (a whole film, or the crop of a lesion), and the identifiers that their headers must have.

    Attributes:
        files: Candidate files: one file, or the crop and the mask of a lesion in any order.
        series: Accepted series UIDs. A header with another UID is an error.
        names: Pseudonyms of the patient and the images in the release. A header that contains them identifies no one.
        laterality: ``left`` or ``right``.
        crop: Whether the image is the crop of a lesion; otherwise it is a whole mammogram.
    """

    files: tuple[Path, ...]
    series: tuple[str, ...]
    names: tuple[str, ...]
    laterality: str
    crop: bool

    def paths(self) -> tuple[Path, ...]:
        """Return all candidate files, which may have to be read to find the image."""
        return self.files


@dataclass(frozen=True)
class CbisReadOptions:
    """Options of reading, which apply to all images.

    Attributes:
        size: Height and width of the result in pixels.
        crop_breast: Whether whole mammograms are cropped to the breast.
        align: Whether right breasts are mirrored, so that the chest wall is on the left.
        voi: Whether the display window (VOI LUT) of the DICOM file is applied.
        check: Handling of headers that may identify the patient, one of
            `medfl.data.readers.dicom_identity.IDENTITY_CHECKS`.
    """

    size: tuple[int, int] = (224, 224)
    crop_breast: bool = False
    align: bool = False
    voi: bool = False
    check: str = "strip"


def read_image(options: CbisReadOptions, film: CbisFilm) -> LoadedItem:
    """Read one image; `medfl.data.readers.mammograms` describes the processing of its pixels.

    Returns:
        Image with height and width `options.size`, and its metadata. The metadata contain ``burned_in`` if names may
        be burned into the pixels, ``identifying`` if the header may identify the patient, and ``intent`` if the header
        states a presentation intent.

    Raises:
        DataError: If the image can't be read, belongs to another series, or its series does not contain exactly one
            image. Also if the header may identify the patient and `options.check` is ``refuse``.
    """
    files = distinct_files(film.files) if len(film.files) > 1 else list(film.files)
    image = _read_crop(files, film, options) if film.crop else _read_mammogram(files, film, options)
    if options.check == "refuse":
        refuse_identity(image.identifying, image.burned_in)
    mirror = options.align and has_chest_wall_right(image, film.laterality)
    row = mammogram_row(image, options.size, crop=options.crop_breast and not film.crop, mirror=mirror)
    facts: dict[str, Any] = {"burned_in": True} if image.burned_in else {}
    facts |= {"identifying": True} if image.identifying else {}
    return LoadedItem(row, facts | ({"intent": image.intent} if image.intent in INTENTS else {}))


def _read_mammogram(files: Sequence[Path], film: CbisFilm, options: CbisReadOptions) -> DicomImage:
    """Read a whole mammogram; raise DataError if its series does not contain exactly one image."""
    if len(files) != 1:
        raise DataError(
            "wrong_image_count",
            f"its series holds {len(files)} different images, expected one. Keep the one of the release, and remove "
            "the others.",
            expected=1,
            found=len(files),
        )
    return _read(files[0], film, options)


def _read_crop(files: Sequence[Path], film: CbisFilm, options: CbisReadOptions) -> DicomImage:
    """Read the smallest image that is not a mask; raise DataError if there is none."""
    for path in sorted(files, key=_pixel_count):
        image = _read(path, film, options)
        if not is_mask(image.pixels, image.extent):
            return image
    raise DataError(
        "mask_without_image", "only the mask of the lesion exists, not its crop. Download this series again."
    )


def is_mask(pixels: np.ndarray, extent: tuple[float, float]) -> bool:
    """Return whether at least 99 % of the pixels are black or white, with a tolerance for JPEG artefacts.

    Args:
        pixels: Pixels, shape (H, W).
        extent: Smallest and largest pixel value.
    """
    low, high = extent
    near = (high - low) * _NEAR
    middle = np.count_nonzero((pixels > low + near) & (pixels < high - near))
    return bool(middle <= (1 - _MASK_SHARE) * pixels.size)


def _pixel_count(path: Path) -> int:
    """Return the number of pixels of an image from its header."""
    if file_kind(path) == "dicom":
        header = open_dicom(path, pixels=False, modalities=MAMMOGRAPHY)
        return int(header.Rows) * int(header.Columns)
    with open_pillow_image(path) as picture:
        return picture.width * picture.height


def _read(path: Path, film: CbisFilm, options: CbisReadOptions) -> DicomImage:
    """Read an image; raise DataError if its header states another series."""
    image = open_mammogram(path, voi=options.voi, pseudonyms=film.names)
    if image.series and image.series not in film.series:
        raise DataError(
            "wrong_series", "the file belongs to another series than its folder. Download this series again."
        )
    return image
