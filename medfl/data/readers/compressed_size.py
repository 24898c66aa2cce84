"""Read the size that compressed pixels of a DICOM file state themselves, before memory is allocated for it.

Decoders believe the compressed pixels, not the DICOM header, so that a small file could fill the memory.

Source: ITU-T T.81 and T.87 (JPEG, JPEG-LS: frame header), T.800 (JPEG 2000: image and tile size).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from medfl.errors import DataError

if TYPE_CHECKING:
    from pydicom import Dataset

_JPEG_START, _J2K_START = b"\xff\xd8", b"\xff\x4f\xff\x51"

_FRAME_HEADERS = (*range(0xC0, 0xC4), *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0), 0xF7)
"""Second bytes of the markers before which a JPEG or JPEG-LS states its size."""


def check_compressed_size(dataset: Dataset, frame: int) -> None:
    """Raise if the compressed pixels of a frame state another size or number of samples than the DICOM header.

    Args:
        dataset: Opened file with encapsulated pixels.
        frame: Number of the frame, from 0.

    Raises:
        DataError: If the sizes differ. Other errors mean that the file is damaged.
    """
    from pydicom.encaps import get_frame

    frames = int(dataset.get("NumberOfFrames") or 1)
    stated = compressed_size(get_frame(dataset.PixelData, frame, number_of_frames=frames))
    expected = (int(dataset.Rows), int(dataset.Columns), int(dataset.SamplesPerPixel))
    if stated is not None and stated != expected:
        raise DataError(
            "wrong_shape",
            f"expected {' x '.join(map(str, expected))} samples, as the DICOM header states, its compressed pixels "
            f"state {' x '.join(map(str, stated))}. Export it again.",
            expected=list(expected),
            found=list(stated),
        )


def compressed_size(content: bytes) -> tuple[int, int, int] | None:
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
