"""PGM files, in which scanned films come: grey values of 8 or 16 bits after a head in text, with or without comments.

MONAI's ``LoadImage`` takes them with ``reader="PILReader"``, which gives (W, H), or with the reader of
`medfl.data.mammogram_reader`. This gives (H, W) as stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from medfl.errors import DataError


def read_pgm(path: Path) -> np.ndarray:
    """Read a PGM file, binary (P5) or plain (P2).

    Values are scaled such that the file's largest possible value (in its head) becomes that of the type.

    Args:
        path: The file.

    Returns:
        Shape (H, W); uint8, or uint16 if the file's largest possible value is above 255.

    Raises:
        DataError: If it can't be opened, is no PGM file, or is damaged or cut short. The file is not named.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path, formats=("PPM",)) as image:
            if image.mode not in ("L", "I", "I;16", "I;16B"):
                raise DataError(f"expected a PGM file in grey, got one of mode {image.mode}. Export it in grey.")
            deep = image.mode != "L"
            return np.asarray(image).astype(np.uint16 if deep else np.uint8)
    except DataError:
        raise
    except Image.DecompressionBombError:
        raise DataError("the PGM file's head claims more than 178 million pixels. Download it again.") from None
    except UnidentifiedImageError:
        raise DataError("expected a PGM file (P5 or P2), got something else. Download it again.") from None
    except FileNotFoundError:
        raise DataError("the PGM file is not there") from None
    except Exception as error:  # what a damaged head or too few pixels raise differs from case to case
        raise DataError(f"the PGM file is damaged or cut short ({type(error).__name__}). Download it again.") from None
