"""Small real image files, made for a test."""

from __future__ import annotations

from pathlib import Path

import nibabel
import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage


def picture(path: Path, pixels: np.ndarray, **options) -> Path:
    """Whatever Pillow writes, by the ending of the name."""
    Image.fromarray(pixels).save(path, **options)
    return path


def dicom(path: Path, pixels: np.ndarray, meaning: str = "MONOCHROME2", stored: int = 12, **tags) -> Path:
    """A DICOM file of uint8, uint16 or int16 pixels, `stored` bits of them in use."""
    bits = pixels.dtype.itemsize * 8
    meta = FileMetaDataset()
    meta.TransferSyntaxUID = tags.pop("syntax", ExplicitVRLittleEndian)
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = "1.2.3"
    dataset = pydicom.Dataset()
    dataset.file_meta = meta
    dataset.PatientName, dataset.PatientID = "Secret^Sally", "SECRET-7"
    dataset.Rows, dataset.Columns = pixels.shape[:2]
    dataset.SamplesPerPixel = 3 if pixels.ndim == 3 else 1
    dataset.PhotometricInterpretation = meaning
    dataset.BitsAllocated, dataset.BitsStored = bits, min(bits, stored)
    dataset.HighBit = dataset.BitsStored - 1
    dataset.PixelRepresentation = int(pixels.dtype.kind == "i")
    if pixels.ndim == 3:
        dataset.PlanarConfiguration = 0
    dataset.PixelData = pixels.tobytes()
    if meta.TransferSyntaxUID.is_compressed:
        dataset.PixelData = encapsulate([pixels.tobytes()])
    for name in tags.pop("without", ()):
        delattr(dataset, name)
    for name, value in tags.items():
        setattr(dataset, name, value)
    dataset.save_as(path, enforce_file_format=True)
    return path


def nifti(path: Path, voxels: np.ndarray, affine: np.ndarray | None = None) -> Path:
    """A NIfTI file; without an affine its axes are canonical."""
    nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4) if affine is None else affine), path)
    return path
