"""Read PGM files, a format of scanned films: grey values of 8 or 16 bits after a text header.

MONAI's ``LoadImage`` opens them with ``reader=PILReader(formats=("PPM",))``, which returns (W, H). Without ``formats``,
Pillow would open any format that it recognises. This module returns (H, W) as stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.data.readers.dicom_header import decoding
from medfl.data.readers.pillow_images import open_pillow_image
from medfl.errors import DataError


def read_pgm(path: Path) -> np.ndarray:
    """Read a PGM file, binary (P5) or plain (P2).

    Values are scaled so that the maximum value in the file's header becomes the maximum of the data type.

    Args:
        path: Path of the file; its name ends in ``.pgm``.

    Returns:
        Array (H, W); uint8, or uint16 if the maximum value in the header is above 255.

    Raises:
        DataError: If the file can't be opened, is no PGM file, is damaged or truncated. The message does not name it.
    """
    with open_pillow_image(path) as image:
        if image.mode not in ("L", "I", "I;16", "I;16B"):
            raise DataError(
                "unsupported_pixel_format",
                f"expected a PGM file in grey, got one of mode {image.mode}. Export it in grey.",
                found=image.mode,
            )
        with decoding():
            return np.asarray(image).astype(np.uint8 if image.mode == "L" else np.uint16)
