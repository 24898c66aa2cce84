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
