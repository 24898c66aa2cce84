"""Small real image files, made for a test."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import nibabel
import numpy as np
import pydicom
from PIL import Image
from pydicom.dataset import FileMetaDataset
from pydicom.encaps import encapsulate
from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage


def picture(path: Path, pixels: np.ndarray, **options) -> Path:
    """Image formats that Pillow writes, by the suffix of the name."""
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


def png16(path: Path, pixels: np.ndarray) -> Path:
    """A PNG of 16 bits; (H, W, C) with grey, grey and alpha, RGB, or RGB and alpha. Pillow can't write it."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width, channels = pixels.shape
    head = struct.pack(">IIBBBBB", width, height, 16, {1: 0, 2: 4, 3: 2, 4: 6}[channels], 0, 0, 0)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in pixels)
    parts = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + parts)
    return path


def ppm16(path: Path, pixels: np.ndarray) -> Path:
    """A PPM of 16 bits, (H, W, 3)."""
    path.write_bytes(f"P6 {pixels.shape[1]} {pixels.shape[0]} 65535\n".encode() + pixels.astype(">u2").tobytes())
    return path


def tiff16(path: Path, pixels: np.ndarray) -> Path:
    """A TIFF of 16 bits in RGB, (H, W, 3). Pillow can't write it."""
    height, width, _ = pixels.shape
    content = pixels.astype("<u2").tobytes()
    depths = 8 + 2 + 12 * 9 + 4  # after the head, the number of entries, the entries, and the end
    short, long = 3, 4
    entries = [
        (256, long, 1, width),
        (257, long, 1, height),
        (258, short, 3, depths),
        (259, short, 1, 1),
        (262, short, 1, 2),
        (273, long, 1, depths + 6),
        (277, short, 1, 3),
        (278, long, 1, height),
        (279, long, 1, len(content)),
    ]
    table = b"".join(struct.pack("<HHII", *entry) for entry in entries)
    head = b"II*\0" + struct.pack("<IH", 8, len(entries))
    path.write_bytes(head + table + struct.pack("<I3H", 0, 16, 16, 16) + content)
    return path
