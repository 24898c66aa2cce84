"""Reader for MONAI's ``LoadImage`` that opens mammograms as DICOM, PGM and all formats that Pillow reads.

MONAI's own DICOM reader ignores MONOCHROME1 and the display window, and transposes the image; it has no reader for PGM.
This reader returns (H, W) as displayed, with bright tissue at large values, and keeps laterality and view::

    LoadImage(reader=MammogramReader(), image_only=True, ensure_channel_first=True)

``LoadImage`` must receive file paths. It would treat a folder as a DICOM series.
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
from medfl.data.readers.images import IMAGE_SUFFIXES, file_kind
from medfl.data.readers.pillow_images import read_pillow_image
from medfl.data.readers.quiet import quiet_decoders
from medfl.errors import DataError

PixelsAndMetadata = tuple[np.ndarray, dict[str, str]]
"""Grey values (H, W), and the file's metadata ``laterality`` and ``view``."""


class MammogramReader(ImageReader):
    """MONAI image reader for mammograms, one per path.

    Values are the modality values (slope and intercept applied), or display window values if `voi` is True. If large
    values are dark, each value v becomes ``smallest + largest - v``.

    Args:
        voi: Whether to apply the display window or lookup table, if a DICOM file has one.
    """

    def __init__(self, voi: bool = False) -> None:
        super().__init__()
        self.voi = voi

    def verify_suffix(self, filename: Sequence[PathLike] | PathLike) -> bool:
        """Return True if all names have an image suffix or none; DICOM files often have none."""
        names = [filename] if isinstance(filename, (str, Path)) else list(filename)  # type: ignore[arg-type]
        return all(not Path(name).suffix or str(name).lower().endswith(IMAGE_SUFFIXES) for name in names)

    def read(self, data: Sequence[PathLike] | PathLike, **kwargs: Any) -> PixelsAndMetadata | list[PixelsAndMetadata]:
        """Read one file, or a list of files.

        Raises:
            DataError: If a path is a folder, a file is damaged, or an image is not grey.
        """
        if isinstance(data, (str, Path)):
            return self._read(Path(data))
        return [self._read(Path(str(path))) for path in data]  # type: ignore[union-attr]

    def get_data(self, img: PixelsAndMetadata | list[PixelsAndMetadata]) -> tuple[np.ndarray, dict[str, Any]]:
        """Return the values and the metadata of one image, or stacked values for a list.

        Args:
            img: Result of `read`.

        Returns:
            Values (H, W) or (n, H, W), float32, and metadata with ``laterality`` and ``view`` of the first image.
        """
        images = img if isinstance(img, list) else [img]
        values = [pixels for pixels, _ in images]
        channels = 0 if isinstance(img, list) else float("nan")
        meta = images[0][1] | {
            "affine": np.eye(4),
            "spatial_shape": np.asarray(values[0].shape),
            "original_channel_dim": channels,
        }
        return (np.stack(values) if isinstance(img, list) else values[0]), meta

    def _read(self, path: Path) -> PixelsAndMetadata:
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
        if file_kind(path) != "dicom":
            return read_pillow_image(path).astype(np.float32), False, {"laterality": "", "view": ""}
        image = read_dicom(path, voi=self.voi, modalities=MAMMOGRAPHY)
        values = image.values() if image.pixels.ndim == 2 else image.pixels
        return values, image.inverted, {"laterality": image.laterality, "view": image.view}
