"""Open a DICOM file and check what its header says, before any pixel is decoded.

Accepted as found in the wild: files without the preamble or without the meta header, without a transfer syntax (if the
pixels are not compressed), without the number of stored bits; secondary captures. Refused with a reason: what holds no
image, more than one frame, sizes that can't be, a compression that nothing installed decodes, and pixels or headers
that are cut short.

Messages never name a file or repeat what it says of a patient.
"""

from __future__ import annotations

import contextlib
import re
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from medfl.errors import DataError, pip_install

if TYPE_CHECKING:
    from pydicom import Dataset
    from pydicom.uid import UID

MOST_PIXELS = 178_956_970
"""Above this number of pixels a file is refused, as Pillow does; the largest mammograms have about 30 million."""

MAMMOGRAPHY = ("MG", "RG", "CR", "DX", "OT", "SC", "")
"""What mammograms are called in the wild: mammography, radiography of any kind, scanned films and captures, nothing."""

DEFLATED = "1.2.840.10008.1.2.1.99"
"""The transfer syntax of files that are compressed as a whole."""

MOST_INFLATED = 4 * MOST_PIXELS
"""Above this number of bytes such a file is refused."""

_JPEG_EXTENDED = "1.2.840.10008.1.2.4.51"
_MONOCHROME = ("MONOCHROME1", "MONOCHROME2")


def is_dicom(head: bytes) -> bool:
    """Whether a file is DICOM, by its first 132 bytes: the preamble, or a first element as files without it have."""
    if head[128:132] == b"DICM":
        return True
    group, element = int.from_bytes(head[:2], "little"), int.from_bytes(head[2:4], "little")
    known_vr = head[4:6] in (b"UL", b"UI", b"CS", b"OB", b"DA", b"TM", b"SH", b"LO")
    return group in (2, 8) and element <= 0x100 and (known_vr or 0 < int.from_bytes(head[4:8], "little") <= 64)


def cannot_open(error: OSError) -> DataError:
    """What the system says of an image file that can't be opened; the file is not named."""
    return DataError(
        "unreadable_file",
        f"the image file can't be opened: {error.strerror}. Check the file and its rights.",
        reason=error.strerror,
    )


def damaged(error: Exception) -> DataError:
    """What to say of a file that a decoder can't read; its own message may name the file."""
    return DataError(
        "damaged_file",
        f"the image file is damaged or cut short ({type(error).__name__}). Export it again.",
        cause=type(error).__name__,
    )


@contextlib.contextmanager
def decoding() -> Iterator[None]:
    """Whatever a decoder raises means a damaged file."""
    try:
        yield
    except DataError:
        raise
    except RecursionError:
        raise DataError(
            "nested_too_deep",
            "the DICOM file nests sequences too deep to be read safely. Export it again without its sequences.",
        ) from None
    except Exception as error:
        raise damaged(error) from None


def open_dicom(path: Path, *, pixels: bool = True, modalities: Collection[str] | None = None) -> Dataset:
    """Open a DICOM file with one image that can be read.

    Args:
        path: The file.
        pixels: Whether its pixels are read, too (not decoded).
        modalities: What is accepted, for example `MAMMOGRAPHY`; None means any.

    Returns:
        The data set, with a transfer syntax, and with the numbers of stored bits and signs even if the file lacks them.

    Raises:
        DataError: If it is no DICOM file, is damaged, holds no single image, or one that can't be decoded.
    """
    import pydicom

    check_start(path)
    with decoding():
        dataset = pydicom.dcmread(path, stop_before_pixels=not pixels, force=True)
        empty = "Rows" not in dataset or (pixels and "PixelData" not in dataset)
        frames = int(dataset.get("NumberOfFrames") or 1)
        modality = str(dataset.get("Modality") or "")
    _check_modality(modality, modalities)
    if empty:
        raise DataError(
            "missing_pixels", "the DICOM file holds no pixels (a report or a plan, or cut short?). Leave it out."
        )
    if frames != 1:
        raise DataError(
            "several_frames",
            f"the image file holds {frames} frames, expected one. Save the frame to use in its own file.",
            found=frames,
        )
    with decoding():
        _complete(dataset)
        _check_kind(dataset)
    _check_syntax(dataset)
    if pixels:
        _check_length(dataset)
    return dataset


def check_start(path: Path) -> None:
    """Refuse a file that does not begin as DICOM does, or would fill the memory when it is opened.

    Raises:
        DataError: If it is so, or can't be opened.
    """
    try:
        with path.open("rb") as file:
            head = file.read(1024)
            if not is_dicom(head[:132]):
                raise DataError(
                    "unsupported_file",
                    "the file is no DICOM file, or is cut short in its header. Export it again.",
                    expected="DICOM",
                )
            if DEFLATED.encode() in head:
                _check_inflated(file, 132 if head[128:132] == b"DICM" else 0)
    except OSError as error:
        raise cannot_open(error) from None


def _check_inflated(file: BinaryIO, start: int) -> None:
    """Refuse what would fill the memory when it is inflated, which pydicom does with the whole file at once."""
    from pydicom.filereader import read_dataset

    file.seek(start)
    with decoding():
        meta = read_dataset(file, False, True, stop_when=lambda tag, *rest: tag.group != 2)
        syntax = str(meta.get("TransferSyntaxUID"))
    stream, rest, size = zlib.decompressobj(-zlib.MAX_WBITS), file.read() if syntax == DEFLATED else b"", 0
    while rest:
        with decoding():
            size += len(stream.decompress(rest, 1 << 24))
        rest = stream.unconsumed_tail
        if size > MOST_INFLATED:
            raise DataError(
                "excessive_inflation",
                f"the DICOM file grows to more than {MOST_INFLATED // 10**6} MB when it is inflated: it is damaged or "
                "was made to fill the memory. Leave it out, or export it without compression.",
                maximum=MOST_INFLATED,
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


def _complete(dataset: Dataset) -> None:
    """Fill in what decoders need and files may lack, as the standard's defaults have it."""
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


def _check_kind(dataset: Dataset) -> None:
    samples, bits, meaning = int(dataset.SamplesPerPixel), int(dataset.BitsAllocated), _meaning(dataset)
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
    if rows < 1 or columns < 1 or rows * columns > MOST_PIXELS:
        raise DataError(
            "invalid_image_size",
            f"expected an image of 1 to {MOST_PIXELS // 10**6} million pixels, the DICOM header states "
            f"{rows} x {columns}. Its header is damaged, or it is no image to train on: leave it out.",
            maximum=MOST_PIXELS,
            found=[rows, columns],
        )
    if not 1 <= int(dataset.BitsStored) <= bits:
        raise DataError(
            "invalid_bit_depth",
            f"the DICOM header states {dataset.BitsStored} bits stored in {bits}. Export it again.",
            maximum=bits,
            found=int(dataset.BitsStored),
        )


def _meaning(dataset: Dataset) -> str:
    meaning = str(dataset.PhotometricInterpretation)
    return meaning if re.fullmatch(r"[A-Z0-9_ ]{1,16}", meaning) else "another kind"


def _check_syntax(dataset: Dataset) -> None:
    """Refuse a compression that nothing decodes."""
    with decoding():
        syntax = dataset.file_meta.get("TransferSyntaxUID")
        readable = syntax is None or not syntax.is_compressed or _can_decode(syntax)
    if syntax == _JPEG_EXTENDED and int(dataset.BitsStored) > 8:
        raise DataError(
            "unsupported_compression",
            f"the DICOM file's compression (JPEG Extended of {dataset.BitsStored} bits) is one that no freely licensed "
            "decoder reads. Export it without compression (dcmdjpeg of DCMTK does it).",
            name="JPEG Extended",
            bits=int(dataset.BitsStored),
        )
    if not readable:
        raise DataError(
            "missing_package",
            f"the DICOM file's compression ({syntax.name}) needs another package: {pip_install('dicom')}, or export it "
            "without compression.",
            extra="dicom",
            compression=str(syntax.name),
        )


def _can_decode(syntax: UID) -> bool:
    from pydicom.pixels import get_decoder

    try:
        return get_decoder(syntax).is_available
    except NotImplementedError:  # a film, for example
        return False


def _check_length(dataset: Dataset) -> None:
    """Refuse pixels that are cut short; set a transfer syntax that is missing."""
    bits = int(dataset.Rows) * int(dataset.Columns) * int(dataset.SamplesPerPixel) * int(dataset.BitsAllocated)
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
    """The transfer syntax of a file that states none: pixels as they are, if they have the right length."""
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
