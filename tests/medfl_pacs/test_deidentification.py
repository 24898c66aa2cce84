"""Tests of pseudonymised data sets: no original value occurs in the bytes, at any depth."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pydicom
import pytest
from dicom_maker import nested
from pacs_images import ROOT, SECRETS, Place, content_of, plain_instance, secret_instance
from pydicom import Dataset
from pydicom.data import get_testdata_file
from refusals import refused

from medfl.data.readers.dicom_identity import check_identity
from medfl.data.readers.suv import suv_factor
from medfl.errors import DataError

pytest.importorskip("dicomanonymizer", reason="needs dicom-anonymizer, from the extra pacs")

from medfl_pacs.deidentification import deidentify, encode  # noqa: E402
from medfl_pacs.profile_actions import Action, load_actions  # noqa: E402
from medfl_pacs.pseudonyms import Pseudonyms  # noqa: E402

PSEUDONYMS = Pseudonyms(b"k" * 32)


def pseudonymise(dataset: Dataset | bytes, keep_characteristics: bool = False) -> tuple[Dataset, bytes]:
    """De-identify a data set as it is read from its bytes. Return the new data set in the same way, with its bytes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        received = pydicom.dcmread(io.BytesIO(dataset if isinstance(dataset, bytes) else content_of(dataset)))
        deidentify(received, PSEUDONYMS, keep_characteristics=keep_characteristics)
        content = encode(received)
        return pydicom.dcmread(io.BytesIO(content)), content


def test_no_secret_is_left():
    original = secret_instance()
    before = content_of(original)
    assert [secret for secret in SECRETS if secret.lower().encode() not in before.lower()] == []
    dataset, content = pseudonymise(original)
    assert [secret for secret in (*SECRETS, ROOT) if secret.lower().encode() in content.lower()] == []
    assert np.array_equal(dataset.pixel_array, original.pixel_array)
    assert content[:128] == b"\0" * 128


def test_no_secret_is_left_without_value_representations():
    original = secret_instance()
    original.file_meta.TransferSyntaxUID = pydicom.uid.ImplicitVRLittleEndian
    _, content = pseudonymise(original)
    assert [secret for secret in (*SECRETS, ROOT) if secret.lower().encode() in content.lower()] == []


def test_the_checks_of_prep_see_no_identity():
    dataset, _ = pseudonymise(secret_instance())
    assert check_identity(secret_instance()) != []
    assert check_identity(dataset) == []


def test_uids_are_consistent_at_every_depth():
    dataset, _ = pseudonymise(secret_instance())
    place, target = Place(), PSEUDONYMS.uid(f"{ROOT}.77")
    assert dataset.StudyInstanceUID == PSEUDONYMS.uid(place.study_uid)
    assert dataset.SOPInstanceUID == PSEUDONYMS.uid(place.instance_uid) == dataset.file_meta.MediaStorageSOPInstanceUID
    assert dataset.SOPClassUID == pydicom.uid.CTImageStorage
    assert dataset.ReferencedImageSequence[0].ReferencedSOPInstanceUID == target
    assert dataset.SourceImageSequence[0].ReferencedSeriesSequence[0].ReferencedSOPInstanceUID == target


def test_intervals_of_a_patient_are_kept():
    dataset, _ = pseudonymise(secret_instance())
    days = PSEUDONYMS.shift_days("PID-7312-X")
    assert (np.datetime64("2020-03-17") - days).item().strftime("%Y%m%d") == dataset.StudyDate
    assert (np.datetime64("2020-03-18") - days).item().strftime("%Y%m%d") == dataset.SeriesDate
    assert dataset.AcquisitionDateTime[8:] == "101112.5+0100"
    assert dataset.ReferencedImageSequence[0].Date == (np.datetime64("2020-03-20") - days).item().strftime("%Y%m%d")
    assert dataset.PatientBirthDate == ""
    assert dataset.StudyTime == "101112"


def test_the_file_says_how_it_was_deidentified():
    dataset, _ = pseudonymise(plain_instance(Place()))
    assert dataset.PatientID == dataset.PatientName == PSEUDONYMS.patient("PID-7312-X1")
    assert dataset.PatientIdentityRemoved == "YES"
    assert [item.CodeValue for item in dataset.DeidentificationMethodCodeSequence] == ["113100", "113107"]
    assert dataset.LongitudinalTemporalInformationModified == "MODIFIED"
    assert {str(element.tag.group) for element in dataset.file_meta} == {"2"}
    assert sorted(element.keyword for element in dataset.file_meta if element.tag.element > 1) == [
        "ImplementationClassUID",
        "ImplementationVersionName",
        "MediaStorageSOPClassUID",
        "MediaStorageSOPInstanceUID",
        "TransferSyntaxUID",
    ]


def test_characteristics_are_kept_only_on_request():
    original = plain_instance(Place())
    original.PatientWeight, original.PatientSize, original.PatientAge = 71.5, 1.75, "093Y"
    plain, _ = pseudonymise(original)
    assert (plain.PatientSex, "PatientAge" in plain, "PatientWeight" in plain) == ("", False, False)
    kept, _ = pseudonymise(original, keep_characteristics=True)
    assert (kept.PatientSex, kept.PatientAge, kept.PatientWeight, kept.PatientSize) == ("F", "090Y", 71.5, 1.75)
    assert [item.CodeValue for item in kept.DeidentificationMethodCodeSequence] == ["113100", "113107", "113108"]


def pet_of_philips() -> Dataset:
    """A PET slice of Philips in counts, with its two factors among other private elements, also nested."""
    dataset = secret_instance()
    dataset.Modality, dataset.Units, dataset.DecayCorrection = "PT", "CNTS", "START"
    dataset.CorrectedImage = ["ATTN", "DECY"]
    dataset.PatientWeight = 70
    other = dataset.private_block(0x7053, "Qwertzuiop device", create=True)
    other.add_new(0x00, "DS", "17")
    block = dataset.private_block(0x7053, "Philips PET Private Group", create=True)
    for element, representation, value in (
        (0x00, "DS", "0.000552734"),
        (0x01, "LO", "Private remark"),
        (0x03, "ST", "Private remark"),
        (0x09, "DS", "2.5"),
        (0x0F, "UL", 19610203),
    ):
        block.add_new(element, representation, value)
    nested_block = dataset.ReferencedImageSequence[0].private_block(0x7053, "Philips PET Private Group", create=True)
    nested_block.add_new(0x00, "DS", "7312")
    return dataset


@pytest.mark.parametrize("syntax", [pydicom.uid.ExplicitVRLittleEndian, pydicom.uid.ImplicitVRLittleEndian])
def test_suv_of_philips_is_kept_and_no_other_private_element(syntax: pydicom.uid.UID):
    original = pet_of_philips()
    original.file_meta.TransferSyntaxUID = syntax
    dataset, content = pseudonymise(original)
    private = {int(element.tag): element.value for element in dataset.iterall() if element.tag.is_private}
    assert private == {0x70530010: "Philips PET Private Group", 0x70531000: 0.000552734, 0x70531009: 2.5}
    assert suv_factor([dataset]) == suv_factor([original]) == 0.000552734
    assert [secret for secret in (*SECRETS, ROOT) if secret.lower().encode() in content.lower()] == []
    assert [item.CodeValue for item in dataset.DeidentificationMethodCodeSequence] == ["113100", "113107", "113111"]
    assert check_identity(dataset) == []


@pytest.mark.parametrize(
    ("creator", "representation", "value"),
    [
        ("Philips PET Private Group", "LO", "Private remark"),
        ("Philips PET Private Group", "UN", b"Private remark"),
        ("Philips PET Private Group", "DS", ["1", "2"]),
        ("Philips PET Private Group", "FD", float("nan")),
        ("Philips PET Private Group", "DS", ""),
        ("Philips PET", "DS", "0.001"),
    ],
)
def test_other_values_and_creators_are_no_factors_of_philips(creator: str, representation: str, value: object):
    original = plain_instance(Place())
    original.private_block(0x7053, creator, create=True).add_new(0x00, representation, value)
    dataset, content = pseudonymise(original)
    assert not any(element.tag.is_private for element in dataset.iterall())
    assert (b"Private remark" in content, b"Philips" in content) == (False, False)
    assert len(dataset.DeidentificationMethodCodeSequence) == 2


def test_suv_of_other_scanners_follows_from_the_kept_characteristics():
    original = pet_of_philips()
    drug = Dataset()
    drug.RadionuclideTotalDose, drug.RadionuclideHalfLife = 370e6, 6586.2
    drug.RadiopharmaceuticalStartTime = "090000"
    original.Units, original.RadiopharmaceuticalInformationSequence = "BQML", pydicom.Sequence([drug])
    original.SeriesDate = original.AcquisitionDate = "20200318"
    original.SeriesTime = original.AcquisitionTime = "100000"
    original.private_block(0x0009, "GEMS_PETD_01", create=True).add_new(0x0D, "DT", "20200318100000")
    expected = 70e3 / (370e6 * 2 ** (-3600 / 6586.2))
    dataset, _ = pseudonymise(original, keep_characteristics=True)
    assert suv_factor([dataset]) == suv_factor([original]) == pytest.approx(expected)
    assert not any(element.tag.group == 0x0009 for element in dataset)
    with refused(DataError, "unusable_suv_header", name="PatientWeight"):
        suv_factor([pseudonymise(original)[0]])


def test_geometry_and_windows_are_kept():
    original = plain_instance(Place())
    original.RescaleSlope, original.RescaleIntercept, original.WindowCenter = 1, -1024, 40
    dataset, _ = pseudonymise(original)
    kept = "PixelSpacing ImageOrientationPatient ImagePositionPatient SliceThickness RescaleSlope RescaleIntercept"
    for keyword in (*kept.split(), "WindowCenter", "Modality", "Rows", "BitsStored", "InstanceNumber"):
        assert dataset[keyword].value == original[keyword].value, keyword


def test_an_identifier_in_the_pixel_data_is_refused():
    original = plain_instance(Place())
    original.PixelData = original.PixelData[:100] + b"COM: QWERTZUIOP" + original.PixelData[115:]
    with refused(DataError, "identity_in_pixels") as caught:
        pseudonymise(original)
    assert "qwertzuiop" not in str(caught.value).lower()


def test_without_a_patient_id_each_study_is_a_patient():
    first, second = plain_instance(Place(1, 1)), plain_instance(Place(1, 2))
    other = plain_instance(Place(1, 1, 2))
    for dataset in (first, second, other):
        del dataset.PatientID
    names = [pseudonymise(dataset)[0].PatientID for dataset in (first, second, other)]
    assert names[0] != names[1]
    assert names[0] == names[2]


def test_short_names_are_emptied_as_words_only():
    original = plain_instance(Place())
    original.PatientName, original.Manufacturer, original.ManufacturerModelName = "Lee^Ann", "Sleep Works", "for Lee"
    dataset, _ = pseudonymise(original)
    assert (dataset.Manufacturer, dataset.ManufacturerModelName) == ("Sleep Works", "")


def test_names_in_other_scripts_are_emptied_everywhere():
    original = plain_instance(Place())
    original.SpecificCharacterSet = "ISO_IR 192"
    original.PatientName = "Yamada^Tarou=山田^太郎=やまだ^たろう"
    original.Manufacturer, original.ManufacturerModelName = "山田scanner", "of やまだ"
    _, content = pseudonymise(original)
    assert [text for text in ("山田", "太郎", "やまだ", "Tarou") if text.encode() in content] == []


def test_a_deeply_nested_sequence_ends_without_a_crash():
    content = content_of(plain_instance(Place()))
    place = content.index(b"\x28\x00\x02\x00US")
    dataset, _ = pseudonymise(content[:place] + nested(3000, undefined=False) + content[place:])
    assert dataset.PatientIdentityRemoved == "YES"


def test_damaged_elements_are_dropped():
    original = plain_instance(Place())
    original.StudyTime, original.ReconstructionDiameter = "101112.123456", "123456789012"
    original.add_new(0x00190010, "LO", "Creator")
    original.add_new(0x00080009, "LO", "No such element")
    damaged = content_of(original).replace(b"101112.123456", b"10:11 by Smit").replace(b"123456789012", b"Hidden Text!")
    dataset, content = pseudonymise(damaged)
    assert dataset.StudyTime == ""
    for text in (b"Smit", b"Hidden Text", b"Creator", b"No such element"):
        assert text not in content


def test_the_table_has_every_kind_of_action():
    table = load_actions()
    tag = pydicom.datadict.tag_for_keyword
    assert table.action(tag("PatientName")) is Action.EMPTY
    assert table.action(tag("PatientID")) is Action.DUMMY
    assert table.action(tag("ImageComments")) is Action.REMOVE
    assert table.action(tag("StudyInstanceUID")) is Action.UID
    assert table.action(tag("ReferencedImageSequence")) is Action.CLEAN
    assert table.action(tag("Rows")) is None
    assert {table.action(0x60003000), table.action(0x601E3000), table.action(0x50FE1234)} == {Action.REMOVE}
    assert len(table.by_tag) > 600


def test_unlisted_texts_of_the_patient_retired_numbers_and_blocks_of_bytes_are_removed():
    original = plain_instance(Place())
    elements = (
        (0x00100033, "LO", "1380-11-20"),  # birth date in another calendar
        (0x00401007, "SH", "ORDER777"),  # retired order numbers
        (0x00402006, "SH", "PLACER77"),
        (0x04000520, "OB", b"PDFPDF"),
        (0x00686300, "OB", b"HPGLQQ"),
        (0x54001010, "OW", b"WAVEQQ"),
        (0x60000022, "LO", "about Mr Q"),
        (0x60001500, "LO", "label of Q"),
    )
    for tag, representation, value in elements:
        original.add_new(tag, representation, value)
    original.RedPaletteColorLookupTableData = b"palette!"
    dataset, content = pseudonymise(original)
    assert [tag for tag, _, _ in elements if tag in dataset] == []
    assert [
        value for _, _, value in elements if (value if isinstance(value, bytes) else value.encode()) in content
    ] == []
    assert (dataset.RedPaletteColorLookupTableData, dataset.PixelData) == (b"palette!", original.PixelData)


def overlaid(bit: int) -> Dataset:
    """An image of 12 bits with an overlay in another bit, as old devices write it."""
    dataset = plain_instance(Place())
    pixels = np.frombuffer(dataset.PixelData, np.uint16) | np.uint16(1 << bit)
    dataset.PixelData = pixels.tobytes()
    dataset.add_new(0x60020010, "US", 16)
    dataset.add_new(0x60020011, "US", 16)
    dataset.add_new(0x60020100, "US", 16)
    dataset.add_new(0x60020102, "US", bit)
    return dataset


@pytest.mark.parametrize("syntax", [pydicom.uid.ExplicitVRLittleEndian, pydicom.uid.ExplicitVRBigEndian])
def test_overlays_in_unused_bits_are_cleared(syntax: pydicom.uid.UID):
    expected, original = plain_instance(Place()).pixel_array, overlaid(14)
    if not syntax.is_little_endian:
        original.PixelData = np.frombuffer(original.PixelData, "<u2").astype(">u2").tobytes()
    original.file_meta.TransferSyntaxUID = syntax
    copied = Dataset()  # a FileDataset has the byte order of its file
    copied.update(original)
    copied.file_meta = original.file_meta
    dataset, _ = pseudonymise(copied)
    kind = "<u2" if syntax.is_little_endian else ">u2"
    assert np.array_equal(np.frombuffer(dataset.PixelData, kind).reshape(16, 16), expected)
    assert not any(element.tag.group & 0xFF00 == 0x6000 for element in dataset)


def test_an_overlay_in_the_bits_of_the_values_is_refused():
    with refused(DataError, "overlay_in_pixels"):
        pseudonymise(overlaid(3))


SAMPLES = ("CT_small", "MR_small_RLE", "MR_small_bigendian", "693_J2KI", "examples_palette", "liver_1frame")


@pytest.mark.parametrize("name", SAMPLES)
def test_samples_keep_their_pixels_and_nothing_of_the_patient(name: str):
    original = pydicom.dcmread(get_testdata_file(f"{name}.dcm"))
    keywords = ("PatientID", "PatientName", "StudyInstanceUID", "SOPInstanceUID", "StudyDate", "AccessionNumber",
                "InstitutionName", "StudyDescription", "OperatorsName", "StationName")  # fmt: skip
    values = [str(original.get(keyword) or "") for keyword in keywords]
    dataset, content = pseudonymise(original)
    assert [value for value in values if len(value) > 3 and value.encode() in content] == []
    assert dataset.PixelData == original.PixelData
    assert not any(element.tag.is_private for element in dataset.iterall())
