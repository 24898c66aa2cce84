"""Test that MONAI's default readers do not warn about a missing codec, and that other warnings stay."""

from __future__ import annotations

import logging
import warnings

import pytest
from monai.transforms import LoadImage
from monai.transforms.io import array

from medfl.data.readers.quiet import NVIMGCODEC, drop_missing_codec


@pytest.fixture(autouse=True)
def readers(monkeypatch: pytest.MonkeyPatch) -> dict[str, type]:
    """MONAI's default readers as they are after its import."""
    from monai.data import NvImgCodecPydicomReader, PydicomReader

    monkeypatch.delenv("MONAI_DICOM_READER", raising=False)
    own = {"pydicomreader": PydicomReader, NVIMGCODEC: NvImgCodecPydicomReader}
    readers = own | {name: reader for name, reader in array.SUPPORTED_READERS.items() if name not in own}
    monkeypatch.setattr(array, "SUPPORTED_READERS", readers)
    monkeypatch.setattr("monai.data.nvimgcodec_pydicom_plugin.is_nvimgcodec_available", lambda: False)
    return readers


def noise(caplog: pytest.LogCaptureFixture, **options: object) -> list[str]:
    """Return the log records and warnings that the construction of a loader causes."""
    caplog.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        LoadImage(**options)
    return [record.getMessage() for record in caplog.records] + [str(warning.message) for warning in caught]


def test_nothing_is_said_of_a_codec_that_no_one_asked_for(
    caplog: pytest.LogCaptureFixture, readers: dict[str, type]
) -> None:
    caplog.set_level(logging.WARNING)
    others = [name for name in readers if name != NVIMGCODEC]
    assert any("nvImageCodec" in text for text in noise(caplog))
    drop_missing_codec()
    drop_missing_codec()
    assert not any("nvImageCodec" in text for text in noise(caplog))
    assert list(readers) == others
    assert any("nvImageCodec" in text for text in noise(caplog, reader="NvImgCodecPydicomReader")), "asked for by name"


def test_the_codec_stays_where_it_is_available_or_preferred(
    readers: dict[str, type], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MONAI_DICOM_READER", NVIMGCODEC)
    drop_missing_codec()
    assert NVIMGCODEC in readers
    monkeypatch.delenv("MONAI_DICOM_READER")
    monkeypatch.setattr("monai.data.nvimgcodec_pydicom_plugin.is_nvimgcodec_available", lambda: True)
    drop_missing_codec()
    assert NVIMGCODEC in readers
