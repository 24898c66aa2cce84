"""Decoders that keep quiet: their warnings may repeat what a patient's file says."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator

_LOGGERS = ("pydicom", "nibabel.global")


@contextlib.contextmanager
def quiet_decoders() -> Iterator[None]:
    """Nothing that pydicom, nibabel or Pillow warns of is shown in this block; enter it before threads begin."""
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
