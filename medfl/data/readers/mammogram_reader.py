"""A reader for MONAI's ``LoadImage``: mammograms as DICOM, PGM, and what else Pillow reads.

MONAI's own reader of DICOM ignores MONOCHROME1 and the window for display, and exchanges rows and columns; for PGM it
has none. This one gives (H, W) as an image is seen, bright tissue large, and keeps laterality and view::

    LoadImage(reader=MammogramReader(), image_only=True, ensure_channel_first=True)

``LoadImage`` must get paths of files, never a folder, which it would take for a series.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from monai.config import PathLike
from monai.data.image_reader import ImageReader

from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.dicom_header import MAMMOGRAPHY
from medfl.data.readers.images import IMAGE_SUFFIXES, kind_of
from medfl.data.readers.pictures import read_picture
from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError

Image = tuple[np.ndarray, dict[str, str]]
"""Grey values (H, W), and what the file says of them."""


class MammogramReader(ImageReader):
    """Reads one mammogram for a path.

    Values are those of the modality (slope and intercept applied), or those of the window if `voi`. Where large values
    are dark, a value becomes ``smallest + largest - value``.

    Args:
        voi: Whether the window or lookup table for display is applied, if a DICOM file has one.
    """

    def __init__(self, voi: bool = False) -> None:
        super().__init__()
        self.voi = voi

    def verify_suffix(self, filename: Sequence[PathLike] | PathLike) -> bool:
        """Whether names look like images; DICOM files often have no ending."""
        names = [filename] if isinstance(filename, (str, Path)) else list(filename)  # type: ignore[arg-type]
        return all(not Path(name).suffix or str(name).lower().endswith(IMAGE_SUFFIXES) for name in names)

    def read(self, data: Sequence[PathLike] | PathLike, **kwargs: Any) -> Image | list[Image]:
        """Read one file, or a list of them.

        Raises:
            DataError: If a file is a folder, is damaged, or is no grey image.
        """
        if isinstance(data, (str, Path)):
            return self._read(Path(data))
        return [self._read(Path(str(path))) for path in data]  # type: ignore[union-attr]

    def get_data(self, img: Image | list[Image]) -> tuple[np.ndarray, dict[str, Any]]:
        """Values, float32, (H, W), or stacked to (n, H, W) for a list; with ``laterality`` and ``view``."""
        images = img if isinstance(img, list) else [img]
        values = [pixels for pixels, _ in images]
        channels = 0 if isinstance(img, list) else float("nan")
        meta = images[0][1] | {
            "affine": np.eye(4),
            "spatial_shape": np.asarray(values[0].shape),
            "original_channel_dim": channels,
        }
        return (np.stack(values) if isinstance(img, list) else values[0]), meta

    def _read(self, path: Path) -> Image:
        if path.is_dir():
            raise DataError(
                "not_a_file", "expected the path of an image file, got a folder. Give one file for each image."
            )
        with quiet_decoders():
            values, inverted, about = self._values(path)
        if values.ndim != 2:
            raise DataError("colour_image", "expected a mammogram in grey, got colours. Leave it out.")
        return (values.min() + values.max() - values if inverted else values), about

    def _values(self, path: Path) -> tuple[np.ndarray, bool, dict[str, str]]:
        if kind_of(path) != "dicom":
            return read_picture(path).astype(np.float32), False, {"laterality": "", "view": ""}
        image = read_dicom(path, voi=self.voi, modalities=MAMMOGRAPHY)
        values = image.values() if image.pixels.ndim == 2 else image.pixels
        return values, image.inverted, {"laterality": image.laterality, "view": image.view}
