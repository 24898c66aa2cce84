"""Silence image decoders, because their warnings may repeat patient data from a file."""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Iterator

_LOGGERS = ("pydicom", "nibabel.global", "PIL")


@contextlib.contextmanager
def quiet_decoders() -> Iterator[None]:
    """Suppress all warnings of pydicom, nibabel and Pillow in this block. Enter it before threads start."""
    loggers = [logging.getLogger(name) for name in _LOGGERS]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        for module in ("pydicom", "nibabel", "PIL"):
            warnings.filterwarnings("ignore", module=module)
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)


NVIMGCODEC = "nvimgcodecpydicomreader"
"""Name of MONAI's default reader that decodes DICOM on a GPU."""


def drop_missing_codec() -> None:
    """Remove MONAI's nvImageCodec reader from MONAI's default readers, in place, if that codec is not available.

    MONAI's ``LoadImage`` constructs all default readers, and this one then emits a warning although it reads no file. A
    transform that names the reader still gets it with its warning, and so does a user who sets ``MONAI_DICOM_READER``.
    Processes that are forked later inherit the change.
    """
    from monai.transforms.io.array import SUPPORTED_READERS

    if NVIMGCODEC not in SUPPORTED_READERS or os.environ.get("MONAI_DICOM_READER"):
        return
    from monai.data.nvimgcodec_pydicom_plugin import is_nvimgcodec_available

    if not is_nvimgcodec_available():
        del SUPPORTED_READERS[NVIMGCODEC]
