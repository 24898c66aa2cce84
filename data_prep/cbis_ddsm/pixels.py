"""Read an image of CBIS-DDSM: a whole mammogram, or the lesion that was cut out of one.

The files of a lesion are its crop and its mask; which is which varies, so their content decides: a mask has black and
white pixels only. Of what is no mask the smaller image is the crop.
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
from medfl.data.readers.images import kind_of
from medfl.data.readers.mammogram_image import mirrored, open_mammogram, row_of
from medfl.data.readers.pictures import open_picture
from medfl.errors import DataError
from medfl_datasets.cbis_ddsm.files import only_one

_NEAR = 1 / 16  # JPEG blurs a mask's edges
_MASK_SHARE = 0.99


@dataclass(frozen=True)
class Film:
    """One image that is wanted.

    Attributes:
        files: Where it may be: one file, or the crop and the mask of a lesion in any order.
        series: The UIDs that the files' headers may have.
        names: What the release calls the patient and the images: these names identify nobody.
        laterality: ``left`` or ``right``.
        crop: Whether a lesion is wanted.
    """

    files: tuple[Path, ...]
    series: tuple[str, ...]
    names: tuple[str, ...]
    laterality: str
    crop: bool

    def paths(self) -> tuple[Path, ...]:
        """All that may be read."""
        return self.files


@dataclass(frozen=True)
class Options:
    """What every image becomes.

    Attributes:
        size: Height and width.
        crop_breast: Whether whole images are cut down to the breast.
        align: Whether right breasts are mirrored.
        voi: Whether the window for display is applied.
        check: One of `medfl.data.readers.dicom_identity.CHECKS`.
    """

    size: tuple[int, int] = (224, 224)
    crop_breast: bool = False
    align: bool = False
    voi: bool = False
    check: str = "strip"


def load(options: Options, film: Film) -> LoadedItem:
    """Read one image; see `medfl.data.readers.mammograms` for what becomes of its pixels.

    Returns:
        The row; its facts tell whether names may be burned into the pixels, whether the header holds any, and the
        presentation intent if it states one.

    Raises:
        DataError: If it can't be read, or is not what the tables say.
    """
    files = only_one(film.files) if len(film.files) > 1 else list(film.files)
    image = _crop_of(files, film, options) if film.crop else _whole(files, film, options)
    if options.check == "refuse":
        refuse_identity(image.identifying, image.burned_in)
    mirror = options.align and mirrored(image, film.laterality)
    row = row_of(image, options.size, crop=options.crop_breast and not film.crop, mirror=mirror)
    facts: dict[str, Any] = {"burned_in": True} if image.burned_in else {}
    facts |= {"identifying": True} if image.identifying else {}
    return LoadedItem(row, facts | ({"intent": image.intent} if image.intent in INTENTS else {}))


def _whole(files: Sequence[Path], film: Film, options: Options) -> DicomImage:
    if len(files) != 1:
        raise DataError(
            "wrong_image_count",
            f"its series holds {len(files)} different images, expected one. Keep the one of the release, and remove "
            "the others.",
            expected=1,
            found=len(files),
        )
    return _read(files[0], film, options)


def _crop_of(files: Sequence[Path], film: Film, options: Options) -> DicomImage:
    """The smallest image that is no mask."""
    for path in sorted(files, key=_pixel_count):
        image = _read(path, film, options)
        if not is_mask(image.pixels, image.extent):
            return image
    raise DataError(
        "mask_without_image", "only the mask of the lesion is there, not the lesion itself. Download this series again."
    )


def is_mask(pixels: np.ndarray, extent: tuple[float, float]) -> bool:
    """Whether all pixels are black or white, but for what JPEG blurs.

    Args:
        pixels: (H, W).
        extent: The smallest and the largest of them.
    """
    low, high = extent
    near = (high - low) * _NEAR
    middle = np.count_nonzero((pixels > low + near) & (pixels < high - near))
    return bool(middle <= (1 - _MASK_SHARE) * pixels.size)


def _pixel_count(path: Path) -> int:
    if kind_of(path) == "dicom":
        header = open_dicom(path, pixels=False, modalities=MAMMOGRAPHY)
        return int(header.Rows) * int(header.Columns)
    with open_picture(path) as picture:
        return picture.width * picture.height


def _read(path: Path, film: Film, options: Options) -> DicomImage:
    image = open_mammogram(path, voi=options.voi, pseudonyms=film.names)
    if image.series and image.series not in film.series:
        raise DataError(
            "wrong_series", "the file is of another series than its folder says. Download this series again."
        )
    return image
