"""PGM files, in which scanned films come: grey values of 8 or 16 bits after a head in text, with or without comments.

MONAI's ``LoadImage`` takes them with ``reader=PILReader(formats=("PPM",))``, which gives (W, H) (without the formats it
opens whatever Pillow recognises), or with the reader of `medfl.data.readers.mammogram_reader`. This gives (H, W) as
stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.readers.dicom_header import decoding
from medfl.data.readers.pictures import open_picture
from medfl.errors import DataError


def read_pgm(path: Path) -> np.ndarray:
    """Read a PGM file, binary (P5) or plain (P2).

    Values are scaled such that the file's largest possible value (in its head) becomes that of the type.

    Args:
        path: The file; its name ends in ``.pgm``.

    Returns:
        Shape (H, W); uint8, or uint16 if the file's largest possible value is above 255.

    Raises:
        DataError: If it can't be opened, is no PGM file, or is damaged or cut short. The file is not named.
    """
    with open_picture(path) as image:
        if image.mode not in ("L", "I", "I;16", "I;16B"):
            raise DataError(
                "unsupported_pixel_format",
                f"expected a PGM file in grey, got one of mode {image.mode}. Export it in grey.",
                found=image.mode,
            )
        with decoding():
            return np.asarray(image).astype(np.uint8 if image.mode == "L" else np.uint16)
