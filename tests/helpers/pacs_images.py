"""DICOM instances with a secret in every place where a hospital may leave one."""

from __future__ import annotations

import io
import zlib
from dataclasses import dataclass, field

import numpy as np
from pydicom import Dataset, Sequence
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian

SECRETS = (
    *("Qwertzuiop", "Asdfghjkl", "Yxcvbnm", "PID-7312-X", "OTHER-9917", "ACC-551-77", "St. Zebulon", "Zebra Road 17"),
    *("Hidden free text", "Nested remark", "Private remark", "Deep remark", "19610203", "20200317", "20200318"),
    *("20200319", "20200320", "AETQQ", "Operator Ypsilon", "OVERLAYTEXT", "Curve label", "Preamble text"),
    *("SN-88121", "Unlisted long text", "Trailing text", "STATION-QQ", "Repeated by device"),
)
"""Texts of `secret_instance` that must occur nowhere, at any nesting depth."""

ROOT = "1.2.826.0.1.3680043.8.498.99"
"""Root of all UIDs of these instances."""


@dataclass(frozen=True)
class Place:
    """Numbers of an instance: patient, study of the patient, series of the study, and instance of the series."""

    patient: int = 1
    study: int = 1
    series: int = 1
    instance: int = 1

    @property
    def study_uid(self) -> str:
        return f"{ROOT}.{self.patient}.{self.study}"

    @property
    def series_uid(self) -> str:
        return f"{self.study_uid}.{self.series}"

    @property
    def instance_uid(self) -> str:
        return f"{self.series_uid}.{self.instance}"


@dataclass
class Corpus:
    """Instances of a PACS.

    `modality` is for all series; `size` is the edge of an image.
    """

    patients: int = 2
    series: int = 2
    instances: int = 3
    modality: str = "CT"
    size: int = 16
    places: list[Place] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.places = [
            Place(patient, 1, series, instance)
            for patient in range(1, self.patients + 1)
            for series in range(1, self.series + 1)
            for instance in range(1, self.instances + 1)
        ]

    def content(self) -> dict[Place, bytes]:
        return {place: content_of(plain_instance(place, self.modality, self.size)) for place in self.places}


def content_of(dataset: Dataset) -> bytes:
    """The content of a file."""
    buffer = io.BytesIO()
    dataset.save_as(buffer, enforce_file_format=True)
    return buffer.getvalue()


def plain_instance(place: Place, modality: str = "CT", size: int = 16) -> FileDataset:
    """A slice with a name, an identifier and a date."""
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, place.instance_uid
    dataset = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
    dataset.SOPClassUID, dataset.SOPInstanceUID = CTImageStorage, place.instance_uid
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = place.study_uid, place.series_uid
    dataset.FrameOfReferenceUID = f"{place.series_uid}.999"
    dataset.PatientName, dataset.PatientID = f"Qwertzuiop^Number{place.patient}", f"PID-7312-X{place.patient}"
    dataset.PatientBirthDate, dataset.PatientSex, dataset.PatientAge = "19610203", "F", "059Y"
    dataset.StudyDate, dataset.StudyTime = f"202003{16 + place.study:02d}", "101112"
    dataset.SeriesDate = "20200318"
    dataset.Modality, dataset.SeriesNumber, dataset.InstanceNumber = modality, place.series, place.instance
    dataset.AccessionNumber, dataset.StudyID = "ACC-551-77", "771"
    dataset.StudyDescription = "Hidden free text"
    generator = np.random.default_rng(zlib.crc32(place.instance_uid.encode()))
    pixels = generator.integers(0, 4000, (size, size)).astype(np.uint16)
    dataset.Rows = dataset.Columns = size
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 12, 11, 0
    dataset.PixelSpacing, dataset.SliceThickness = [0.5, 0.75], 2.0
    dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
    dataset.ImagePositionPatient = [0, 0, 2.5 * place.instance]
    dataset.PixelData = pixels.tobytes()
    return dataset


def secret_instance(place: Place = Place()) -> FileDataset:  # noqa: B008  (immutable)
    """A slice with all `SECRETS`: nested, private, in overlays, unlisted, in coded values, and in the preamble."""
    dataset = plain_instance(place)
    dataset.preamble = b"Preamble text".ljust(128, b"\0")
    dataset.PatientName = "Qwertzuiop^Asdfghjkl^Yxcvbnm"
    dataset.PatientID = "PID-7312-X"
    dataset.OtherPatientIDs = "OTHER-9917"
    dataset.InstitutionName, dataset.InstitutionAddress = "St. Zebulon", "Zebra Road 17"
    dataset.StationName, dataset.DeviceSerialNumber = "STATION-QQ", "SN-88121"
    dataset.OperatorsName = ["Operator Ypsilon", "Second^Operator Ypsilon"]
    dataset.ImageComments = "Hidden free text"
    dataset.StudyDate, dataset.SeriesDate = "20200317", "20200318"
    dataset.AcquisitionDateTime = "20200319101112.5+0100"
    dataset.ScheduledStudyLocationAETitle = "AETQQ"
    dataset.ManufacturerModelName = "Repeated by device PID-7312-X"  # a technologist's habit
    dataset.Manufacturer = "Scanner of Qwertzuiop"
    dataset.BodyPartExamined = "YXCVBNM"
    dataset.ReferenceLocationDescription = "Unlisted long text"
    dataset.add_new(0x60000010, "US", 16)
    dataset.add_new(0x60003000, "OW", b"OVERLAYTEXT\0")
    dataset.add_new(0x60004000, "LT", "OVERLAYTEXT")
    dataset.add_new(0x50002500, "LO", "Curve label")
    dataset.add_new(0xFFFCFFFC, "OB", b"Trailing text\0")
    block = dataset.private_block(0x0029, "Qwertzuiop device", create=True)
    block.add_new(1, "LO", "Private remark")
    private = Dataset()
    private.PatientName = "Asdfghjkl"
    block.add_new(2, "SQ", Sequence([private]))
    deep = Dataset()
    deep.PatientID, deep.TextValue, deep.ReferencedSOPInstanceUID = "PID-7312-X", "Deep remark", f"{ROOT}.77"
    deep.Date = "20200320"
    deep.private_block(0x0031, "Inner", create=True).add_new(1, "UT", "Private remark")
    middle = Dataset()
    middle.ContentSequence = Sequence([deep])
    middle.ReferencedSeriesSequence = Sequence([deep])
    middle.CodeMeaning, middle.InstitutionName = "Nested remark Asdfghjkl", "St. Zebulon"
    dataset.ReferencedImageSequence = Sequence([deep])
    dataset.SourceImageSequence = Sequence([middle])
    dataset.RequestAttributesSequence = Sequence([middle])
    dataset.AnatomicRegionSequence = Sequence([middle])
    dataset.ReferencedInstanceSequence = Sequence([middle, deep])
    return dataset
