"""RTSTRUCT files with contours on the slices of a DICOM series. Names in their headers are secrets."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
from pydicom import Dataset
from pydicom.dataset import FileMetaDataset
from pydicom.sequence import Sequence
from pydicom.uid import ExplicitVRLittleEndian, generate_uid

from medfl.data.readers.dicom_series import SeriesFiles, read_series


def write_structures(path: Path, image: SeriesFiles, regions: dict[str, list[np.ndarray]], **tags) -> Path:
    """Write contours (points, 3) in voxel coordinates (column, row, slice) of the image as an RTSTRUCT."""
    geometry = read_series(image.paths).geometry
    header = Dataset()
    header.file_meta = FileMetaDataset()
    header.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    header.file_meta.MediaStorageSOPClassUID = header.SOPClassUID = "1.2.840.10008.5.1.4.1.1.481.3"
    header.file_meta.MediaStorageSOPInstanceUID = header.SOPInstanceUID = generate_uid()
    header.Modality, header.PatientName = "RTSTRUCT", "Secret^Sally"
    header.StructureSetROISequence, header.ROIContourSequence = Sequence(), Sequence()
    for number, (name, contours) in enumerate(regions.items(), 7):
        region, drawn = Dataset(), Dataset()
        region.ROINumber, region.ROIName = number, name
        region.ReferencedFrameOfReferenceUID = tags.get("frame", geometry.frame_of_reference)
        drawn.ReferencedROINumber, drawn.ContourSequence = number, Sequence()
        for points in contours:
            contour = Dataset()
            contour.ContourGeometricType = tags.get("kind", "CLOSED_PLANAR")
            ras = points @ geometry.affine[:3, :3].T + geometry.affine[:3, 3]
            contour.ContourData = [round(float(edge), 6) for edge in (ras * [-1, -1, 1]).ravel()]
            contour.NumberOfContourPoints = len(points)
            drawn.ContourSequence.append(contour)
        header.StructureSetROISequence.append(region)
        header.ROIContourSequence.append(drawn)
    header.save_as(path, enforce_file_format=True)
    return path


def rectangle(columns, rows, number):
    (left, right), (top, bottom) = columns, rows
    return np.array([[left, top, number], [right, top, number], [right, bottom, number], [left, bottom, number]], float)


def circle(centre, radius, number, points=360):
    angles = np.linspace(0, 2 * math.pi, points, endpoint=False)
    return np.stack(
        [centre[0] + radius * np.cos(angles), centre[1] + radius * np.sin(angles), np.full(points, number)], axis=1
    )
