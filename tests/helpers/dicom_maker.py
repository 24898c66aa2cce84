"""DICOM files of mammograms as scanners, archives and bad luck make them."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from image_makers import dicom
from pydicom import dcmread
from pydicom.uid import (
    UID,
    ExplicitVRLittleEndian,
    JPEG2000Lossless,
    JPEGLSLossless,
    RLELossless,
    SecondaryCaptureImageStorage,
)

COMPRESSED = (RLELossless, JPEGLSLossless, JPEG2000Lossless)
"""Transfer syntaxes that pydicom can write with the decoders of ``medfl-monai[dicom]``."""


def make_dicom(path: Path, pixels: np.ndarray, *, syntax: UID = ExplicitVRLittleEndian, **tags) -> Path:
    """A DICOM file of 8 or 16 bits, compressed or in another byte order; see `image_makers.dicom`."""
    known = {"SOPClassUID": SecondaryCaptureImageStorage, "SOPInstanceUID": "1.2.3"}
    tags = {"stored": pixels.dtype.itemsize * 8, **known, **tags}
    if syntax.is_compressed and not syntax.is_deflated:
        dataset = dcmread(dicom(path, pixels, **tags))
        dataset.compress(syntax, generate_instance_uid=False)
        dataset.save_as(path, enforce_file_format=True)
        return path
    ordered = pixels if syntax.is_little_endian else pixels.astype(pixels.dtype.newbyteorder(">"))
    return dicom(path, ordered, syntax=syntax, **tags)


def without_preamble(path: Path, *, meta: bool = True) -> Path:
    """Cut off the preamble, or the whole meta header with the transfer syntax."""
    content = path.read_bytes()
    if meta:
        path.write_bytes(content[132:])
        return path
    length = int.from_bytes(content[140:144], "little")
    path.write_bytes(content[144 + length :])
    return path


def nested(depth: int, *, undefined: bool) -> bytes:
    """A sequence in a sequence in ... in explicit little endian."""
    inner = b""
    for _ in range(depth):
        length = 0xFFFFFFFF if undefined else len(inner)
        item = struct.pack("<HHI", 0xFFFE, 0xE000, length) + inner
        item += struct.pack("<HHI", 0xFFFE, 0xE00D, 0) if undefined else b""
        length = 0xFFFFFFFF if undefined else len(item)
        inner = struct.pack("<HH2sHI", 0x0018, 0x9346, b"SQ", 0, length) + item
        inner += struct.pack("<HHI", 0xFFFE, 0xE0DD, 0) if undefined else b""
    return inner


def insert(path: Path, content: bytes) -> Path:
    """Put elements before the elements that describe the pixels (group 0028)."""
    whole = path.read_bytes()
    place = whole.index(b"\x28\x00\x02\x00US")
    path.write_bytes(whole[:place] + content + whole[place:])
    return path


def cut(path: Path, share: float) -> Path:
    """Keep the beginning of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)])
    return path
