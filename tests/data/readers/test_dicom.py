"""Test reading of one DICOM image: values by closed forms, for many encodings and compressions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pydicom
import pytest
from dicom_maker import COMPRESSED, make_dicom, without_preamble
from pydicom import Dataset
from pydicom.data import get_testdata_file
from pydicom.pixels import apply_modality_lut, apply_voi_lut
from pydicom.uid import (
    DeflatedExplicitVRLittleEndian,
    ExplicitVRBigEndian,
    ExplicitVRLittleEndian,
    ImplicitVRLittleEndian,
)
from refusals import refused

from medfl.data.readers.dicom import read_dicom
from medfl.data.readers.dicom_header import MAMMOGRAPHY, is_dicom
from medfl.data.readers.dicom_identity import check_identity
from medfl.data.readers.dicom_intent import INTENT_NOT_STATED, INTENTS
from medfl.data.readers.images import inspect_image, read_image
from medfl.data.readers.mammogram_image import read_mammogram
from medfl.errors import DataError

TWELVE = np.linspace(0, 4095, 48 * 40).astype(np.uint16).reshape(48, 40)
SIGNED = TWELVE.astype(np.int16) - 1000
PLAIN = (ExplicitVRLittleEndian, ImplicitVRLittleEndian, ExplicitVRBigEndian, DeflatedExplicitVRLittleEndian)


@pytest.mark.parametrize("syntax", [*PLAIN, *COMPRESSED])
@pytest.mark.parametrize("pixels", [TWELVE, (TWELVE >> 4).astype(np.uint8), SIGNED], ids=["12", "8", "signed"])
def test_every_transfer_syntax_gives_the_same_pixels(tmp_path, syntax, pixels):
    image = read_dicom(make_dicom(tmp_path / "a", pixels, syntax=syntax))
    np.testing.assert_array_equal(image.pixels, pixels)
    assert image.pixels.dtype.newbyteorder("=") == pixels.dtype
    assert image.extent == (pixels.min(), pixels.max())


def test_slope_and_intercept_make_values_of_pixels(tmp_path):
    image = read_dicom(make_dicom(tmp_path / "a", TWELVE, RescaleSlope="2.5", RescaleIntercept="-1024"))
    assert (image.slope, image.intercept) == (2.5, -1024)
    np.testing.assert_allclose(image.values(), TWELVE * 2.5 - 1024)
    plain = read_dicom(make_dicom(tmp_path / "b", TWELVE))
    np.testing.assert_array_equal(plain.values(), TWELVE)
    assert not plain.inverted
    assert read_dicom(make_dicom(tmp_path / "c", TWELVE, meaning="MONOCHROME1")).inverted


def test_a_window_for_display_is_applied_on_request_only(tmp_path):
    path = make_dicom(tmp_path / "a", TWELVE, stored=12, WindowCenter="2048", WindowWidth="1000")
    assert read_dicom(path).extent == (0, 4095)
    windowed = read_dicom(path, voi=True)
    x = TWELVE.astype(float)
    expected = np.clip(((x - 2047.5) / 999 + 0.5) * 4095, 0, 4095)  # PS3.3 C.11.2.1.2.1
    np.testing.assert_allclose(windowed.pixels, expected, rtol=1e-5, atol=1e-2)
    without = read_dicom(make_dicom(tmp_path / "b", TWELVE), voi=True)
    np.testing.assert_array_equal(without.pixels, TWELVE)


def test_lookup_tables_are_applied():
    path = Path(get_testdata_file("mlut_18.dcm", download=False))
    dataset = pydicom.dcmread(path)
    image = read_dicom(path)
    np.testing.assert_array_equal(image.pixels, apply_modality_lut(dataset.pixel_array, dataset))
    assert (image.slope, image.intercept) == (1, 0)
    path = Path(get_testdata_file("vlut_04.dcm", download=False))
    dataset = pydicom.dcmread(path)
    expected = apply_voi_lut(apply_modality_lut(dataset.pixel_array, dataset), dataset)
    np.testing.assert_array_equal(read_dicom(path, voi=True).pixels, expected)


def test_bits_above_those_in_use_do_not_count(tmp_path):
    overlay = TWELVE | np.uint16(0x8000)
    np.testing.assert_array_equal(read_dicom(make_dicom(tmp_path / "a", overlay, stored=12)).pixels, TWELVE)
    signless = ((TWELVE.astype(np.int16) - 2048) & 0x0FFF).astype(np.int16)
    image = read_dicom(make_dicom(tmp_path / "b", signless, stored=12))
    np.testing.assert_array_equal(image.pixels, TWELVE.astype(np.int16) - 2048)
    assert image.extent == (-2048, 2047)


def test_files_without_preamble_meta_header_or_transfer_syntax(tmp_path):
    for name, change in (
        ("preamble", lambda path: without_preamble(path)),
        ("meta", lambda path: without_preamble(path, meta=False)),
    ):
        for syntax in (ExplicitVRLittleEndian, ImplicitVRLittleEndian):
            path = change(make_dicom(tmp_path / f"{name}-{syntax.is_implicit_VR}", TWELVE, syntax=syntax))
            assert is_dicom(path.read_bytes()[:132])
            np.testing.assert_array_equal(read_dicom(path).pixels, TWELVE)
            unit = read_image(path, TWELVE.shape, 1)
            np.testing.assert_allclose(unit, TWELVE / 4095, atol=1e-6)
    assert not is_dicom(b"\x89PNG\r\n\x1a\n" + bytes(124))
    assert not is_dicom(b"P5\n# a comment\n1024 1024\n255\n" + bytes(103))


def test_a_file_may_leave_out_what_has_a_default(tmp_path):
    path = make_dicom(
        tmp_path / "a", TWELVE, without=("PixelRepresentation", "BitsStored", "HighBit", "SamplesPerPixel")
    )
    np.testing.assert_array_equal(read_dicom(path).pixels, TWELVE)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ({"ImageLaterality": "R", "ViewPosition": "MLO"}, ("right", "MLO", "")),
        ({"Laterality": "L", "ViewPosition": "CC"}, ("left", "CC", "")),
        ({"PatientOrientation": ["P", "FL"], "ViewPosition": "SECRET SALLY"}, ("", "", "P")),
        ({"PatientOrientation": ["A", "F"], "ImageLaterality": "B"}, ("", "", "A")),
        ({}, ("", "", "")),
    ],
)
def test_side_and_view_are_kept(tmp_path, tags, expected):
    image = read_dicom(make_dicom(tmp_path / "a", TWELVE, **tags))
    assert (image.laterality, image.view, image.toward_right) == expected


def test_the_view_as_a_code(tmp_path):
    code = Dataset()
    code.CodeValue, code.CodingSchemeDesignator, code.CodeMeaning = "R-10226", "SRT", "medio-lateral oblique"
    assert read_dicom(make_dicom(tmp_path / "a", TWELVE, ViewCodeSequence=[code])).view == "MLO"


@pytest.mark.parametrize("modality", ["MG", "RG", "CR", "DX", "OT", None])
def test_mammograms_under_all_the_names_that_they_have(tmp_path, modality):
    tags = {"Modality": modality} if modality else {}
    path = make_dicom(tmp_path / "a", TWELVE, SOPClassUID="1.2.840.10008.5.1.4.1.1.7", **tags)
    np.testing.assert_array_equal(read_dicom(path, modalities=MAMMOGRAPHY).pixels, TWELVE)


def test_burned_in_secondary_captures_are_flagged(tmp_path):
    assert read_dicom(make_dicom(tmp_path / "a", TWELVE, BurnedInAnnotation="YES")).burned_in
    assert not read_dicom(make_dicom(tmp_path / "b", TWELVE, BurnedInAnnotation="NO")).burned_in
    assert not read_dicom(make_dicom(tmp_path / "c", TWELVE)).burned_in


def patient(**tags: object) -> Dataset:
    dataset = Dataset()
    for name, value in tags.items():
        setattr(dataset, name, value)
    return dataset


def test_elements_that_identify_are_named_wherever_they_are():
    inner = patient(RequestingPhysician="Secret^Tom")
    middle = patient(RequestAttributesSequence=[inner])
    outer = patient(PatientName="Secret^Sally", PatientBirthDate="19500101", RequestAttributesSequence=[middle], Rows=3)
    assert check_identity(outer) == ["PatientBirthDate", "PatientName", "RequestingPhysician"]
    assert check_identity(patient(PatientName="", PatientID="ANONYMOUS", StudyDate=None)) == []


def test_made_up_names_numbers_and_dates_pass():
    case = {"PatientName": "P_00001", "PatientID": "P_00001", "StudyDate": "20160720"}
    assert check_identity(patient(**case)) == ["PatientID", "PatientName", "StudyDate"]
    assert check_identity(patient(**case), ["P_00001"]) == []
    assert check_identity(patient(**case, PatientIdentityRemoved="YES")) == []
    assert check_identity(patient(**case, PatientBirthDate="19500101"), ["P_00001"]) == ["PatientBirthDate"]
    assert check_identity(patient(**case | {"PatientName": "Secret^Sally"}), ["P_00001"]) == [
        "PatientName",
        "StudyDate",
    ]


@pytest.mark.parametrize(
    "name",
    [
        "JPEG-LL.dcm",
        "JPEG2000.dcm",
        "JPGLosslessP14SV1_1s_1f_8b.dcm",
        "MR_small_jp2klossless.dcm",
        "MR_small_jpeg_ls_lossless.dcm",
        "MR_small_RLE.dcm",
        "MR_small_bigendian.dcm",
        "image_dfl.dcm",
        "CT_small.dcm",
        "RG3_UNCR.dcm",
        "MR2_J2KI.dcm",
    ],
)
def test_real_files_of_pydicom(name):
    path = Path(get_testdata_file(name, download=False))
    dataset = pydicom.dcmread(path)
    image = read_dicom(path)
    np.testing.assert_array_equal(image.pixels, dataset.pixel_array)
    expected = apply_modality_lut(dataset.pixel_array, dataset)
    np.testing.assert_allclose(image.values(), expected, rtol=1e-6)


@pytest.mark.parametrize("name", ["MR2", "US1", "RG3"])
def test_real_files_that_lost_nothing_when_they_were_compressed(name):
    plain, packed = (
        read_dicom(Path(get_testdata_file(f"{name}_{kind}.dcm", download=False))).pixels for kind in ("UNCR", "J2KR")
    )
    np.testing.assert_array_equal(packed, plain)


TISSUE = np.linspace(1000, 1590, 48 * 40).astype(np.int64).reshape(48, 40)
FRAME = np.ones((48, 40), bool)
FRAME[8:-8, 10:-10] = False
BRIGHT = {"PixelPaddingValue": 65535}
BELOW = {"PixelPaddingValue": -2000}
PADDED = {
    "no padding is there": (TISSUE, np.uint16, {"PixelPaddingValue": 7}, None),
    "bright": (np.where(FRAME, 65535, TISSUE), np.uint16, BRIGHT, FRAME),
    "dark": (np.where(FRAME, 0, TISSUE), np.uint16, {"PixelPaddingValue": 0}, FRAME),
    "of 8 bits": (np.where(FRAME, 255, TISSUE // 8), np.uint8, {"PixelPaddingValue": 255}, FRAME),
    "signed": (np.where(FRAME, -2000, TISSUE), np.int16, BELOW, FRAME),
    "a range": (
        np.where(FRAME, np.arange(40) - 2000, TISSUE),
        np.int16,
        BELOW | {"PixelPaddingRangeLimit": -1961},
        FRAME,
    ),
    "a range from above": (
        np.where(FRAME, 65535 - np.arange(40), TISSUE),
        np.uint16,
        BRIGHT | {"PixelPaddingRangeLimit": 65496},
        FRAME,
    ),
    "outside of the bits in use": (np.where(FRAME, 63536, TISSUE), np.uint16, {"PixelPaddingValue": 63536}, FRAME),
}


@pytest.mark.parametrize("meaning", ["MONOCHROME2", "MONOCHROME1"])
@pytest.mark.parametrize("slope", [1, -3])
@pytest.mark.parametrize("case", PADDED)
def test_padding_is_background_and_counts_for_no_range(tmp_path, case, slope, meaning):
    """Tissue of 1000 to 1590 would get less than 1 % of the grey values if padding of 65535 counted for the range."""
    pixels, dtype, tags, frame = PADDED[case]
    pixels, tags = pixels.astype(dtype), tags | {"RescaleSlope": slope, "RescaleIntercept": 5}
    stored = 12 if "bits in use" in case else pixels.dtype.itemsize * 8
    frame = np.zeros_like(FRAME) if frame is None else frame
    tissue = pixels[~frame].astype(float)
    low, high = tissue.min(), tissue.max()
    dark = high if (meaning == "MONOCHROME1") != (slope < 0) else low
    for syntax in PLAIN[:3]:
        path = make_dicom(tmp_path / "a.dcm", pixels, syntax=syntax, meaning=meaning, stored=stored, **tags)
        image = read_dicom(path)
        assert image.extent == (low, high)
        np.testing.assert_array_equal(image.pixels, np.where(frame, dark, pixels))
        assert image.pixels.dtype == dtype
    expected = np.where(frame, 0, np.abs(pixels - dark) / (high - low))
    np.testing.assert_allclose(read_image(path, pixels.shape, 1), expected, atol=1e-5)
    np.testing.assert_allclose(read_mammogram(path, pixels.shape, 1) / 65535, expected, atol=2e-5)


def test_padding_counts_for_no_window_and_no_other_file(tmp_path):
    window = {"WindowCenter": "1300", "WindowWidth": "401"}
    plain = make_dicom(tmp_path / "a", TISSUE.astype(np.uint16), **window)
    padded = make_dicom(tmp_path / "b", np.where(FRAME, 65535, TISSUE).astype(np.uint16), **window, **BRIGHT)
    windowed = read_dicom(plain, voi=True).pixels
    expected = np.where(FRAME, windowed[~FRAME].min(), windowed)
    np.testing.assert_array_equal(read_dicom(padded, voi=True).pixels, expected)
    limit = make_dicom(tmp_path / "c", TISSUE.astype(np.uint16), PixelPaddingRangeLimit=1300)
    np.testing.assert_array_equal(read_dicom(limit).pixels, TISSUE, "a limit of no value says nothing")
    signed = make_dicom(tmp_path / "f", np.where(FRAME, -2000, TISSUE).astype(np.int16), **BELOW)
    head, value = b"\x28\x00\x20\x01", (-2000).to_bytes(2, "little", signed=True)
    assert head + b"SS\x02\x00" + value in signed.read_bytes()
    signed.write_bytes(signed.read_bytes().replace(head + b"SS", head + b"US"))  # as some write it: 63536
    assert read_dicom(signed).extent == (TISSUE[~FRAME].min(), TISSUE[~FRAME].max())
    colour = np.full((4, 6, 3), 77, np.uint8)
    read = read_dicom(make_dicom(tmp_path / "d", colour, meaning="RGB", PixelPaddingValue=77))
    np.testing.assert_array_equal(read.pixels, colour)
    nothing = make_dicom(tmp_path / "e", np.full((4, 6), 9, np.uint16), PixelPaddingValue=9)
    with refused(DataError, "only_padding"):
        read_dicom(nothing)


def test_padding_of_a_real_file_of_pydicom():
    path = Path(get_testdata_file("693_UNCR.dcm", download=False))
    pixels = pydicom.dcmread(path).pixel_array
    padded = pixels == -2000
    assert 0.2 < padded.mean() < 0.22
    low, high = pixels[~padded].min(), pixels[~padded].max()
    image = read_dicom(path)
    assert image.extent == (low, high)
    assert low > -2000
    unit = read_image(path, pixels.shape, 1)
    np.testing.assert_allclose(unit, np.where(padded, 0, (pixels - low) / (high - low)), atol=1e-6)


@pytest.mark.parametrize("stated", ["FOR PROCESSING", "FOR PRESENTATION", "SECRET", None])
def test_what_the_pixels_are_for(tmp_path, stated):
    tags = {"PresentationIntentType": stated} if stated else {}
    path = make_dicom(tmp_path / "a", TWELVE, **tags)
    expected = stated if stated in INTENTS else INTENT_NOT_STATED
    assert (read_dicom(path).intent, inspect_image(path).intent) == (expected, expected)
    real = Path(get_testdata_file("JPGLosslessP14SV1_1s_1f_8b.dcm", download=False))
    assert read_dicom(real).intent == "FOR PRESENTATION"
