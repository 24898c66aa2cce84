"""Read one DICOM image: its pixels as stored, and what is needed to make grey values of them.

- Modality: rescale slope and intercept, or the lookup table in their place. A slope of 0 is refused.
- VOI (the window or lookup table for display): only on request, since it differs between viewers and vendors.
- MONOCHROME1, where large values are dark, is marked; whoever scales the values inverts them.
- Bits above those in use (12 in 16) are dropped; signed values keep their sign.
- Padding: pixels of the value, or in the range of values, that the header says only fill the image up become as dark as
  the darkest other one. They count neither for the extent nor for any range.
- Laterality, view and the direction of the patient are kept, nothing else about the patient; and what the image is for.

Source: DICOM PS3.3 C.7.6.3 (pixels), C.7.5.1.1.2 (padding), C.11.1 (modality), C.11.2 (VOI), C.8.11 (mammography).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom_header import decoding, open_dicom
from medfl.data.readers.dicom_identity import check_identity, is_burned_in
from medfl.data.readers.dicom_intent import NOT_SAID, intent_of
from medfl.data.readers.mammograms import extent_of
from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

SIDES = {"L": "left", "R": "right"}
"""What DICOM calls a side, and what medfl does."""

VIEWS = ("CC", "MLO", "ML", "LM", "LMO", "SIO", "FB", "XCC", "XCCL", "XCCM", "AT", "ISO")
"""Views of the breast that are kept, as ``ViewPosition`` writes them."""

_VIEW_CODES = {
    "R-10242": "CC",
    "399162004": "CC",
    "R-10226": "MLO",
    "399368009": "MLO",
    "R-10224": "ML",
    "399260004": "ML",
    "R-10228": "LM",
    "399352003": "LM",
}


@dataclass(frozen=True)
class DicomImage:
    """One image of a DICOM file.

    Attributes:
        pixels: As stored: integers of shape (H, W), or uint8 of shape (H, W, 3) in RGB. After a VOI or a lookup table
            float32.
        inverted: Whether large pixels are dark (MONOCHROME1).
        extent: The smallest and the largest pixel of a grey image that does not only pad it.
        slope: A value is ``slope * pixel + intercept``; not 0.
        intercept: See `slope`.
        laterality: ``left``, ``right``, or empty if the file does not say.
        view: One of `VIEWS`, or empty.
        toward_right: Where the right edge of the image lies in the patient: ``A`` (front), ``P`` (back), or empty.
        burned_in: Whether the file says that names or the like are written into its pixels.
        identifying: Keywords of the elements that may tell who the patient is.
        series: The UID of its series, or empty.
        intent: What the pixels are for, see `medfl.data.readers.dicom_intent`.
    """

    pixels: np.ndarray
    inverted: bool
    extent: tuple[float, float] = (0, 0)
    slope: float = 1.0
    intercept: float = 0.0
    laterality: str = ""
    view: str = ""
    toward_right: str = ""
    burned_in: bool = False
    identifying: tuple[str, ...] = ()
    series: str = ""
    intent: str = NOT_SAID

    def values(self) -> np.ndarray:
        """The values of the modality, (H, W), float32; an inverted image stays inverted."""
        if self.slope == 1 and self.intercept == 0:
            return self.pixels.astype(np.float32)
        return (self.pixels * self.slope + self.intercept).astype(np.float32)


def read_dicom(
    path: Path, *, voi: bool = False, modalities: Collection[str] | None = None, pseudonyms: Collection[str] = ()
) -> DicomImage:
    """Read a DICOM file with one image.

    Args:
        path: The file.
        voi: Whether its window or lookup table for display is applied, the first one if there are several.
        modalities: What is accepted, for example `medfl.data.readers.dicom_header.MAMMOGRAPHY`; None means any.
        pseudonyms: Names and numbers of patients that identify nobody.

    Raises:
        DataError: If it can't be read; see `medfl.data.readers.dicom_header`.
    """
    dataset = open_dicom(path, modalities=modalities)
    slope, intercept = _rescaling(dataset)
    inverted = str(dataset.PhotometricInterpretation) == "MONOCHROME1"
    pixels, extent, padded = _decode(dataset)
    if pixels.ndim == 2 and (voi or "ModalityLUTSequence" in dataset):
        pixels, slope, intercept = _with_tables(pixels, dataset, voi), 1.0, 0.0
        extent = extent_of(pixels)
    if padded is not None:
        pixels, extent = _darkened(pixels, padded, large_is_dark=inverted != (slope < 0))
    with decoding():
        return DicomImage(
            pixels=pixels,
            inverted=inverted,
            extent=extent,
            slope=slope,
            intercept=intercept,
            laterality=SIDES.get(str(dataset.get("ImageLaterality") or dataset.get("Laterality") or ""), ""),
            view=_view(dataset),
            toward_right=_toward_right(dataset),
            burned_in=is_burned_in(dataset),
            identifying=tuple(check_identity(dataset, pseudonyms)),
            series=str(dataset.get("SeriesInstanceUID") or ""),
            intent=intent_of(dataset),
        )


def _decode(dataset: Dataset) -> tuple[np.ndarray, tuple[float, float], np.ndarray | None]:
    """The pixels as stored, where possible without a copy, not to be written to; and the extent of grey ones.

    The third is which of them only pad the image; None if none does.
    """
    from pydicom.pixels import get_decoder

    with decoding():
        syntax = dataset.file_meta.TransferSyntaxUID
        options: dict[str, Any] = {"view_only": True}
        if not syntax.is_compressed:
            options["correct_unused_bits"] = False  # pydicom would copy all pixels for it
        pixels, _ = get_decoder(syntax).as_array(dataset, **options)
    if pixels.ndim == 3:
        return pixels, (0, 0), None
    if not pixels.dtype.isnative:
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
    cut, extent = _drop_unused_bits(pixels, int(dataset.BitsStored))
    ends = _padding(dataset, signed=pixels.dtype.kind == "i")
    if ends is None:
        return cut, extent, None
    padded = (cut >= ends[0]) & (cut <= ends[1])
    if cut is not pixels:  # padding may be outside of the bits in use
        padded |= (pixels >= ends[0]) & (pixels <= ends[1])
    return cut, extent, padded if padded.any() else None


def _padding(dataset: Dataset, signed: bool) -> tuple[int, int] | None:
    """The smallest and the largest value that only pad an image, or None; their sign is that of the pixels."""
    with decoding():
        value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
        if value in (None, ""):
            return None
        stated = (int(value), int(value if limit in (None, "") else limit))
    low, high = sorted((end + 0x8000) % 0x10000 - 0x8000 if signed else end % 0x10000 for end in stated)
    return low, high


def _darkened(pixels: np.ndarray, padded: np.ndarray, large_is_dark: bool) -> tuple[np.ndarray, tuple[float, float]]:
    """Padding becomes as dark as the darkest other pixel; with the extent of the others."""
    others = pixels[~padded]
    if not others.size:
        raise DataError(
            "only_padding",
            "every pixel is padding by the file's PixelPaddingValue: nothing of the image would be left. Correct or "
            "remove this element, or leave the file out.",
        )
    low, high = others.min(), others.max()
    return np.where(padded, high if large_is_dark else low, pixels), (low.item(), high.item())


def _drop_unused_bits(pixels: np.ndarray, stored: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Old files keep overlays in the bits above those in use; signed values may lack their sign there."""
    extent, spare = extent_of(pixels), pixels.dtype.itemsize * 8 - stored
    signed = pixels.dtype.kind == "i"
    low, high = (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if signed else (0, (1 << stored) - 1)
    if low <= extent[0] and extent[1] <= high:
        return pixels, extent
    cut = (pixels << spare) >> spare
    return cut, extent_of(cut)


def _rescaling(dataset: Dataset) -> tuple[float, float]:
    with decoding():
        slope, intercept = dataset.get("RescaleSlope"), dataset.get("RescaleIntercept")
        slope, intercept = (
            1.0 if slope in (None, "") else float(slope),
            0.0 if intercept in (None, "") else float(intercept),
        )
    if slope == 0 or not np.isfinite([slope, intercept]).all():
        raise DataError(
            "invalid_rescaling",
            f"expected a rescale slope that is finite and not 0, got {slope:g} (intercept {intercept:g}): all pixels "
            "would have one value. Correct or remove these elements.",
            slope=slope,
            intercept=intercept,
        )
    return slope, intercept


def _with_tables(pixels: np.ndarray, dataset: Dataset, voi: bool) -> np.ndarray:
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    with decoding():
        values = apply_modality_lut(pixels, dataset)
        return np.asarray(apply_voi_lut(values, dataset) if voi else values, dtype=np.float32)


def _view(dataset: Dataset) -> str:
    view = str(dataset.get("ViewPosition") or "").upper()
    codes = dataset.get("ViewCodeSequence")
    if not view and codes:
        view = _VIEW_CODES.get(str(codes[0].get("CodeValue", "")), "")
    return view if view in VIEWS else ""


def _toward_right(dataset: Dataset) -> str:
    orientation = dataset.get("PatientOrientation") or ""
    first = str(orientation if isinstance(orientation, str) else orientation[0])[:1]
    return first if first in ("A", "P") else ""
