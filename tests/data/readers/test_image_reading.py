"""Test the scales of grey values: windows in Hounsfield units, percentiles, and standardised uptake values of PET."""

from __future__ import annotations

import json

import numpy as np
import pytest
from image_makers import dicom, nifti, picture
from pydicom import Dataset, dcmread
from pydicom.sequence import Sequence
from refusals import refused
from series_maker import hounsfield, write_series

from medfl.data.readers.dicom_series import SeriesFiles
from medfl.data.readers.image_reading import (
    DEFAULT_READING,
    WINDOWS,
    ImageReading,
    make_image_reading,
    parse_image_reading,
)
from medfl.data.readers.images import inspect_image, read_image
from medfl.errors import DataError, SettingsError

HU = hounsfield()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"window": "brain"}, ("window", 0, 80, True)),
        ({"window": "40,80"}, ("window", 0, 80, False)),
        ({"window": "-600 1500"}, ("window", -1350, 150, False)),
        ({"scale": "percentiles"}, ("percentiles", 0.5, 99.5, False)),
        ({"scale": "suv"}, ("suv", 0, 20, False)),
        ({"scale": "suv", "window": "5,10"}, ("suv", 0, 10, False)),
        ({}, ("range", 0, 1, False)),
    ],
)
def test_options_give_a_rule_that_survives_a_file(options, expected):
    reading = make_image_reading(**options, plane="axial", modality="ct", description="T1.*MPRAGE")
    assert (reading.scale, reading.low, reading.high, reading.hounsfield) == expected
    assert parse_image_reading(json.loads(json.dumps(reading.to_json()))) == reading
    assert reading.series.modality == "CT"


def test_the_default_rule_leaves_no_entry():
    assert make_image_reading() == parse_image_reading(None) == DEFAULT_READING
    assert DEFAULT_READING.entries() == {}
    assert make_image_reading(window="lung").entries()["image_reading"]["low"] == -1350
    assert all(width > 0 for _, width in WINDOWS.values())


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"window": "lungs"}, "invalid_value"),
        ({"window": "1,2,3"}, "invalid_value"),
        ({"window": "40,0"}, "reversed_range"),
        ({"window": "40,-80"}, "reversed_range"),
        ({"window": "nan,80"}, "invalid_value"),
        ({"window": "lung", "scale": "percentiles"}, "conflicting_settings"),
        ({"window": "lung", "scale": "suv"}, "conflicting_settings"),
        ({"scale": "sigma"}, "unknown_choice"),
        ({"plane": "oblique"}, "invalid_value"),
        ({"description": "("}, "invalid_value"),
    ],
)
def test_impossible_options_are_refused(options, code):
    with refused(SettingsError, code):
        make_image_reading(**options)
    with refused(SettingsError, "invalid_value"):
        parse_image_reading({"scales": "window"})


def test_percentiles_resist_outliers():
    values = np.arange(2001, dtype=np.float32)
    unit = make_image_reading(scale="percentiles").unit_values(values)
    np.testing.assert_allclose(unit, np.clip((values - 10) / 1980, 0, 1), atol=1e-6)
    values[-1] = 1e9
    np.testing.assert_allclose(
        make_image_reading(scale="percentiles").unit_values(values)[:1980], unit[:1980], atol=1e-5
    )
    assert not make_image_reading(scale="percentiles").unit_values(np.full(9, 7.0)).any()
    with refused(DataError, "equal_percentiles"):
        make_image_reading(scale="percentiles").unit_values(np.eye(1, 1000, dtype=np.float32))
    with refused(DataError, "not_finite"):
        make_image_reading(window="0,1").unit_values(np.array([0.0, np.nan]))


def test_a_window_of_a_volume_file_is_in_its_own_unit(tmp_path):
    path = nifti(tmp_path / "a.nii.gz", HU.astype(np.float32))
    unit = read_image(path, HU.shape, 1, make_image_reading(window="bone"))
    np.testing.assert_allclose(unit, np.clip((HU + 500) / 1800, 0, 1), atol=1e-6)


def test_scales_need_values_with_a_unit(tmp_path):
    lung, suv = make_image_reading(window="lung"), make_image_reading(scale="suv")
    percentiles = make_image_reading(scale="percentiles")
    eight = picture(tmp_path / "eight.png", np.zeros((4, 4), np.uint8))
    sixteen = picture(tmp_path / "sixteen.png", np.arange(2001, dtype=np.uint16).reshape(3, 667))
    volume = nifti(tmp_path / "a.nii", HU.astype(np.float32))
    colour = dicom(tmp_path / "colour.dcm", np.zeros((4, 6, 3), np.uint8), "RGB", 8)
    mr = dicom(tmp_path / "mr.dcm", HU[0].astype(np.uint16), Modality="MR")
    for path, size, channels, reading, code in (
        (eight, (4, 4), 1, lung, "values_without_unit"),
        (eight, (4, 4), 1, percentiles, "values_without_unit"),
        (sixteen, (3, 667), 1, lung, "values_without_unit"),
        (colour, (4, 6), 3, lung, "values_without_unit"),
        (mr, (16, 16), 1, lung, "wrong_modality"),
        (mr, (16, 16), 1, suv, "wrong_modality"),
        (volume, HU.shape, 1, suv, "wrong_modality"),
    ):
        with refused(DataError, code):
            inspect_image(path, reading=reading)
        with refused(DataError, code):
            read_image(path, size, channels, reading)
    unit = read_image(sixteen, (3, 667), 1, percentiles)
    np.testing.assert_allclose(unit.ravel(), np.clip((np.arange(2001) - 10) / 1980, 0, 1), atol=1e-6)


# ---- SUV


def pet_tags(**changes):
    """Elements of a PET: 70 kg, 370 MBq of F-18, injected an hour before the scan."""
    drug = Dataset()
    values = {"RadionuclideTotalDose": 370e6, "RadionuclideHalfLife": 6586.2, "RadiopharmaceuticalStartTime": "090000"}
    for name, value in (values | changes.pop("drug", {})).items():
        if value is not None:
            setattr(drug, name, value)
    tags = {
        "Modality": "PT",
        "Units": "BQML",
        "DecayCorrection": "START",
        "CorrectedImage": ["ATTN", "DECY", "SCAT"],
        "PatientWeight": 70,
        "SeriesDate": "20200102",
        "SeriesTime": "100000.5",
        "AcquisitionDate": "20200102",
        "AcquisitionTime": lambda number: f"10{number:02}01",
        "RescaleIntercept": 0,
        "RadiopharmaceuticalInformationSequence": Sequence([drug]),
    }
    return tags | changes


def pet(folder, values, **changes):
    return SeriesFiles(tuple(write_series(folder, values - 1024, **pet_tags(**changes)).iterdir()))


CONCENTRATION = np.arange(512).reshape(8, 8, 8).astype(np.int16) * 20
DECAY = 2 ** (-3600.5 / 6586.2)


@pytest.mark.parametrize(
    ("changes", "factor"),
    [
        ({}, 70e3 / (370e6 * DECAY)),
        ({"PatientWeight": 35}, 35e3 / (370e6 * DECAY)),
        ({"DecayCorrection": "ADMIN"}, 70e3 / 370e6),
        (
            {"drug": {"RadiopharmaceuticalStartTime": "230000"}},
            70e3 / (370e6 * 2 ** (-39600.5 / 6586.2)),
        ),  # the day before
        ({"drug": {"RadiopharmaceuticalStartDateTime": "20200102093000.5"}}, 70e3 / (370e6 * 2 ** (-1800 / 6586.2))),
        (
            {
                "drug": {"RadiopharmaceuticalStartDateTime": "20200102093000.5+0100"},
                "TimezoneOffsetFromUTC": "+0100",
            },
            70e3 / (370e6 * 2 ** (-1800 / 6586.2)),
        ),
        ({"Units": "GML"}, 1.0),
    ],
)
def test_suv_follows_from_weight_dose_times_and_half_life(tmp_path, changes, factor):
    source = pet(tmp_path / "pet", CONCENTRATION, **changes)
    unit = read_image(source, (8, 8, 8), 1, make_image_reading(scale="suv"))
    expected = np.clip(CONCENTRATION * factor / 20, 0, 1).transpose(2, 1, 0)[::-1, ::-1]
    np.testing.assert_allclose(unit, expected, rtol=1e-5)
    assert inspect_image(source, reading=make_image_reading(scale="suv")).dims == 3


def add_private(source, group, creator, elements):
    """Add private elements to all slices: maps element numbers to representation and value."""
    for path in source.paths:
        dataset = dcmread(path)
        block = dataset.private_block(group, creator, create=True)
        for element, (representation, value) in elements.items():
            block.add_new(element, representation, value)
        dataset.save_as(path)
    return source


PHILIPS, GE = (0x7053, "Philips PET Private Group"), (0x0009, "GEMS_PETD_01")
NO_DOSE = {"drug": {"RadionuclideTotalDose": None}}
BQML_FACTOR = 70e3 / (370e6 * DECAY)
GE_DOSE = {
    0x38: ("FL", 400.0),
    0x39: ("DT", "20200102081014"),
    0x3B: ("DT", "20200102090000"),
    0x3C: ("FL", 10.0),
    0x3D: ("DT", "20200102090500"),
}
"""400 MBq of activity 2986 s before the injection, and 10 MBq in the syringe 300 s after it."""
NET_DOSE = 400e6 * 2 ** (-2986 / 6586.2) - 10e6 * 2 ** (300 / 6586.2)


@pytest.mark.parametrize(
    ("changes", "block", "elements", "factor"),
    [
        ({"Units": "CNTS"}, PHILIPS, {0x00: ("DS", "0.001")}, 0.001),
        ({"Units": "CNTS"}, PHILIPS, {0x00: ("DS", "0.001"), 0x09: ("DS", "7")}, 0.001),
        ({"Units": "CNTS"}, PHILIPS, {0x00: ("DS", "0"), 0x09: ("DS", "2.5")}, 2.5 * BQML_FACTOR),
        ({"Units": "CNTS"}, PHILIPS, {0x09: ("UN", b"2.5 ")}, 2.5 * BQML_FACTOR),
        ({"Units": "CNTS", "DecayCorrection": "ADMIN"}, PHILIPS, {0x09: ("DS", "2.5")}, 2.5 * 70e3 / 370e6),
        ({}, PHILIPS, {0x00: ("DS", "0.001"), 0x09: ("DS", "7")}, BQML_FACTOR),
        ({"SeriesTime": "180000"}, GE, {0x0D: ("DT", "20200102100000.50")}, BQML_FACTOR),
        ({}, GE, {0x0D: ("DT", "20200102120000")}, BQML_FACTOR),
        (NO_DOSE, GE, GE_DOSE, 70e3 / (NET_DOSE * DECAY)),
        (NO_DOSE | {"DecayCorrection": "ADMIN"}, GE, {0x38: GE_DOSE[0x38], 0x39: ("DT", "20200102090000"),
                                                      0x3B: GE_DOSE[0x3B]}, 70e3 / 400e6),
        ({}, GE, GE_DOSE, BQML_FACTOR),
    ],
)  # fmt: skip
def test_suv_follows_from_private_elements_of_philips_and_ge(tmp_path, changes, block, elements, factor):
    source = add_private(pet(tmp_path / "pet", CONCENTRATION, **changes), *block, elements)
    unit = read_image(source, (8, 8, 8), 1, make_image_reading(scale="suv"))
    expected = np.clip(CONCENTRATION * factor / 20, 0, 1).transpose(2, 1, 0)[::-1, ::-1]
    np.testing.assert_allclose(unit, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("changes", "block", "elements", "name"),
    [
        ({"Units": "CNTS"}, PHILIPS, {0x00: ("DS", "0"), 0x09: ("DS", "0")}, "Units"),
        ({"Units": "CNTS"}, (0x7053, "Other"), {0x00: ("DS", "0.001")}, "Units"),
        ({"Units": "PROPCPS"}, GE, GE_DOSE, "Units"),
        ({"Units": "CNTS"}, PHILIPS, {0x00: ("DS", "-1")}, "private element (7053,1000)"),
        ({"Units": "CNTS", "CorrectedImage": ["DECY"]}, PHILIPS, {0x00: ("DS", "1")}, "CorrectedImage"),
        ({"Units": "CNTS", "DecayCorrection": "NONE"}, PHILIPS, {0x00: ("DS", "1")}, "DecayCorrection"),
        (NO_DOSE, GE, {0x38: ("FL", 400.0)}, "private element (0009,103b)"),
        (NO_DOSE, GE, {**GE_DOSE, 0x38: ("FL", 4e8)}, "RadionuclideTotalDose"),
        ({"drug": {"RadionuclideTotalDose": 370}}, GE, {}, "RadionuclideTotalDose"),
    ],
)
def test_private_elements_without_a_calibration_are_refused(tmp_path, changes, block, elements, name):
    source = add_private(pet(tmp_path / "pet", CONCENTRATION, **changes), *block, elements)
    with refused(DataError, "unusable_suv_header", name=name):
        inspect_image(source, reading=make_image_reading(scale="suv"))


def test_a_factor_of_philips_that_differs_between_slices_is_refused(tmp_path):
    source = pet(tmp_path / "pet", CONCENTRATION, Units="CNTS")
    add_private(source, *PHILIPS, {0x00: ("DS", "0.001")})
    add_private(SeriesFiles(source.paths[:1]), *PHILIPS, {0x00: ("DS", "0.002")})
    with refused(DataError, "unusable_suv_header", name="private element (7053,1000)"):
        inspect_image(source, reading=make_image_reading(scale="suv"))


def test_a_uniform_body_has_suv_one(tmp_path):
    """A dose that is spread evenly in a body of 1 g/ml is SUV 1 everywhere, at any time."""
    left = 370e6 * DECAY / 70e3
    slopes = {"RescaleSlope": round(left / 1000, 8)}
    source = pet(tmp_path / "pet", np.full((8, 8, 8), 1000, np.int16), **slopes)
    unit = read_image(source, (8, 8, 8), 1, make_image_reading(scale="suv", window="1,2"))
    np.testing.assert_allclose(unit, 0.5, rtol=1e-6)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"PatientWeight": None}, "PatientWeight"),
        ({"PatientWeight": 0}, "PatientWeight"),
        ({"drug": {"RadionuclideTotalDose": None}}, "RadionuclideTotalDose"),
        ({"drug": {"RadionuclideHalfLife": None}}, "RadionuclideHalfLife"),
        ({"drug": {"RadiopharmaceuticalStartTime": None}}, "RadiopharmaceuticalStartTime"),
        ({"drug": {"RadiopharmaceuticalStartDateTime": "20191201"}}, "RadiopharmaceuticalStartDateTime"),
        ({"drug": {"RadiopharmaceuticalStartDateTime": "20200102"}}, "RadiopharmaceuticalStartDateTime"),
        ({"drug": {"RadiopharmaceuticalStartDateTime": "20200102083000+0000"}}, "RadiopharmaceuticalStartDateTime"),
        (
            {
                "drug": {"RadiopharmaceuticalStartDateTime": "20200102083000+0000"},
                "TimezoneOffsetFromUTC": "+0100",
            },
            "RadiopharmaceuticalStartDateTime",
        ),
        ({"RadiopharmaceuticalInformationSequence": None}, "RadiopharmaceuticalInformationSequence"),
        ({"Units": "CNTS"}, "Units"),
        ({"Units": "GML", "SUVType": "LBM"}, "Units"),
        ({"DecayCorrection": "NONE"}, "DecayCorrection"),
        ({"CorrectedImage": ["DECY"]}, "CorrectedImage"),
        ({"SeriesTime": None}, "SeriesTime"),
        ({"SeriesTime": "103000"}, "SeriesTime"),
        ({"AcquisitionDate": None}, "AcquisitionDate"),
    ],
)
def test_suv_without_its_headers_is_refused_by_the_name_of_the_header(tmp_path, changes, name):
    source = pet(tmp_path / "pet", CONCENTRATION, **changes)
    for read in (inspect_image, lambda source, reading: read_image(source, (8, 8, 8), 1, reading)):
        with refused(DataError, "unusable_suv_header", name=name):
            read(source, reading=make_image_reading(scale="suv"))


def test_an_image_of_one_slice_has_suv_too(tmp_path):
    source = pet(tmp_path / "pet", CONCENTRATION[:1] + 100)
    unit = read_image(source.paths[0], (8, 8), 1, make_image_reading(scale="suv"))
    np.testing.assert_allclose(unit, (CONCENTRATION[0] + 100) * 70e3 / (370e6 * DECAY) / 20, rtol=1e-5)


def test_an_invalid_interval_is_refused():
    with refused(SettingsError, "reversed_range"):
        ImageReading(scale="window", low=2, high=1)
