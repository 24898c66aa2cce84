"""Read the stored pixels of a DICOM image and the metadata needed to convert them to grey values.

- Modality: rescale slope and intercept, or the lookup table that replaces them. A slope of 0 is refused.
- VOI (the display window or lookup table): applied on request only, since it differs between viewers and vendors.
- MONOCHROME1, where large values are dark, is marked; the code that scales the values inverts them.
- Bits above those in use (12 of 16) are dropped; signed values keep their sign.
- Padding: pixels with the padding value, or in the padding range, that the header declares become as dark as the
  darkest other pixel. They do not count for the extent or any other range.
- Compressed pixels state their own size, and it must agree with the header: decoders believe the compressed pixels, so
  that a small file could fill the memory.
- Laterality, view, orientation of the patient and presentation intent are kept. Nothing else about the patient is kept.

Sources: DICOM PS3.3 C.7.6.3 (pixels), C.7.5.1.1.2 (padding), C.11.1 (modality), C.11.2 (VOI), C.8.11 (mammography);
ITU-T T.81 and T.87 (JPEG, JPEG-LS: frame header), T.800 (JPEG 2000: image and tile size).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from medfl.data.readers.dicom_header import decoding, open_dicom
from medfl.data.readers.dicom_identity import check_identity, is_burned_in
from medfl.data.readers.dicom_intent import INTENT_NOT_STATED, intent_of
from medfl.data.readers.mammograms import extent_of
from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

LATERALITY_NAMES = {"L": "left", "R": "right"}
"""Maps DICOM's codes of a side to medfl's names."""

VIEWS = ("CC", "MLO", "ML", "LM", "LMO", "SIO", "FB", "XCC", "XCCL", "XCCM", "AT", "ISO")
"""Views of the breast that are kept, as ``ViewPosition`` writes them."""

_SAFE_DECODERS = ("pydicom", "pyjpegls", "pylibjpeg", "pillow")
"""Decoders of pydicom by preference. The remaining one, GDCM, ends the process at some damaged files, and is used only
for compressions that no other decoder reads."""

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
"""Maps codes of ``ViewCodeSequence`` (SNOMED) to views."""

_JPEG_START, _J2K_START = b"\xff\xd8", b"\xff\x4f\xff\x51"

_FRAME_HEADERS = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7)
"""Second bytes of the markers before which a JPEG or JPEG-LS states its size."""


@dataclass(frozen=True)
class DicomImage:
    """Image of a DICOM file.

    Attributes:
        pixels: Stored pixels: integers of shape (H, W), or uint8 of shape (H, W, 3) in RGB. After a VOI or lookup table
            float32.
        inverted: Whether large pixels are dark (MONOCHROME1).
        extent: Smallest and largest pixel of a grey image, ignoring padding.
        slope: Rescale slope, not 0: a modality value is ``slope * pixel + intercept``.
        intercept: Rescale intercept.
        laterality: ``left``, ``right``, or empty if the file does not state it.
        view: One of `VIEWS`, or empty.
        toward_right: Direction of the image's right edge in the patient: ``A`` (anterior), ``P`` (posterior), or empty.
        burned_in: Whether the file states that annotations such as names are burned into its pixels.
        identifying: Keywords of the elements that may identify the patient.
        series: UID of the series, or empty.
        intent: Presentation intent: ``FOR PROCESSING``, ``FOR PRESENTATION`` or ``not said``.
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
    intent: str = INTENT_NOT_STATED

    def values(self) -> np.ndarray:
        """Return the modality values, (H, W), float32; infinite beyond its range. An inverted image stays inverted."""
        if self.slope == 1 and self.intercept == 0:
            return self.pixels.astype(np.float32)
        return _rescale(self.pixels, self.slope, self.intercept)


def read_dicom(
    path: Path, *, voi: bool = False, modalities: Collection[str] | None = None, pseudonyms: Collection[str] = ()
) -> DicomImage:
    """Read a DICOM file with one image.

    Args:
        path: Path of the file.
        voi: Whether to apply the display window or lookup table; the first one if there are several.
        modalities: Accepted modalities, for example `medfl.data.readers.dicom_header.MAMMOGRAPHY`; None accepts any.
        pseudonyms: Patient names and identifiers that are known to be pseudonyms.

    Raises:
        DataError: If the file can't be read; see `medfl.data.readers.dicom_header`.
    """
    dataset = open_dicom(path, modalities=modalities)
    slope, intercept = _rescale_slope_and_intercept(dataset)
    inverted = str(dataset.PhotometricInterpretation) == "MONOCHROME1"
    pixels, extent, padded = _decode_pixels(dataset)
    if pixels.ndim == 2 and (voi or "ModalityLUTSequence" in dataset):
        pixels, slope, intercept = _apply_tables(pixels, dataset, voi), 1.0, 0.0
        extent = extent_of(pixels)
    if padded is not None:
        pixels, extent = _darken_padding(pixels, padded, large_is_dark=inverted != (slope < 0))
    with decoding():
        return DicomImage(
            pixels=pixels,
            inverted=inverted,
            extent=extent,
            slope=slope,
            intercept=intercept,
            laterality=LATERALITY_NAMES.get(str(dataset.get("ImageLaterality") or dataset.get("Laterality") or ""), ""),
            view=_view_position(dataset),
            toward_right=_toward_right(dataset),
            burned_in=is_burned_in(dataset),
            identifying=tuple(check_identity(dataset, pseudonyms)),
            series=str(dataset.get("SeriesInstanceUID") or ""),
            intent=intent_of(dataset),
        )


def read_frame(dataset: Dataset, frame: int, rescaling: Dataset) -> np.ndarray:
    """Return the modality values of one frame of a grey file with several frames, (H, W), float32.

    Args:
        dataset: Opened file.
        frame: Number of the frame, from 0.
        rescaling: Data set with the frame's rescale slope and intercept.

    Raises:
        DataError: If the frame can't be decoded.
    """
    slope, intercept = _rescale_slope_and_intercept(rescaling)
    inverted = str(dataset.PhotometricInterpretation) == "MONOCHROME1"
    pixels, _, padded = _decode_pixels(dataset, frame)
    if padded is not None:
        pixels, _ = _darken_padding(pixels, padded, large_is_dark=inverted != (slope < 0))
    return _rescale(pixels, slope, intercept)


def _rescale(pixels: np.ndarray, slope: float, intercept: float) -> np.ndarray:
    """Return modality values, float32; infinite beyond its range."""
    with np.errstate(over="ignore", invalid="ignore"):
        return (pixels * slope + intercept).astype(np.float32)


def _decode_pixels(
    dataset: Dataset, frame: int | None = None
) -> tuple[np.ndarray, tuple[float, float], np.ndarray | None]:
    """Decode the stored pixels, without a copy if possible; the result must not be modified.

    Args:
        dataset: Opened file.
        frame: Number of the frame of a file with several frames, from 0; None for a file with one image.

    Returns:
        The pixels, the extent (0, 0 for colour images), and the mask of padding pixels, or None if there is no padding.
    """
    from pydicom.pixels import get_decoder

    with decoding():
        syntax = dataset.file_meta.TransferSyntaxUID
        options: dict[str, Any] = {"view_only": True, "index": frame}
        if not syntax.is_compressed:
            options["correct_unused_bits"] = False  # pydicom would copy all pixels for it
        elif not syntax.is_deflated:
            _check_compressed_size(dataset, frame or 0)
            available = get_decoder(syntax).available_plugins
            options["decoding_plugin"] = next((name for name in _SAFE_DECODERS if name in available), "")
        pixels, _ = get_decoder(syntax).as_array(dataset, **options)
        expected = (int(dataset.Rows), int(dataset.Columns), *[3] * (dataset.SamplesPerPixel == 3))
    if pixels.shape != expected:
        raise DataError(
            "wrong_shape",
            f"expected one image of {expected[0]} x {expected[1]} pixels, as the DICOM header states, got pixels of "
            "several images or of another size. Export it again.",
            expected=list(expected),
        )
    if pixels.ndim == 3:
        return pixels, (0, 0), None
    if not pixels.dtype.isnative:
        pixels = pixels.astype(pixels.dtype.newbyteorder("="))
    used, extent = _drop_unused_bits(pixels, int(dataset.BitsStored))
    ends = _padding_range(dataset, signed=pixels.dtype.kind == "i")
    if ends is None:
        return used, extent, None
    padded = (used >= ends[0]) & (used <= ends[1])
    if used is not pixels:  # the padding value may need more bits than those in use
        padded |= (pixels >= ends[0]) & (pixels <= ends[1])
    return used, extent, padded if padded.any() else None


def _padding_range(dataset: Dataset, signed: bool) -> tuple[int, int] | None:
    """Return the smallest and largest padding value, or None; they have the same signedness as the pixels."""
    with decoding():
        value, limit = dataset.get("PixelPaddingValue"), dataset.get("PixelPaddingRangeLimit")
        if value in (None, ""):
            return None
        stated = (int(value), int(value if limit in (None, "") else limit))
    low, high = sorted((end + 0x8000) % 0x10000 - 0x8000 if signed else end % 0x10000 for end in stated)
    return low, high


def _darken_padding(
    pixels: np.ndarray, padded: np.ndarray, large_is_dark: bool
) -> tuple[np.ndarray, tuple[float, float]]:
    """Return pixels whose padding is as dark as the darkest other pixel, and the extent of the other pixels."""
    others = pixels[~padded]
    if not others.size:
        raise DataError(
            "only_padding",
            "every pixel is padding by the file's PixelPaddingValue, so the image would be empty. Correct or remove "
            "this element, or leave the file out.",
        )
    low, high = others.min(), others.max()
    return np.where(padded, high if large_is_dark else low, pixels), (low.item(), high.item())


def _drop_unused_bits(pixels: np.ndarray, stored: int) -> tuple[np.ndarray, tuple[float, float]]:
    """Remove the bits above those in use and return the pixels with their extent.

    Old files store overlays in these bits, and signed values may lack their sign there.
    """
    extent, spare = extent_of(pixels), pixels.dtype.itemsize * 8 - stored
    signed = pixels.dtype.kind == "i"
    low, high = (-(1 << (stored - 1)), (1 << (stored - 1)) - 1) if signed else (0, (1 << stored) - 1)
    if low <= extent[0] and extent[1] <= high:
        return pixels, extent
    cut = (pixels << spare) >> spare
    return cut, extent_of(cut)


def _rescale_slope_and_intercept(dataset: Dataset) -> tuple[float, float]:
    """Return the rescale slope and intercept, by default 1 and 0. Raise if the slope is 0 or not finite."""
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


def _apply_tables(pixels: np.ndarray, dataset: Dataset, voi: bool) -> np.ndarray:
    from pydicom.pixels import apply_modality_lut, apply_voi_lut

    with decoding():
        values = apply_modality_lut(pixels, dataset)
        return np.asarray(apply_voi_lut(values, dataset) if voi else values, dtype=np.float32)


def _view_position(dataset: Dataset) -> str:
    """Return the view of a mammogram if it is one of `VIEWS`, otherwise an empty text."""
    view = str(dataset.get("ViewPosition") or "").upper()
    codes = dataset.get("ViewCodeSequence")
    if not view and codes:
        view = _VIEW_CODES.get(str(codes[0].get("CodeValue", "")), "")
    return view if view in VIEWS else ""


def _toward_right(dataset: Dataset) -> str:
    """Return the patient direction of the image's right edge: ``A``, ``P``, or empty."""
    orientation = dataset.get("PatientOrientation") or ""
    first = str(orientation if isinstance(orientation, str) else orientation[0])[:1]
    return first if first in ("A", "P") else ""


def _check_compressed_size(dataset: Dataset, frame: int) -> None:
    """Raise if the compressed pixels of a frame state another size or number of samples than the DICOM header.

    Args:
        dataset: Opened file with encapsulated pixels.
        frame: Number of the frame, from 0.

    Raises:
        DataError: If the sizes differ. Other errors mean that the file is damaged.
    """
    from pydicom.encaps import get_frame

    frames = int(dataset.get("NumberOfFrames") or 1)
    stated = _compressed_size(get_frame(dataset.PixelData, frame, number_of_frames=frames))
    expected = (int(dataset.Rows), int(dataset.Columns), int(dataset.SamplesPerPixel))
    if stated is not None and stated != expected:
        raise DataError(
            "wrong_shape",
            f"expected {' x '.join(map(str, expected))} samples, as the DICOM header states, its compressed pixels "
            f"state {' x '.join(map(str, stated))}. Export it again.",
            expected=list(expected),
            found=list(stated),
        )


def _compressed_size(content: bytes) -> tuple[int, int, int] | None:
    """Return the rows, columns and samples that a JPEG, JPEG-LS or JPEG 2000 codestream states; None otherwise."""
    if content[:4] == _J2K_START:
        right, bottom, left, top = (int.from_bytes(content[place : place + 4]) for place in (8, 12, 16, 20))
        return bottom - top, right - left, int.from_bytes(content[40:42])
    place = 2 if content[:2] == _JPEG_START else len(content)
    while place + 10 <= len(content) and content[place] == 0xFF:
        if content[place + 1] in _FRAME_HEADERS:
            rows, columns = (int.from_bytes(content[start : start + 2]) for start in (place + 5, place + 7))
            return rows, columns, content[place + 9]
        is_fill = content[place + 1] == 0xFF
        place += 1 if is_fill else 2 + int.from_bytes(content[place + 2 : place + 4])
    return None
