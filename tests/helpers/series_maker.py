"""DICOM series as scanners and archives make them, small. Names and descriptions in their headers are secrets."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from image_makers import dicom
from pydicom import Dataset, dcmread
from pydicom.sequence import Sequence as DicomSequence
from pydicom.uid import UID, CTImageStorage, EnhancedCTImageStorage, ExplicitVRLittleEndian, generate_uid

AXIAL = (1.0, 0.0, 0.0, 0.0, 1.0, 0.0)
CORONAL = (1.0, 0.0, 0.0, 0.0, 0.0, -1.0)
SAGITTAL = (0.0, 1.0, 0.0, 0.0, 0.0, -1.0)

SPACING = (0.5, 0.75, 2.0)
"""Distance of rows, columns and slices in millimetres."""


def hounsfield(shape: Sequence[int] = (8, 16, 16), seed: int = 0) -> np.ndarray:
    """Values from -1000 to 2000, (slices, rows, columns)."""
    return np.random.default_rng(seed).integers(-1000, 2000, shape).astype(np.int16)


def write_series(
    folder: Path,
    values: np.ndarray,
    *,
    directions: Sequence[float] = AXIAL,
    spacing: Sequence[float] = SPACING,
    origin: Sequence[float] = (-10.0, 20.0, 30.0),
    shift: Sequence[float] = (0.0, 0.0, 0.0),
    syntax: UID = ExplicitVRLittleEndian,
    names: str = "{}",
    **tags: Any,
) -> Path:
    """Write the slices of a CT in mixed order, one file each.

    Args:
        folder: Folder to write into.
        values: (slices, rows, columns), int16; HU plus 1024 are stored.
        directions: Row and column directions.
        spacing: Distance of rows, columns and slices.
        origin: Position of the first slice.
        shift: Further shift of each slice against the one before, such as a tilted gantry gives.
        syntax: Transfer syntax.
        names: Pattern of the file names; they have no suffix by default.
        tags: Further elements; a function of the slice number is called.
    """
    folder.mkdir(parents=True, exist_ok=True)
    normal = np.cross(directions[:3], directions[3:])
    identity = {"SeriesInstanceUID": generate_uid(), "StudyInstanceUID": generate_uid()}
    identity |= {"FrameOfReferenceUID": generate_uid(), "SeriesDescription": "Secret Sally Thorax", "Modality": "CT"}
    for number in np.random.default_rng(1).permutation(len(values)):
        place = np.array(origin) + number * (normal * spacing[2] + np.array(shift))
        elements = identity | {
            "SOPClassUID": CTImageStorage,
            "SOPInstanceUID": generate_uid(),
            "InstanceNumber": int(len(values) - number),
            "ImagePositionPatient": [round(float(edge), 6) for edge in place],
            "ImageOrientationPatient": list(directions),
            "PixelSpacing": list(spacing[:2]),
            "RescaleSlope": 1,
            "RescaleIntercept": -1024,
        }
        elements |= {name: value(number) if callable(value) else value for name, value in tags.items()}
        elements = {name: value for name, value in elements.items() if value is not None}
        stored = (values[number].astype(np.int32) + 1024).astype(np.uint16)
        path = dicom(folder / names.format(number), stored, stored=16, **elements)
        if syntax != ExplicitVRLittleEndian:
            dataset = dcmread(path)
            dataset.compress(syntax, generate_instance_uid=False)
            dataset.save_as(path, enforce_file_format=True)
    return folder


def _item(**values: Any) -> DicomSequence:
    item = Dataset()
    for name, value in values.items():
        setattr(item, name, value)
    return DicomSequence([item])


def write_enhanced(path: Path, values: np.ndarray, *, slopes: Sequence[float] | None = None, **tags: Any) -> Path:
    """Write a CT as one enhanced file, its frames from head to feet. Frame n has the slope n of `slopes`."""
    groups = []
    for number in range(len(values)):
        frame = Dataset()
        place = [-10.0, 20.0, 30.0 - SPACING[2] * number]
        frame.PlanePositionSequence = _item(ImagePositionPatient=place)
        slope = 1 if slopes is None else slopes[number]
        frame.PixelValueTransformationSequence = _item(RescaleSlope=slope, RescaleIntercept=-1024)
        groups.append(frame)
    shared = Dataset()
    shared.PlaneOrientationSequence = _item(ImageOrientationPatient=list(AXIAL))
    shared.PixelMeasuresSequence = _item(PixelSpacing=list(SPACING[:2]))
    elements = {
        "SOPClassUID": EnhancedCTImageStorage,
        "SOPInstanceUID": generate_uid(),
        "SeriesInstanceUID": generate_uid(),
        "StudyInstanceUID": generate_uid(),
        "Modality": "CT",
        "NumberOfFrames": len(values),
        "SharedFunctionalGroupsSequence": DicomSequence([shared]),
        "PerFrameFunctionalGroupsSequence": DicomSequence(groups),
        "Rows": values.shape[1],
        "Columns": values.shape[2],
        "SamplesPerPixel": 1,
    }
    stored = (values.astype(np.int32) + 1024).astype(np.uint16)
    dicom(path, stored[0], stored=16, **elements | tags | {"PixelData": stored.tobytes()})
    return path
