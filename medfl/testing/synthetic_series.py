"""Synthetic CT series of three hospitals, as a PACS or an export folder contains them, to try medfl without patients.

Half of the patients have a bright nodule in a lung. The hospitals have two kinds of scanners, which differ in spacing,
number of slices and noise. All names and identifiers are invented, and no image comes from a person.
"""

from __future__ import annotations

import csv
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from pydicom import Dataset

HOSPITALS = ("north", "south", "west")
"""Names of the hospitals. The first letter, in upper case, begins the IDs of a hospital's patients."""

EDGE_PIXELS, EDGE_MM = 32, 320.0
"""Number of rows and columns of a slice, and the length of its edge in millimetres."""

HEIGHT_MM = 240.0
"""Length of the imaged part of the body in millimetres."""

DIAGNOSES = ("clear", "nodule")
"""Diagnoses, by whether a lung contains a nodule."""

UID_ROOT = "1.2.826.0.1.3680043.8.498.77"
"""Root of all UIDs of the series."""

_AXIAL, _CORONAL = (1, 0, 0, 0, 1, 0), (1, 0, 0, 0, 0, -1)
"""Directions of rows and columns of the slices."""


@dataclass(frozen=True)
class Scanner:
    """Kind of scanner.

    Attributes:
        model: Name of the model.
        slices: Number of slices over `HEIGHT_MM`.
        noise: Standard deviation of the noise in Hounsfield units.
    """

    model: str
    slices: int
    noise: float


SCANNERS = {"north": Scanner("Alpha 16", 12, 20.0), "south": Scanner("Beta 64", 16, 60.0)}
"""Scanner of each hospital. Hospital ``west`` has both and uses them in turn."""


@dataclass(frozen=True)
class SyntheticPatient:
    """Patient with one study.

    Attributes:
        hospital: Name of the hospital.
        number: Number of the patient in the hospital, from 1.
        scanner: Scanner of the study.
    """

    hospital: str
    number: int
    scanner: Scanner

    @property
    def patient_id(self) -> str:
        """The hospital's ID of the patient, such as ``N-1001``."""
        return f"{self.hospital[0].upper()}-{1000 + self.number}"

    @property
    def study_uid(self) -> str:
        """The UID of the study."""
        return f"{UID_ROOT}.{HOSPITALS.index(self.hospital) + 1}.{self.number}"

    @property
    def has_nodule(self) -> bool:
        """Whether a lung contains a nodule."""
        return bool(_random(self.patient_id, "nodule").permuted([0, 1])[0])


def write_hospitals(folder: Path, patients: int = 24) -> None:
    """Write the series of three hospitals, and a table of diagnoses for each hospital.

    ``north``, ``south`` and ``west`` contain DICOM files with meaningless names; ``north.csv``, ``south.csv`` and
    ``west.csv`` contain the ID of each patient, the diagnosis and the hospital. The last patient of each hospital has
    no diagnosis yet. The second patient of ``north`` has a second, coronal series. The third patient of ``south`` has a
    screen capture with the patient's name in its pixels.

    Args:
        folder: Folder to write; created if it does not exist.
        patients: Number of patients of each hospital, >= 4.
    """
    for hospital in HOSPITALS:
        (folder / hospital).mkdir(parents=True)
        cohort = [SyntheticPatient(hospital, number, _scanner(hospital, number)) for number in range(1, patients + 1)]
        for patient in cohort:
            for dataset in _study(patient):
                name = f"{zlib.crc32(dataset.SOPInstanceUID.encode()):08X}"
                dataset.save_as(folder / hospital / name, enforce_file_format=True)
        with (folder / f"{hospital}.csv").open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["patient_id", "diagnosis", "hospital"])
            writer.writerows([p.patient_id, DIAGNOSES[p.has_nodule], hospital] for p in cohort[:-1])


def draw_chest(patient: SyntheticPatient) -> np.ndarray:
    """Return the CT of a patient in Hounsfield units, (slices, rows, columns), from feet to head, int16.

    Sizes and positions are shares of half the edge of the volume.
    """
    random = _random(patient.patient_id, "anatomy")
    slices = patient.scanner.slices
    z, y, x = np.meshgrid(
        np.linspace(-1, 1, slices), np.linspace(-1, 1, EDGE_PIXELS), np.linspace(-1, 1, EDGE_PIXELS), indexing="ij"
    )
    x, y, z = x + random.uniform(-0.06, 0.06), y + random.uniform(-0.1, 0.1), z + random.uniform(-0.1, 0.1)
    width, depth = random.uniform(0.78, 0.92), random.uniform(0.6, 0.8)
    chest = np.where((x / width) ** 2 + (y / depth) ** 2 < 1, random.uniform(20, 60), -1000.0)
    for side in (-1, 1):
        radii = random.uniform([0.27, 0.42, 0.8], [0.34, 0.54, 1.1])
        lung = ((x - side * 0.4) / radii[0]) ** 2 + (y / radii[1]) ** 2 + (z / radii[2]) ** 2 < 1
        chest[lung] = random.uniform(-890, -800)
    chest[x**2 + ((y - depth + 0.15) / 1.2) ** 2 < 0.1**2] = 400.0  # spine
    heart = random.uniform([0.05, -0.25, -0.5], [0.15, -0.15, -0.2])
    chest[(x - heart[0]) ** 2 + (y - heart[1]) ** 2 + (z - heart[2]) ** 2 < random.uniform(0.2, 0.3) ** 2] = 50.0
    place = np.array([random.choice([-0.4, 0.4]), random.uniform(-0.2, 0.2), random.uniform(-0.4, 0.4)])
    radius, density = random.uniform(0.26, 0.32), random.uniform(40, 80)
    if patient.has_nodule:
        chest[(x - place[0]) ** 2 + (y - place[1]) ** 2 + (z - place[2]) ** 2 < radius**2] = density
    return (chest + random.normal(0, patient.scanner.noise, chest.shape)).astype(np.int16)


def _scanner(hospital: str, number: int) -> Scanner:
    """Return the scanner of a patient."""
    return SCANNERS.get(hospital) or list(SCANNERS.values())[number % 2]


def _random(patient_id: str, purpose: str) -> np.random.Generator:
    """Return the random numbers of a patient for a purpose."""
    return np.random.default_rng(zlib.crc32(f"{patient_id} {purpose}".encode()))


def _study(patient: SyntheticPatient) -> Iterator[Dataset]:
    """Yield the images of a patient's study."""
    chest = draw_chest(patient)
    step = HEIGHT_MM / patient.scanner.slices
    for place, values in enumerate(chest):
        position = [-EDGE_MM / 2, -EDGE_MM / 2, place * step]
        dataset = _slice(patient, 1, place + 1, values)
        dataset.SeriesDescription = "Thorax axial"
        _set_geometry(dataset, position, _AXIAL, EDGE_MM / EDGE_PIXELS, step)
        yield dataset
    if (patient.hospital, patient.number) == ("north", 2):
        for place, values in enumerate(chest[::-1].transpose(1, 0, 2)[::2]):
            position = [-EDGE_MM / 2, -EDGE_MM / 2 + 2 * place * EDGE_MM / EDGE_PIXELS, HEIGHT_MM - step]
            dataset = _slice(patient, 2, place + 1, values)
            dataset.SeriesDescription = "Thorax coronal"
            _set_geometry(dataset, position, _CORONAL, step, 2 * EDGE_MM / EDGE_PIXELS)
            yield dataset
    if (patient.hospital, patient.number) == ("south", 3):
        yield _screen_capture(patient, chest[len(chest) // 2])


def _slice(patient: SyntheticPatient, series: int, number: int, values: np.ndarray) -> Dataset:
    """Return an image with the identity of its patient."""
    from pydicom import Dataset
    from pydicom.dataset import FileMetaDataset
    from pydicom.uid import UID, CTImageStorage, ExplicitVRLittleEndian

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = CTImageStorage
    meta.MediaStorageSOPInstanceUID = UID(f"{patient.study_uid}.{series}.{number}")
    dataset = Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID, dataset.SOPInstanceUID = meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID
    dataset.StudyInstanceUID, dataset.SeriesInstanceUID = patient.study_uid, f"{patient.study_uid}.{series}"
    dataset.PatientName, dataset.PatientID = f"Example^{patient.hospital.title()}{patient.number}", patient.patient_id
    dataset.PatientBirthDate, dataset.PatientSex = f"19{40 + patient.number % 50}0401", "FM"[patient.number % 2]
    dataset.StudyDate, dataset.StudyTime = f"2024{1 + patient.number % 12:02d}15", "101500"
    dataset.AccessionNumber = f"A{patient.hospital[0].upper()}{5000 + patient.number}"
    dataset.Modality, dataset.ManufacturerModelName = "CT", patient.scanner.model
    dataset.InstitutionName = f"Hospital {patient.hospital.title()}"
    dataset.SeriesNumber, dataset.InstanceNumber = series, number
    dataset.Rows, dataset.Columns = values.shape
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated, dataset.BitsStored, dataset.HighBit, dataset.PixelRepresentation = 16, 16, 15, 1
    dataset.RescaleSlope, dataset.RescaleIntercept, dataset.RescaleType = 1, 0, "HU"
    dataset.PixelData = np.ascontiguousarray(values, np.dtype("<i2")).tobytes()
    return dataset


def _set_geometry(
    dataset: Dataset, position: list[float], directions: tuple[int, ...], row_mm: float, slice_mm: float
) -> None:
    """Set the place of a slice in space, in place.

    Args:
        dataset: The slice.
        position: Centre of its first pixel in millimetres.
        directions: Directions of rows and columns.
        row_mm: Distance of rows in millimetres; that of columns is `EDGE_MM` / `EDGE_PIXELS`.
        slice_mm: Distance of slices in millimetres.
    """
    dataset.FrameOfReferenceUID = f"{dataset.StudyInstanceUID}.999"
    dataset.ImagePositionPatient = [round(edge, 4) for edge in position]
    dataset.ImageOrientationPatient = list(directions)
    dataset.PixelSpacing, dataset.SliceThickness = [row_mm, EDGE_MM / EDGE_PIXELS], slice_mm


def _screen_capture(patient: SyntheticPatient, values: np.ndarray) -> Dataset:
    """Return an enlarged slice with the patient's name in its pixels, as a workstation stores a screen."""
    from PIL import Image, ImageDraw
    from pydicom.uid import SecondaryCaptureImageStorage

    gray = np.clip((values.repeat(8, 0).repeat(8, 1) + 1350) * 200 / 1500, 0, 200)
    screen = Image.fromarray(gray.astype(np.uint8))
    ImageDraw.Draw(screen).text(
        (8, 8), f"EXAMPLE, {patient.hospital.upper()}{patient.number} {patient.patient_id}", 255
    )
    dataset = _slice(patient, 3, 1, np.asarray(screen).astype(np.int16))
    dataset.SOPClassUID = dataset.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.SeriesDescription, dataset.ConversionType = "Screen", "WSD"
    return dataset
