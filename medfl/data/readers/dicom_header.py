"""Open a DICOM file and check its header before any pixel is decoded.

Accepted, because they occur in practice: files without the preamble or the meta header; files without a transfer syntax
if the pixels are not compressed; files without the number of stored bits; secondary captures. Refused with a reason:
files without an image or with several frames, impossible sizes, compressions that no installed package decodes, and
truncated pixels or headers.

Messages never name a file or repeat patient data from it.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import stat
import zlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medfl.errors import DataError, pip_install

if TYPE_CHECKING:
    from pydicom import Dataset

MAX_PIXELS = 178_956_970
"""Maximum number of pixels of an image, equal to Pillow's limit. The largest mammograms have about 30 million."""

MAMMOGRAPHY = ("MG", "RG", "CR", "DX", "OT", "SC", "")
"""Modality values of mammograms in practice.

They cover mammography, other radiography, scanned films, secondary captures, and files without a modality.
"""

MAX_INFLATED_BYTES = 4 * MAX_PIXELS
"""Maximum size, in bytes, of a file that is compressed as a whole (deflated) after decompression."""

COLOR_SPACES = (
    "MONOCHROME1",
    "MONOCHROME2",
    "PALETTE COLOR",
    "RGB",
    "HSV",
    "ARGB",
    "CMYK",
    "XYB",
    "YBR_FULL",
    "YBR_FULL_422",
    "YBR_PARTIAL_422",
    "YBR_PARTIAL_420",
    "YBR_ICT",
    "YBR_RCT",
)
"""Photometric interpretations of DICOM. Messages repeat no other text, because it may be a patient's name."""

LARGE_READ_BYTES = 1 << 20
"""Number of bytes from which a read of a DICOM file is limited to the bytes that the file still has."""

_JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
_MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


def is_dicom(head: bytes) -> bool:
    """Return True if a file is DICOM, judging by its first 132 bytes.

    A file has the preamble, or starts with an element that is typical of files without it.
    """
    if head[128:132] == b"DICM":
        return True
    group, element = int.from_bytes(head[:2], "little"), int.from_bytes(head[2:4], "little")
    known_vr = head[4:6] in (b"UL", b"UI", b"CS", b"OB", b"DA", b"TM", b"SH", b"LO")
    return group in (2, 8) and element <= 0x100 and (known_vr or 0 < int.from_bytes(head[4:8], "little") <= 64)


def unopenable_file_error(error: OSError) -> DataError:
    """Return the error for an image file that the system can't open. The file is not named."""
    return DataError(
        "unreadable_file",
        f"the image file can't be opened: {error.strerror}. Check the file and its rights.",
        reason=error.strerror,
    )


def check_regular_file(path: Path) -> None:
    """Raise if a path is a named pipe, a socket or a device, because reading it may never end.

    Raises:
        DataError: If it is, or if there is no such file.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise unopenable_file_error(error) from None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise DataError(
            "not_a_file", "expected an image file, got a named pipe, a socket or a device. Leave it out, or copy it."
        )


def damaged_file_error(error: Exception) -> DataError:
    """Return the error for a file that a decoder can't read.

    The decoder's own message is not repeated, because it may name the file.
    """
    return DataError(
        "damaged_file",
        f"the image file is damaged or cut short ({type(error).__name__}). Export it again.",
        cause=type(error).__name__,
    )


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Convert every exception of the block into a DataError for a damaged file."""
    try:
        yield
    except DataError:
        raise
    except MemoryError:
        raise DataError(
            "out_of_memory",
            "the image needs more memory than this machine has left. Crop or downsample it, or read it on another.",
        ) from None
    except RecursionError:
        raise DataError(
            "nested_too_deep",
            "the DICOM file nests sequences too deep to be read safely. Export it again without its sequences.",
        ) from None
    except Exception as error:
        raise damaged_file_error(error) from None


def open_dicom(
    path: Path, *, pixels: bool = True, modalities: Collection[str] | None = None, several_frames: bool = False
) -> Dataset:
    """Open a DICOM file with one readable image.

    Args:
        path: Path of the file.
        pixels: Whether the pixel data are read too (but not decoded).
        modalities: Accepted modalities, for example `MAMMOGRAPHY`; None accepts any.
        several_frames: Whether the file may contain several frames.

    Returns:
        The pydicom data set. Missing entries for transfer syntax, stored bits and sign are filled in.

    Raises:
        DataError: If the file is no DICOM file, is damaged, does not contain exactly one image, or can't be decoded.
    """
    dataset = read_elements(path, pixels=pixels)
    with decoding():
        empty = "Rows" not in dataset or (pixels and "PixelData" not in dataset)
        frames = int(dataset.get("NumberOfFrames") or 1)
        modality = str(dataset.get("Modality") or "")
    _check_modality(modality, modalities)
    if empty:
        raise DataError(
            "missing_pixels", "the DICOM file holds no pixels (a report or a plan, or cut short?). Leave it out."
        )
    if frames != 1 and not (several_frames and frames > 1):
        raise DataError(
            "several_frames",
            f"the image file holds {frames} frames, expected one. Save the frame to use in its own file.",
            found=frames,
        )
    with decoding():
        _set_defaults(dataset)
        _check_pixel_format(dataset)
    _check_syntax(dataset)
    if pixels:
        _check_length(dataset)
    return dataset


def read_elements(path: Path, *, pixels: bool, tags: Sequence[str] | None = None) -> Dataset:
    """Read the elements of a DICOM file. Lengths in the file can't fill the memory.

    Args:
        path: Path of the file.
        pixels: Whether the pixel data are read too (but not decoded).
        tags: Keywords of the elements to read; None reads all.

    Raises:
        DataError: If the file is no DICOM file, is damaged, is too large after decompression, or can't be opened.
    """
    import pydicom

    check_regular_file(path)
    try:
        with _LimitedFile(io.FileIO(os.fspath(path))) as file:
            if not is_dicom(file.read(132)):
                raise DataError(
                    "unsupported_file",
                    "the file is no DICOM file, or is cut short in its header. Export it again.",
                    expected="DICOM",
                )
            file.seek(0)
            with decoding():
                return pydicom.dcmread(
                    file,
                    stop_before_pixels=not pixels,
                    force=True,
                    specific_tags=None if tags is None else list(tags),
                )
    except OSError as error:
        raise unopenable_file_error(error) from None


class _LimitedFile(io.BufferedReader):
    """DICOM file that takes no more memory than it has bytes, even if an element states a larger length."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Return the next `size` bytes, or all bytes up to the end of the file if `size` is negative.

        pydicom reads up to the end only to inflate a deflated file, in one piece.

        Raises:
            DataError: If a deflated file is too large after decompression.
        """
        if size is None or size < 0:
            content = super().read()
            _check_inflated(content)
            return content
        if size >= LARGE_READ_BYTES:
            place = self.tell()
            size = min(size, self.seek(0, io.SEEK_END) - place)
            self.seek(place)
        return super().read(size)


def _check_inflated(content: bytes) -> None:
    """Raise if a deflated file would fill the memory, because pydicom inflates the whole file at once."""
    stream, rest, size = zlib.decompressobj(-zlib.MAX_WBITS), content, 0
    while rest:
        size += len(stream.decompress(rest, 1 << 24))
        rest = stream.unconsumed_tail
        if size > MAX_INFLATED_BYTES:
            raise DataError(
                "excessive_inflation",
                f"the DICOM file grows to more than {MAX_INFLATED_BYTES // 10**6} MB when it is inflated: it is "
                "damaged, or was crafted to fill the memory. Leave it out, or export it without compression.",
                maximum=MAX_INFLATED_BYTES,
            )


def _check_modality(modality: str, accepted: Collection[str] | None) -> None:
    if accepted is None or modality in accepted:
        return
    shown = modality if re.fullmatch("[A-Z]{2,4}", modality) else "another"
    known = ", ".join(name for name in accepted if name)
    raise DataError(
        "wrong_modality",
        f"expected an image of modality {known} or none stated, got {shown}. Leave it out.",
        expected=[name for name in accepted if name],
        found=shown,
    )


def _set_defaults(dataset: Dataset) -> None:
    """Set missing elements that decoders need to the standard's defaults, in place; raise if there is no default."""
    missing = [name for name in ("Columns", "BitsAllocated", "PhotometricInterpretation") if name not in dataset]
    if missing:
        raise DataError(
            "missing_element",
            f"the DICOM file lacks {missing[0]}, which describes its pixels. Export it again.",
            name=missing[0],
        )
    defaults: dict[str, Any] = {"SamplesPerPixel": 1, "BitsStored": dataset.BitsAllocated, "PixelRepresentation": 0}
    for name, value in defaults.items():
        if dataset.get(name) is None:
            setattr(dataset, name, value)
    if dataset.get("HighBit") is None:
        dataset.HighBit = dataset.BitsStored - 1


def _check_pixel_format(dataset: Dataset) -> None:
    samples, bits, meaning = int(dataset.SamplesPerPixel), int(dataset.BitsAllocated), _color_space(dataset)
    grey = samples == 1 and meaning in _MONOCHROME and bits in (8, 16, 32)
    if not grey and not (samples == 3 and bits == 8 and (meaning == "RGB" or meaning.startswith("YBR_"))):
        raise DataError(
            "unsupported_pixel_format",
            f"expected a DICOM image in grey or in 8-bit RGB or YBR, got {meaning} with {samples} samples of {bits} "
            "bits a pixel. Export it in grey or RGB.",
            found=meaning,
            samples=samples,
            bits=bits,
        )
    rows, columns = int(dataset.Rows), int(dataset.Columns)
    if rows < 1 or columns < 1 or rows * columns > MAX_PIXELS:
        raise DataError(
            "invalid_image_size",
            f"expected an image of 1 to {MAX_PIXELS // 10**6} million pixels, the DICOM header states "
            f"{rows} x {columns}. Its header is damaged, or it is no image to train on: leave it out.",
            maximum=MAX_PIXELS,
            found=[rows, columns],
        )
    stored, high = int(dataset.BitsStored), int(dataset.HighBit)
    if not 1 <= stored <= bits or high != stored - 1:
        raise DataError(
            "invalid_bit_depth",
            f"expected pixels in the lowest of {bits} bits, the DICOM header states {stored} bits up to bit {high}. "
            "Export it again.",
            maximum=bits,
            found=stored,
            high_bit=high,
        )


def _color_space(dataset: Dataset) -> str:
    meaning = str(dataset.PhotometricInterpretation)
    return meaning if meaning in COLOR_SPACES else "another kind"


def _check_syntax(dataset: Dataset) -> None:
    """Raise if the file's compression is unknown, or no installed package decodes it."""
    from pydicom.pixels import get_decoder

    with decoding():
        syntax = dataset.file_meta.get("TransferSyntaxUID")
        is_known = syntax is None or syntax.is_transfer_syntax
    if syntax is None or (is_known and not syntax.is_compressed):
        return
    with decoding():
        try:
            decoder = get_decoder(syntax)
        except NotImplementedError:  # for example a private syntax, or a video
            decoder = None
    if decoder is None:
        name = str(syntax.name) if syntax.name != str(syntax) else "unknown"
        raise DataError(
            "unsupported_compression",
            f"the DICOM file's transfer syntax ({name}) is one that no decoder reads: it is private, or a video. "
            "Export the file without compression.",
            name=name,
        )
    if syntax == _JPEG_EXTENDED and int(dataset.BitsStored) > 8:
        raise DataError(
            "unsupported_compression",
            f"the DICOM file's compression (JPEG Extended of {dataset.BitsStored} bits) is one that no freely licensed "
            "decoder reads. Export it without compression (dcmdjpeg of DCMTK does it).",
            name="JPEG Extended",
            bits=int(dataset.BitsStored),
        )
    if not decoder.is_available:
        raise DataError(
            "missing_package",
            f"the DICOM file's compression ({syntax.name}) needs another package: {pip_install('dicom')}, or export it "
            "without compression.",
            extra="dicom",
            compression=str(syntax.name),
        )


def _check_length(dataset: Dataset) -> None:
    """Raise if the pixel data are truncated. Set a missing transfer syntax in place."""
    pixels = int(dataset.Rows) * int(dataset.Columns) * int(dataset.get("NumberOfFrames") or 1)
    bits = pixels * int(dataset.SamplesPerPixel) * int(dataset.BitsAllocated)
    whole = bits // 8 * 2 // 3 if dataset.PhotometricInterpretation == "YBR_FULL_422" else bits // 8
    with decoding():
        stored, syntax = len(dataset.PixelData), dataset.file_meta.get("TransferSyntaxUID")
    if syntax is None:
        syntax = _guess_syntax(dataset, stored, whole)
    if not syntax.is_compressed and stored < whole:
        raise DataError(
            "damaged_file",
            f"the image file is damaged or cut short: it holds {stored} of {whole} bytes of pixels. Download or export "
            "it again.",
            expected=whole,
            found=stored,
        )


def _guess_syntax(dataset: Dataset, stored: int, whole: int) -> Any:
    """Set and return the transfer syntax of a file that states none.

    Raise if the pixels do not have the uncompressed length.
    """
    from pydicom.uid import ExplicitVRBigEndian, ExplicitVRLittleEndian, ImplicitVRLittleEndian

    if stored not in (whole, whole + whole % 2):
        raise DataError(
            "missing_transfer_syntax",
            f"the DICOM file states no transfer syntax, and its pixels are compressed or cut short ({stored} bytes, "
            f"expected {whole}). Export it again with its meta header.",
            expected=whole,
            found=stored,
        )
    implicit, little = dataset.original_encoding
    syntax = ImplicitVRLittleEndian if implicit else ExplicitVRLittleEndian if little else ExplicitVRBigEndian
    dataset.file_meta.TransferSyntaxUID = syntax
    return syntax
